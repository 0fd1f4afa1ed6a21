"""Options of ptxas: the same PTX under other releases and options, and the choice among them."""

from __future__ import annotations

import json
import pwd
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from sassafras.api.ptxas_options import choose
from sassafras.api.ptxas_options import load as load_choice
from sassafras.core import Candidate, CompileError, Evaluation, SassafrasError, Space, ToolMissing
from sassafras.frontend import ptx, ptxas_options
from sassafras.frontend._ptxas import assemble
from sassafras.frontend.ptx import PtxMove, PtxState
from sassafras.frontend.ptxas_options import PtxasOptions
from sassafras.sass import Cubin, Program
from sassafras.targets import load
from tests.by_recipe import Bench


def bundled() -> list[str]:
    import triton

    return [str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")]


@pytest.fixture(scope="module")
def space() -> ptx.PtxSpace:
    workload = load("suite:softmax")
    return ptx.of(workload, workload.case(), "sm_90a", bundled())


def test_start_is_the_frontends_own_kernel(space: ptx.PtxSpace) -> None:
    assert isinstance(space, Space)
    assert space.candidate(space.start()).kernel.cubin == space.kernel.cubin


def test_assembling_without_options_gives_the_same_code(space: ptx.PtxSpace) -> None:
    # the sweep's own check that flags and PTX are what the frontend uses
    again = assemble(space.ptx, "sm_90a", bundled()[0], flags=space.base_flags)
    assert ptx.fingerprint(again) == ptx.fingerprint(space.kernel.cubin)


def test_every_option_is_one_that_ptxas_takes(space: ptx.PtxSpace) -> None:
    states = [s for s in space.sweep() if s.options.ptxas == ""]
    found, refused = space.distinct(states)
    assert not refused
    assert 5 < len(found) < len(states)
    assert len({ptx.fingerprint(c.kernel.cubin) for c in found}) == len(found)
    for candidate in found:
        Program.parse(candidate.kernel.cubin)


def test_an_option_changes_the_code_it_should(space: ptx.PtxSpace) -> None:
    made = space.build(PtxState(PtxasOptions(load_cache="cg"))).kernel
    text = [i.opcode for i in Program.parse(made.cubin).function().instructions]
    assert any("STRONG.GPU" in t for t in text if t.startswith("LDG"))
    assert made.meta["ptxas_flags"] == ["--def-load-cache=cg"]


def test_a_limit_of_registers_counts_where_the_entry_bounds_no_block() -> None:
    workload = load("suite:gemv_int8")
    made = ptx.of(workload, workload.case(), "sm_90a", bundled())

    def used(text: str, limit: int | None) -> int:
        space = ptx.PtxSpace(made.kernel, text, bundled(), made.base_flags)
        kernel = space.build(PtxState(PtxasOptions(opt_level=2, max_registers=limit))).kernel
        return Cubin.parse(kernel.cubin).entries[kernel.name].registers

    free = made.ptx.replace(".reqntid 128", "")
    assert used(free, 40) <= 40 < used(free, None)
    assert used(made.ptx, 40) == used(made.ptx, None) > 40  # docs/concepts/search-space.md says so


def test_no_option_touches_numerics() -> None:
    states = [PtxasOptions(**{name: v}) for name, values in ptxas_options.CHOICES.items() for v in values]
    flags = " ".join(f for s in states for f in s.flags())
    assert "fmad" not in flags and "atomics" not in flags and "=lu" not in flags
    assert "--opt-level=0" not in flags
    assert len({state.flags() for state in states}) == len(states)


def test_moves_are_deterministic_and_checked(space: ptx.PtxSpace) -> None:
    a = [space.sample(space.start(), np.random.default_rng(3)) for _ in range(2)]
    assert a[0] == a[1] and a[0] in space.moves(space.start())
    assert space.apply(space.start(), PtxMove("opt_level", 2)).options.opt_level == 2
    for outside in (PtxMove("opt_level", 4), PtxMove("opt_level", -1), PtxMove("fmad", 1)):
        with pytest.raises(SassafrasError, match="not in this space"):
            space.apply(space.start(), outside)


def test_what_ptxas_refuses_is_reported(space: ptx.PtxSpace) -> None:
    found, refused = space.distinct([PtxState(), PtxState(PtxasOptions(load_cache="nonsense"))])
    assert len(found) == 1 and "nonsense" in refused[0]
    with pytest.raises(CompileError):
        space.build(PtxState(PtxasOptions(load_cache="nonsense")))


def test_registers_of_a_block_bound_the_limits() -> None:
    assert ptx.registers_at_launch(1024) == 64
    assert ptx.registers_at_launch(128) == 255


def test_without_a_home_directory_fetched_programs_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container with a user of its own."""
    monkeypatch.setenv("SASSAFRAS_PTXAS_HOME", str(tmp_path))
    here = ptxas_options.available()
    for name in ("HOME", "XDG_CACHE_HOME", "SASSAFRAS_PTXAS_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(user: int) -> object:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert ptxas_options.available() == here != []
    with pytest.raises(ToolMissing, match="SASSAFRAS_PTXAS_HOME"):
        ptxas_options.fetch("12.9.999")


def test_a_wheel_for_each_release() -> None:
    assert ptxas_options.wheel_of("12.9.86") == "nvidia-cuda-nvcc-cu12==12.9.86"
    with pytest.raises(SassafrasError, match="no release"):
        ptxas_options.wheel_of("latest; rm -rf")


def test_a_choice_on_the_model_is_saved_and_loaded(space: ptx.PtxSpace, tmp_path: Path) -> None:
    from sassafras.timing_model import ModelDevice

    workload = load("suite:softmax")
    settings = [
        PtxasOptions(),
        PtxasOptions(opt_level=1),
        PtxasOptions(register_level=0),
        PtxasOptions(store_cache="cs"),
    ]
    choice = choose(space, workload, workload.case(), ModelDevice("sm_90a"), settings)
    assert choice.modelled and choice.speedup is not None and choice.speedup >= 1.0
    assert {r.verdict for r in choice.rows} == {"modelled"}
    assert "modelled" in choice.summary() or "stays" in choice.summary()
    path = choice.save(tmp_path)
    made, note = load_choice(path, lambda tools: space)
    assert made.kernel.digest == choice.kernel.digest and choice.ptxas in note
    assert path.name == "softmax-512x4096.ptxas-options.json"
    assert replace(choice, case="a/b c").save(tmp_path).name == "softmax-a_b_c.ptxas-options.json"
    with pytest.raises(SassafrasError, match="cannot write the choice"):
        choice.save(path)
    before = tmp_path / "softmax.knobs.json"  # as earlier versions wrote it
    before.write_text(path.read_text().replace("sassafras-ptxas-options", "sassafras-knobs"))
    assert load_choice(before, lambda tools: space)[0].kernel.digest == choice.kernel.digest


def test_the_reported_figure_has_chosen_nothing(space: ptx.PtxSpace) -> None:
    class Lucky(Bench):
        measured: ClassVar[Counter[str]] = Counter()

        def remeasure(self, candidate: Candidate, **how: object) -> Evaluation:
            self.measured[candidate.digest] += 1
            return self.evaluation(candidate, 1.2 if self.measured[candidate.digest] == 1 else 1.05)

    workload, device = load("suite:softmax"), Lucky(slowest=1.01)
    settings = [PtxasOptions(opt_level=1), PtxasOptions(register_level=0), PtxasOptions(store_cache="cs")]
    choice = choose(space, workload, workload.case(), device, settings)
    assert len(device.measured) > 1 and device.measured[choice.kernel.digest] == 2
    assert choice.speedup == pytest.approx(1.05) and choice.high == pytest.approx(1.051)


def test_a_broken_choice_is_named(space: ptx.PtxSpace, tmp_path: Path) -> None:
    path = tmp_path / "x.ptxas-options.json"
    path.write_text(json.dumps({"format": "something else", "ptxas": "1", "best": {}}))
    with pytest.raises(
        SassafrasError, match="cannot read a choice of ptxas options: it is of another format"
    ):
        load_choice(path, lambda tools: space)
