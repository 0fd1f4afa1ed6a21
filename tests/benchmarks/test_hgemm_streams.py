"""`benchmarks/hgemm_streams.py` without a GPU: variants, the kernel on the emulator, its SASS, a dry run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.core import DisassemblyError, ToolMissing
from sassafras.gemm.compile import cubin
from sassafras.sass import Program
from tests.shared import compiled

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
EMULATOR = HERE.parent / "gemm"
#: see hopper_emulator.hpp
LATE, RANDOM, EAGER = 0, 1, 2
NO_WAIT_FOR_EMPTY, NO_WAIT_FOR_FULL, WRONG_BYTES, NO_REMOTE_ARRIVAL = 1, 2, 3, 9


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hgemm_streams_plan

    return hgemm_streams_plan


@pytest.fixture
def streams(plan: Any) -> Any:
    import hgemm_streams

    return hgemm_streams


def everything(plan: Any) -> list[Any]:
    return list(dict.fromkeys(v for layout in plan.LAYOUTS for v in plan.variants(layout)))


def test_variants_are_well_formed(plan: Any, streams: Any) -> None:
    found = everything(plan)
    assert len({v.name for v in found}) == len(found) > 60
    for layout in plan.LAYOUTS:
        listed = plan.variants(layout)
        assert all(v.changes(listed[0]) for v in listed[1:-1]), "each changes something"
    for n, k in streams.SHAPES:
        ready = [v for v in found if not plan.reject(v, n, k)]
        refused = {v.name for v in found} - {v.name for v in ready}
        assert len(refused) <= 4, refused
        for v in ready:
            laid = plan.lay_out(v, n, k)
            p = laid.pattern
            assert set(p) == set(plan.FIELDS) and laid.grid <= 264
            assert p["copies"] * p["box_bytes"] == 128 * v.width * (v.k // 64), "a stage is the slab's step"
            assert p["stages"] * p["copies"] * p["box_bytes"] == v.flight * 1024
            assert laid.shared_bytes <= plan.CTA_BYTES
            assert v.resident * (laid.shared_bytes + 1024) <= plan.MULTIPROCESSOR_BYTES
            assert (v.resident + 1) * (laid.shared_bytes + 1024) > plan.MULTIPROCESSOR_BYTES
            for described in (laid.matrix, laid.small):
                assert max(described.box) <= 256 and 2 * described.box[0] <= described.swizzle
                assert all(stride % 16 == 0 for stride in described.strides)
    with pytest.raises(ValueError, match="box"):
        plan.lay_out(plan.Variant("tn", width=288), 1152, 1024)


def test_the_struct_is_the_same_in_both_languages(plan: Any) -> None:
    text = (BENCHMARKS / "hgemm_streams.cu").read_text()
    body = re.search(r"struct Pattern \{(.*?)\};", text, re.DOTALL)
    assert body is not None
    declared = re.findall(r"\b(?!int\b)(\w+)\s*[,;]", re.sub(r"//.*", "", body[1]))
    assert tuple(declared) == plan.FIELDS


@pytest.mark.parametrize("n,k", [(1024, 2048), (12288, 16384)])
def test_every_step_of_every_slab_is_read_once(plan: Any, n: int, k: int) -> None:
    for v in everything(plan):
        if plan.reject(v, n, k):
            continue
        laid = plan.lay_out(v, n, k)
        walked = [unit for cta in range(laid.grid) for unit in plan.walk(laid, cta)]
        slabs, steps = laid.pattern["slabs"], laid.pattern["steps"]
        assert len(walked) == len(set(walked)) == slabs * steps, v.name
        assert max(walked) == (slabs - 1, steps - 1), v.name


def test_a_box_is_what_lies_there(plan: Any) -> None:
    matrix = np.arange(64 * 128, dtype=np.uint16)  # 64 rows of 128
    box = plan.boxed(matrix, plan.Map((128, 64), (256,), (64, 2)), (64, 63)).view(np.uint16)
    assert (box[:64] == 63 * 128 + 64 + np.arange(64)).all() and not box[64:].any()
    deep = plan.boxed(matrix, plan.Map((64, 64, 2), (256, 128), (64, 1, 2)), (0, 5, 0)).view(np.uint16)
    assert (deep == 5 * 128 + np.arange(128)).all()


def test_changes_that_gained_are_put_together(plan: Any) -> None:
    base = plan.Variant("tn")
    one, two, three = (plan.Variant("tn", **c) for c in ({"flight": 192}, {"stagger": 2}, {"parts": 132}))
    made = plan.together(base, [(1.01, two), (1.03, one), (1.005, three)], 16384, 16384)
    assert made[:2] == [one, plan.Variant("tn", flight=192, stagger=2)], "parts are staggered already"
    assert all(v.small for v in made[2:]) and any(v.shared for v in made[2:])
    assert all(v.small for v in plan.together(base, [], 16384, 16384))


class Emulated:
    """Runs variants on the CPU."""

    def __init__(self, shared: Path, folder: Path, plan: Any) -> None:
        files = {"hgemm_streams.cu": (BENCHMARKS / "hgemm_streams.cu").read_text()}
        for name in ("hopper_emulator.hpp", "lane_emulator.hpp"):
            files[name] = (EMULATOR / name).read_text()
        files["ptx_hopper.cuh"] = files["hopper_emulator.hpp"]  # what the kernel includes
        files["hgemm_streams_hints.cuh"] = "// see emulated_streams.cpp\n"
        files["emulated_streams.cpp"] = (HERE / "emulated_streams.cpp").read_text()
        command = ["g++", "-std=c++20", "-O1", "-o", "emulated", "emulated_streams.cpp"]
        self.path, self.folder, self.plan = compiled(shared, files, command) / "emulated", folder, plan
        rng = np.random.default_rng(5)
        self.n, self.k = 512, 512
        self.matrix = rng.integers(0, 1 << 16, self.n * self.k, dtype=np.uint16)
        self.small = rng.integers(0, 1 << 16, 128 * self.k, dtype=np.uint16)
        self.matrix.tofile(folder / "matrix")
        self.small.tofile(folder / "small")

    def run(self, variant: Any, policy: int = LATE, seed: int = 0, fault: int = 0) -> str:
        """What is wrong, ``""`` when nothing is."""
        laid = self.plan.lay_out(variant, self.n, self.k)
        words = [laid.grid, variant.cluster, laid.shared_bytes, policy, seed, fault]
        words += [laid.pattern[name] for name in self.plan.FIELDS]
        for m in (laid.matrix, laid.small):
            absent = (1,) * (3 - len(m.dims))
            words += [len(m.dims), *m.dims, *absent, *m.strides, *absent, *m.box, *absent, m.swizzle]
        (self.folder / "job").write_text(" ".join(map(str, [*words, "matrix", "small", "sums"])))
        done = subprocess.run(
            [str(self.path), "job"], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            return done.stderr.strip() or f"status {done.returncode}"
        sums = np.fromfile(self.folder / "sums", np.uint32).reshape(-1, self.plan.READERS).sum(axis=1)
        for cta in range(laid.grid):
            if int(sums[cta]) & 0xFFFFFFFF != self.plan.expected(laid, self.matrix, self.small, cta):
                return f"the sum of CTA {cta} is wrong"
        return ""


def test_the_kernel_reads_what_it_should(plan: Any, shared: Path, tmp_path: Path) -> None:
    emulated = Emulated(shared, tmp_path, plan)
    ready = [v for v in everything(plan) if not plan.reject(v, emulated.n, emulated.k)]
    # what differs in hints, promotion and memory per multiprocessor alone is the same to the emulator
    kinds = {json.dumps(plan.lay_out(v, emulated.n, emulated.k).pattern | {"hint": 0}): v for v in ready}
    assert len(kinds) > 25 and {v.layout for v in kinds.values()} == set(plan.LAYOUTS)
    for number, variant in enumerate(kinds.values()):
        assert emulated.run(variant, (LATE, RANDOM, EAGER)[number % 3], number) == "", variant.name
    ragged = plan.Variant("nn", width=96)
    assert emulated.n % 96 and ragged in ready


def test_faults_are_noticed(plan: Any, shared: Path, tmp_path: Path) -> None:
    emulated = Emulated(shared, tmp_path, plan)
    alone, pair = (
        plan.Variant("tn", flight=32),
        plan.Variant("tn", flight=32, small=64, shared=True, cluster=2),
    )
    assert emulated.run(alone) == emulated.run(pair) == ""
    assert emulated.run(alone, fault=NO_WAIT_FOR_EMPTY) and emulated.run(alone, fault=NO_WAIT_FOR_FULL)
    assert emulated.run(alone, fault=WRONG_BYTES)
    assert any(emulated.run(pair, RANDOM, seed, NO_REMOTE_ARRIVAL) for seed in range(8))


def test_sass(streams: Any, tmp_path: Path) -> None:
    try:
        program = Program.parse(cubin(streams.Kernel(), tmp_path))
    except (ToolMissing, DisassemblyError) as missing:
        if isinstance(missing, DisassemblyError) and "nvdisasm" not in str(missing):
            raise
        pytest.skip(f"no compiler, or no disassembler for its output: {missing}")
    found = program.function("stream_matrix").instructions
    copies = [i for i in found if i.opcode.startswith("UTMALDG")]
    kinds = {(i.opcode, "desc[" in str(i)) for i in copies}
    assert kinds == {
        (op, hint) for op in ("UTMALDG.2D", "UTMALDG.3D", "UTMALDG.2D.MULTICAST") for hint in (False, True)
    }
    assert not [i for i in found if i.opcode.startswith(("LDL", "STL"))], "no local memory"


def test_options(streams: Any) -> None:
    assert streams.parsed([]).shapes == list(streams.SHAPES) and streams.parsed([]).seconds == 40
    given = streams.parsed(["--shapes", "16384x8192", "--only", "nn", "--only", "tn"])
    assert given.shapes == [(16384, 8192)] and given.only == ["nn", "tn"]
    for bad in ("16384", "32768x64", "axb", "0x64"):
        with pytest.raises(SystemExit):
            streams.parsed(["--shapes", bad])


def test_a_dry_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "hgemm_streams.py"), "--dry-run", "--out", str(tmp_path)]
    run = subprocess.run(
        [*command, "--seconds", "60"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr
    told = json.loads((tmp_path / "hgemm-streams-dry.json").read_text())
    summary, rows = told["summary"], told["rows"]
    assert summary["modelled"] and not summary["wrong"] and len(summary["shapes"]) == 3
    of = summary["shapes"]["16384x16384"]
    # the modelled clock: nn 2 % faster, and the more is under way the faster
    assert of["tn"][2] == pytest.approx(0.98, abs=0.01) and "flight=192" in of["best nn"]["name"]
    assert 0.99 < of["null of nn"][2] < 1.01
    assert {r["kind"] for r in rows} == {"base", "null", "variant", "other"}
    assert any(r.get("phase") == "together" and "small=" in r["name"] for r in rows)
    lasting = {r["name"] for r in rows if "evict_last" in r["name"]}
    apart = {r["name"] for r in rows if r.get("phase") == "evict_last"}
    assert lasting and apart == lasting | {"nn", "tn"}, "timed apart, beside the bases"
    assert not [r for r in rows if r["name"] in lasting and r.get("phase") != "evict_last"]
    for row in rows:
        low, high = row["warm_ratio"][1:]
        assert low <= row["warm_ratio"][0] <= high and row["rounds"] >= 4
