"""`PtxSpace`: walks that end in kernels or reasons, the same ones for a seed; options with a user's file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.core import CompileError, Playable, SassafrasError, Space
from sassafras.frontend import ptx
from sassafras.frontend._ptxas import assemble
from sassafras.frontend.ptx import PtxMove, PtxState
from sassafras.frontend.ptx.axes import rewrite_axes
from sassafras.frontend.ptx.rewrites import Cache, EntryName, Frequency, L2Policy, Registers, write
from sassafras.frontend.ptxas_options import PtxasOptions
from sassafras.sass import Cubin
from sassafras.targets import load
from tests.frontend.ptx.compiled_ptx import needs_cuda_13, releases, space


def walk(made: ptx.PtxSpace, steps: int, seed: int) -> list[tuple[PtxState, str, str]]:
    """States, digests and refusals of a random walk that stays where it is refused."""
    rng, state, found = np.random.default_rng(seed), made.start(), []
    for _ in range(steps):
        move = made.sample(state, rng)
        assert move is not None
        new = made.apply(state, move)
        candidate = made.candidate(new)
        refused = str(candidate.recipe.get("refused", ""))
        found.append((new, candidate.digest, refused))
        if not refused:
            assert list(Cubin.parse(candidate.kernel.cubin).entries) == [made.kernel.name]
            state = new
    return found


def test_the_start_is_the_frontends_own_kernel() -> None:
    made = space("rmsnorm")
    assert isinstance(made, Space) and isinstance(made, Playable)
    assert made.candidate(made.start()).kernel.cubin == made.kernel.cubin
    assert made.build(PtxState(rewrites=(EntryName("k_"),))).digest == made.kernel.digest, "the same code"


def test_two_hundred_changes_are_kernels_or_have_a_reason() -> None:
    found = walk(space("kv_append"), 200, seed=1)
    digests = {digest for _, digest, refused in found if not refused}
    assert len(digests) > 30 and max(len(state.rewrites) for state, _, _ in found) > 5
    assert all(len(refused) > 20 for _, _, refused in found if refused)
    for state, _, _ in found[::10]:
        again = PtxState.from_json(json.loads(json.dumps(state.to_json())), state.options.ptxas)
        assert again == state and hash(again) == hash(state)


def test_a_seed_gives_the_same_walk() -> None:
    workload = load("suite:swiglu")
    tool = [releases()[min(releases())]]
    other = [ptx.of(workload, workload.case(), "sm_90a", tool) for _ in range(2)]
    first, second = (walk(made, 12, seed=5) for made in other)
    assert first == second and other[0].description == other[1].description


def test_every_choice_of_a_kernel_is_legal_and_can_be_taken_back() -> None:
    made = space("paged_decode")
    start = made.start()
    assert {one.kind for one in made.axes.values()} >= {
        "release",
        "options",
        "residency",
        "name",
        "loops",
        "group",
    }
    for move in made.moves(start):
        state = made.apply(start, move)
        why = made.refusal(state)
        assert not why or "ptxas 13.0" in why, (move, why)
        assert made.chosen(state, made.axes[move.axis]) == move.choice
        assert made.apply(state, PtxMove(move.axis, 0)) == start


@pytest.mark.parametrize(
    "data",
    [
        {"options": 5},
        {"options": {"fmad": False}},
        {"options": {"opt_level": [1]}},
        {"options": {"opt_level": True}},
        {"options": {"opt_level": 0}},
        {"options": {"load_cache": "lu"}},
        {"options": {"controls": 5}},
        {"rewrites": 5},
        {"rewrites": {"rewrite": "Cache"}},
        {"rewrites": ["Cache"]},
        {"rewrites": [5]},
        {"rewrites": [{"rewrite": ["Cache"]}]},
    ],
)
def test_a_state_of_a_damaged_file_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(
        SassafrasError, match=r"ptxas options|may be tried|no rewrite of PTX|no list of rewrites"
    ):
        PtxState.from_json(data)


def test_a_row_of_an_agent_is_an_axis() -> None:
    made = space("paged_decode")
    start, legal = made.start(), made.legal(made.start())
    assert legal.shape == made.features(start).shape == (len(made.axes), len(made.actions))
    assert legal.sum() == len(made.moves(start)) and len(made.links(start)) == len(made.axes)
    row = list(made.axes).index("residency")
    found = made.act(start, row, 2)
    assert found is not None and made.apply(start, found[0]).rewrites == made.axes["residency"].choices[2]
    assert made.features(made.apply(start, found[0]))[row].tolist().index(1.0) == 2


def test_a_group_is_changed_together() -> None:
    made = space("paged_decode")
    name = next(n for n in made.axes if n.startswith("cp.async of") and n.endswith("PrefetchSize"))
    state = made.apply(made.start(), PtxMove(name, 1))
    assert len(state.rewrites) > 2 and len({one.slot for one in state.rewrites}) == len(state.rewrites)
    number = state.rewrites[0].slot[1]
    mixed = made.apply(state, PtxMove(f"access {number} PrefetchSize", 0))
    assert made.chosen(mixed, made.axes[name]) == -1 and made.chosen(state, made.axes[name]) == 1


def of_kind(made: ptx.PtxSpace, kind: str) -> int:
    """The number of an access of this kind."""
    return next(a.number for a in made.entry.accesses if a.kind == kind)


def test_policies_of_copies_need_a_ptxas_that_gives_them_registers() -> None:
    made = space("gemm_leakyrelu")
    copy = of_kind(made, "cp.async")
    with pytest.raises(CompileError, match=r"needs ptxas 13[.]4 or newer, not 12"):
        made.build(PtxState(rewrites=(L2Policy(copy, "evict_last"),)))
    for newest, offered in (((13, 3), False), ((13, 4), True)):
        axes = rewrite_axes(made.entry, made.kernel.threads, made.kernel.shared_bytes, newest)
        lengths = {one.name: len(one.choices) for one in axes}
        assert lengths[f"access {copy} L2Policy"] == (4 if offered else 1)
        assert lengths[f"access {of_kind(made, 'st')} L2Policy"] == 4
    stored = made.build(PtxState(rewrites=(L2Policy(of_kind(made, "st"), "evict_last"),)))
    assert stored.digest != made.kernel.digest


def test_an_output_that_reads_what_nothing_writes_is_refused() -> None:
    made = space("gemm_leakyrelu")
    tool = [releases()["12"]]
    text = write(made.entry, [L2Policy(of_kind(made, "cp.async"), "evict_first")], made.kernel.threads)
    faulty = ptx.PtxSpace(made.kernel, text, tool, made.base_flags)
    state = PtxState(rewrites=(Registers("maxnreg", 255),))
    with pytest.raises(
        CompileError, match=r"ptxas 12[.]\d+[.]\d+: LDGSTS at 0x\w+ reads UR0, which nothing writes"
    ):
        faulty.build(state)
    assert made.build(state).kernel.cubin
    # where the frontend's own kernel does so too, its output is the measure
    own = assemble(text, "sm_90a", tool[0], flags=made.base_flags)
    same = ptx.PtxSpace(made.kernel.with_cubin(own), text, tool, made.base_flags)
    assert same.build(state).kernel.cubin


def test_refusals_say_why() -> None:
    made = space("softmax")
    with pytest.raises(SassafrasError, match="not in this space"):
        made.apply(made.start(), PtxMove("residency", 99))
    bad = PtxState(rewrites=(Cache(0, "lu"),))
    with pytest.raises(CompileError, match="lu does not go with this access"):
        made.build(bad)
    stand_in = made.candidate(bad)
    assert "lu does not go" in stand_in.recipe["refused"] and stand_in.digest == made.candidate(bad).digest
    with pytest.raises(CompileError, match="Insufficient registers"):
        space("gemm_leakyrelu").build(PtxState(rewrites=(Registers("maxnreg", 32),)))
    text = made.ptx.replace("ret;", "nothing;")
    broken = [ptx.PtxSpace(made.kernel, text, [releases()[min(releases())]]) for _ in range(2)]
    said = [one.candidate(PtxState(PtxasOptions(opt_level=1))).recipe["refused"] for one in broken]
    assert said[0] == said[1] and "kernel.ptx, line" in said[0]
    header = space("paged_decode").entry.loops[0]
    with pytest.raises(CompileError, match=r"needs ptxas 13[.]0 or newer, not 12"):
        space("paged_decode").build(PtxState(rewrites=(Frequency(header, 9),)))


def test_without_the_frontends_own_ptxas_others_serve() -> None:
    needs_cuda_13()
    made = space("kv_append")
    other = ptx.PtxSpace(made.kernel, made.ptx, [releases()["13"]], made.base_flags)
    move = other.sample(other.start(), np.random.default_rng(0))
    assert move is not None and move.axis == "ptxas", "the only way on"
    assert other.candidate(other.apply(other.start(), move)).kernel.meta["ptxas"].startswith("13.")
    refused = other.candidate(PtxState(PtxasOptions(opt_level=1))).recipe["refused"]
    assert "own ptxas 12" in refused and "was not found" in refused


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_tritons_own_ptxas_is_found_whichever_it_is(arch: str) -> None:
    workload = load("suite:kv_append")
    made = ptx.of(workload, workload.case(), arch, [])
    assert list(made.tools.values()) == [""] and made.own_version == made.kernel.meta["ptxas"]
    assert made.build(PtxState(rewrites=(EntryName("k_"),))).digest == made.kernel.digest
    assert made.build(PtxState(rewrites=(Cache(0, "cs"),))).digest != made.kernel.digest


def test_registers_that_a_kernel_redistributes_stay() -> None:
    made = space("rmsnorm")
    text = made.ptx.replace("\tret;", "\tsetmaxnreg.dec.sync.aligned.u32 24;\n\tret;")
    other = ptx.PtxSpace(made.kernel, text, [releases()[min(releases())]], made.base_flags)
    assert "residency" not in other.axes
    assert "setmaxnreg" in other.refusal(PtxState(PtxasOptions(max_registers=32)))


def test_a_limit_of_registers_is_an_option_only_where_ptxas_looks_at_it() -> None:
    made, tool = space("gemv_int4"), [releases()[min(releases())]]
    unbound = made.ptx.replace(".reqntid 128", "")
    moving = unbound.replace("\tret;", "\tsetmaxnreg.dec.sync.aligned.u32 24;\n\tret;")
    free, moved = (ptx.PtxSpace(made.kernel, text, tool, made.base_flags) for text in (unbound, moving))
    assert made.entry.bounded and not free.entry.bounded
    assert ["max_registers" in one.axes for one in (made, free, moved)] == [False, True, False]

    def used(one: ptx.PtxSpace) -> int:
        built = one.build(PtxState(PtxasOptions(max_registers=40))).kernel
        return Cubin.parse(built.cubin).entries[built.name].registers

    assert used(free) <= 40 < used(made) == Cubin.parse(made.kernel.cubin).entries[made.kernel.name].registers


def test_a_file_of_the_user_is_handed_on(tmp_path: Path) -> None:
    file = tmp_path / "user.options"  # (ptxas reads options from it: an effect that can be seen)
    file.write_text("--opt-level=1")
    given = f"--options-file={file}"
    workload = load("suite:swiglu")
    tool = [releases()[min(releases())]]
    made = ptx.of(workload, workload.case(), "sm_90a", tool, [given])
    state = made.apply(made.start(), PtxMove("controls", 1))
    found = made.build(state)
    assert found.digest != made.kernel.digest
    same = made.build(PtxState(PtxasOptions(opt_level=1)))
    assert same.digest == found.digest, "it does what the file says"
    assert state.options.flags() == (given,) and len(found.recipe["controls"]) == 64
    file.write_text("--opt-level=2")
    other = ptx.of(workload, workload.case(), "sm_90a", tool, [given])
    assert other.description != made.description, "what the file holds is part of the search's identity"
    for wrong, what in ((f"--controls={tmp_path}/no", "No such file"), ("--controls", "no option of ptxas")):
        with pytest.raises(SassafrasError, match=what):
            ptx.of(workload, workload.case(), "sm_90a", tool, [wrong])


def test_a_release_that_is_older_than_the_ptx_is_not_tried() -> None:
    needs_cuda_13()
    made = space("kv_append")
    kernel = dataclasses.replace(
        made.kernel, meta={**made.kernel.meta, "ptxas": made.version(PtxasOptions(releases()["13"]))}
    )
    newer = made.ptx.replace(".version 8.7", ".version 9.0")
    for text, majors in ((made.ptx, {"12", "13"}), (newer, {"13"})):
        tried = {version.split(".")[0] for version in ptx.PtxSpace(kernel, text, None, made.base_flags).tools}
        assert tried >= {"13"} and ("12" in tried) == ("12" in majors & set(releases()))
    asked = ptx.PtxSpace(kernel, newer, [releases()["12"]]) if "12" in releases() else None
    assert asked is None or any("12." in version for version in asked.tools), "who names one hears why not"


def test_releases_differ() -> None:
    needs_cuda_13()
    made = space("layernorm")
    other = made.apply(made.start(), PtxMove("ptxas", 1))
    assert made.version(other.options).startswith("13.") and made.build(other).recipe["ptxas"].startswith(
        "13."
    )
