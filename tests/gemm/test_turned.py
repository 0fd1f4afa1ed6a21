"""Rotary embedding with a cache's row: the kernel on the CPU against FP64, its SASS, its configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs import turned
from sassafras.gemm.configs.turned import Strides, TurnedInstance

from .hopper_launch import HERE, emulated, rounded, spoiling, values
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
INSTANCES = turned.INSTANCES

#: what stands in the text; what it does where this fault is asked for; what is then found
FAULTS = (
    ("wait_for_predecessors();", "if (emulator::spoilt != 1) wait_for_predecessors();", "does not wait"),
    ("live = line <", "live = emulator::spoilt == 2 || line <", "outside"),
    ("far(batch, p.cos_batch)", "far(batch, emulator::spoilt == 3 ? 0 : p.cos_batch)", "wrong"),
    ("given < 0 ?", "emulator::spoilt != 4 && given < 0 ?", "trap"),
    ("at >= p.rows", "at >= p.rows + (emulator::spoilt == 5)", "store"),
    ("at < 0 ||", "emulator::spoilt != 6 && at < 0 ||", "outside"),
    ("if (turns) turn", "if (turns || emulator::spoilt == 7) turn", "wrong"),
    (": -value[1][j]", ": (emulator::spoilt == 8 ? 1 : -1) * value[1][j]", "wrong"),
    ("(u64)number[1] << 32", "(emulator::spoilt == 9 ? 0 : (u64)number[1] << 32)", "stored where"),
    ("far(head, p.keys_head)", "far(emulator::spoilt == 10 ? 0 : head, p.keys_head)", "stored twice"),
    ("of_q ? 0 : turns ?", "of_q ? 0 : turns || emulator::spoilt == 11 ?", "stored where"),
    ("store_global(to + HALF", "if (emulator::spoilt != 12) store_global(to + HALF", "not stored"),
    ("cosines + half * HALF", "cosines + half * (emulator::spoilt != 13) * HALF", "wrong"),
    ("far((int)at, row)", "far((int)at, emulator::spoilt == 14 && of_q ? p.keys_row : row)", "store"),
    ("p.heads + head, D)", "p.heads + head, D + 8 * (emulator::spoilt == 15))", "store"),
    ("(of_q ? p.q_norm", "(of_q || emulator::spoilt == 16 ? p.q_norm", "keys"),
    ("if (!live)", "if (!live && emulator::spoilt != 17)", "store"),
    ("if (norms) normalise", "if (norms && emulator::spoilt != 18) normalise", "wrong"),
    ("weights + half * HALF", "weights + half * HALF * (emulator::spoilt != 19)", "wrong"),
    ("apart = UNITS / 2", "apart = UNITS >> (1 + (emulator::spoilt == 20))", "wrong"),
    ("(1.0f / D) + eps", "(1.0f / D) + eps * (emulator::spoilt != 21)", "wrong"),
)  # fmt: skip


#: operands that are files
FILES = ("q", "k", "v", "cos", "sin", "at", "q_norm", "k_norm", "out")


def build(shared: Path) -> Path:
    """The emulator of the kernels, compiled once a run; they have a fault only where one is asked for."""
    edit, changed = spoiling(*(texts[:2] for texts in FAULTS))
    files = {f"{name}.cuh": (KERNELS / f"{name}.cuh").read_text() for name in ("epilogue", "sm90_rows")}
    files["sm90_turned.cuh"] = edit((KERNELS / "sm90_turned.cuh").read_text())
    assert sorted(changed) == sorted(before for before, *_ in FAULTS), "each text stands in one place"
    files["emulated_job.hpp"] = (HERE / "emulated_job.hpp").read_text()
    for name in ("rows", "stream", "turned"):
        files[f"ptx_{name}.cuh"] = (HERE / f"{name}_emulator.hpp").read_text()
    table = " ".join(f"X({n}, {i.template.replace(',', ' COMMA')})" for n, i in enumerate(INSTANCES))
    return emulated(shared, "emulated_turned.cpp", files, INSTANCES=table)


def laid(rng: np.random.Generator, gaps: int, head: int, *counts: int) -> tuple[np.ndarray, list[int], int]:
    """Where elements lie: an index of each, in any order of dimensions and with up to `gaps` gaps of 8; the
    strides of all but the last dimension; how many places there are."""
    strides, step = [0] * len(counts), head + 8 * int(rng.integers(gaps + 1))
    order = rng.permutation(len(counts)) if gaps else range(len(counts))[::-1]
    for dimension in order:
        strides[dimension] = step
        step = step * counts[dimension] + 8 * int(rng.integers(gaps + 1))
    index = np.arange(head)
    for stride, count in zip(strides[::-1], counts[::-1], strict=True):
        index = index + (stride * np.arange(count)).reshape(-1, *[1] * index.ndim)
    return index, strides, step


class Case:
    """Operands as they lie in memory, poisoned where nothing is to be read, and the exact result.

    Args:
        gaps: the most that lie between lines.
        apart: a sequence has a cos and a sin of its own.
        eps: of the norms of queries and keys; None: they have none.
    """

    def __init__(
        self, instance: TurnedInstance, batch: int, heads: int, groups: int, rows: int, at: int, *,
        seed: int = 0, gaps: int = 2, apart: bool = True, eps: float | None = None,
    ) -> None:  # fmt: skip
        self.instance, self.sizes, self.at, self.eps = instance, (batch, heads, groups, rows), at, eps
        rng, head, dtype = np.random.default_rng(seed), instance.head, instance.dtype
        self.arrays, given, strides = {"at": np.array([at])}, {}, {}
        for name, lines in (("q", (heads,)), ("k", (groups,)), ("v", (groups,)), ("cos", ()), ("sin", ())):
            table = not lines and not apart
            index, steps, size = laid(rng, gaps, head, 1 if table else batch, *lines)
            bits = rounded(rng.standard_normal(index.shape), dtype)
            self.arrays[name] = np.full(size, rounded(np.array(np.nan), dtype))
            self.arrays[name][index] = bits
            given[name] = values(bits, dtype) if name != "v" else bits
            strides |= dict(zip((f"{name}_batch", f"{name}_head"), [0] if table else steps, strict=False))
        #: of what is written: where it begins, where its elements lie, what they are
        self.begins, self.written, end = {}, {}, 0
        for name in ("keys", "values", "c"):
            lines = (heads,) if name == "c" else (groups, rows)
            index, steps, size = laid(rng, gaps * (name != "c"), head, batch, *lines)
            end += 8 * int(rng.integers(1, 4))
            self.begins[name], end = end, end + size
            strides |= dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), steps, strict=False))
            self.written[name] = self.begins[name] + (index if name == "c" else index[:, :, at % rows])
        self.arrays["out"] = rng.integers(1 << 16, size=end + 8).astype(np.uint16)
        cos, sin = (given[name][:, None] for name in ("cos", "sin"))
        for name in ("q", "k") if eps is not None else ():
            self.arrays[f"{name}_norm"] = bits = rounded(rng.standard_normal(head), dtype)
            root = np.sqrt((given[name] ** 2).mean(-1, keepdims=True) + eps)
            given[name] = given[name] / root * values(bits, dtype)

        def turn(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            parts = x * cos, np.concatenate([-x[..., head // 2 :], x[..., : head // 2]], -1) * sin
            return parts[0] + parts[1], np.abs(parts[0]) + np.abs(parts[1])

        self.wanted, self.parts = {"values": given["v"]}, {}
        for name, x in (("keys", given["k"]), ("c", given["q"])):
            self.wanted[name], self.parts[name] = turn(x)
        self.strides = Strides(**{name: strides[name] for name in Strides._fields})

    def wrong(self, program: Path, folder: Path) -> str:
        """What is wrong, ``""`` when nothing is; ``trap`` where it trapped and wrote nothing."""
        instance, asked = self.instance, (*self.sizes, self.strides)
        assert instance.why_illegal(*asked) is None
        plan = instance.launch(*asked)
        for name, array in self.arrays.items():
            array.tofile(folder / name)
        words: list[Any] = [INSTANCES.index(instance), *plan.grid[:2], plan.threads, plan.shared_bytes]
        words += [self.begins[name] for name in ("keys", "values", "c")]
        words += [name if name in self.arrays else "-" for name in FILES]
        eps = int(np.float32(self.eps or 0).view(np.uint32))
        for name, kind in instance.parameters:
            scalar = ("float", eps) if kind == "f32" else ("int", plan.scalars.get(name))
            words += [name] if kind.startswith("*") else scalar
        (folder / "job").write_text(" ".join(map(str, words)))
        done = subprocess.run(
            [str(program), "job"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode not in (0, 4):
            return done.stderr.strip() or f"status {done.returncode}"
        found, stores = np.fromfile(folder / "out", np.uint16), np.fromfile(folder / "out.stores", np.uint8)
        if done.returncode == 4:
            return "it stored, then trapped" if stores.any() else "trap"
        inside = -self.sizes[3] <= self.at < self.sizes[3]
        wanted = np.zeros_like(stores)
        for index in self.written.values():
            wanted[index] = inside
        if (stores > wanted).any() or (found != self.arrays["out"])[wanted == 0].any():
            return "stored where nothing is to be"
        if (stores < wanted).any():
            return "an element was not stored"
        for name, index in self.written.items():
            if name == "values":
                bad = found[index] != self.wanted[name]
            else:  # both products are exact in FP32, norms nearly: their sum is rounded, then to the type
                unit = 2.0**-8 if instance.dtype == "bf16" else 2.0**-11
                allowed = np.abs(self.wanted[name]) * (unit + 1e-6) + 2.0**-25 * (instance.dtype == "fp16")
                allowed += self.parts[name] * 2.0**-20 * (self.eps is not None)
                bad = ~(np.abs(values(found[index], instance.dtype) - self.wanted[name]) <= allowed)
            if bad.any():
                return f"{name}: {bad.sum()} of {bad.size} wrong"
        return ""


@pytest.fixture(scope="module")
def program(shared: Path) -> Path:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_every_instance_is_right_at_boundaries(
    instance: TurnedInstance, program: Path, tmp_path: Path
) -> None:
    """CTAs that are full, a head short, a head long; first and last rows, from both ends; a cache of one."""
    full = 128 * 16 // instance.head  # heads of a CTA
    turns = (
        (1, 1, 1, 1, 0), (2, full - 2, 1, 1, -1), (1, full - 3, 1, 5, 4), (3, full - 1, 1, 5, -5),
        (1, 2, 2, 7, -1), (1, 32, 8, 3, 1), (2, 5, full, 2, 0),
    )  # fmt: skip
    for turn, sizes in enumerate(turns):
        for eps in (None, 1e-6, 0.5):
            case = Case(instance, *sizes, seed=turn, gaps=turn % 3, apart=turn % 2 == 0, eps=eps)
            assert case.wrong(program, tmp_path) == "", f"{instance.name}, {sizes}, {eps}"


@needs_compiler
def test_random_launches_are_right(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for turn in range(40):
        instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
        batch, heads, groups, rows = (int(rng.integers(1, most)) for most in (5, 40, 9, 30))
        at, gaps, apart = int(rng.integers(-rows, rows)), int(rng.integers(4)), bool(rng.integers(2))
        eps = [None, 1e-5][int(rng.integers(2))]
        case = Case(instance, batch, heads, groups, rows, at, seed=turn, gaps=gaps, apart=apart, eps=eps)
        found = case.wrong(program, tmp_path)
        assert found == "", f"{instance.name}, {case.sizes}, {at}, {gaps}, {apart}, {turn}"


OUTSIDE = (7, 8, -8, 1 << 31, (1 << 32) + 1, -(1 << 32) + 1, (1 << 63) - 1, -(1 << 63))


@needs_compiler
def test_a_row_outside_of_the_cache_traps(program: Path, tmp_path: Path) -> None:
    """And nothing is written."""
    for turn, at in enumerate(OUTSIDE):
        case = Case(INSTANCES[turn % len(INSTANCES)], 2, 3, 2, 7, at)
        assert case.wrong(program, tmp_path) == "trap", at


@needs_compiler
@pytest.mark.parametrize("fault", range(1, len(FAULTS) + 1))
def test_a_spoilt_kernel_is_found(
    program: Path, tmp_path: Path, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    eps = 0.5 if fault > 15 else None
    cases = [Case(INSTANCES[0], 2, 3, 2, 7, at, eps=eps) for at in (2, -1, 7, -8, (1 << 32) + 1)]
    assert [case.wrong(program, tmp_path) for case in cases] == ["", "", *["trap"] * 3]
    monkeypatch.setenv("SPOILT", str(fault))
    wanted, right = FAULTS[fault - 1][2], ["", "", *["trap"] * 3]
    found = [case.wrong(program, tmp_path) for case in cases]
    assert any(wanted in one != other for one, other in zip(found, right, strict=True)), found


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_sass(instance: TurnedInstance, shared: Path) -> None:
    """The launch behind starts first; no thread reads or ends before the wait; accesses of 16 bytes."""
    program = together(shared, INSTANCES)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    loads = [number for number, op in enumerate(opcodes) if op.startswith("LD") and op[:3] != "LDC"]
    wait = opcodes.index("ACQBULK")
    assert opcodes.index("PREEXIT") < wait < min(loads[0], opcodes.index("EXIT"))
    assert [opcodes[number] for number in loads] == ["LDG.E.64", *["LDG.E.128"] * 8], "the row, then operands"
    stores = [number for number, op in enumerate(opcodes) if op.startswith("ST")]
    assert [opcodes[number] for number in stores] == ["STG.E.128"] * 2, "and no spills"
    assert loads[-1] < opcodes.index("BPT.TRAP") < stores[0]
    assert not [op for op in opcodes if op.startswith(("ATOM", "RED", "MEMBAR", "BAR"))]
    accepted(program, instance.name)
    sizes = parameter_sizes(program.cubin.entries[instance.name])
    assert sizes == [4 if kind in ("i32", "f32") else 8 for _, kind in instance.parameters]


def test_what_they_cannot_run() -> None:
    instance, strides = TurnedInstance("fp16", 128), Strides(*(1024,) * 14)

    def why(*sizes: int, **changed: int) -> str:
        return str(instance.why_illegal(*sizes, strides._replace(**changed)))

    assert why(1, 32, 8, 512) == why(65535, 1, 1, 1) == why(1, 1, 1, (1 << 31) - 1) == "None"
    assert "1 to 65535 of 1 or more" in why(65536, 1, 1, 512)
    for sizes in ((0, 32, 8), (1, 0, 8), (1, 32, 0)):
        assert "1 to 65535 of 1 or more" in why(*sizes, 512)
    most = (1 << 31) // 8 - 16 - 2
    assert why(1, most, 1, 512) == "None" and "counted with 32 bits" in why(1, most + 1, 1, 512)
    assert "counted with 32 bits" in why(2, most // 2 + 1, 1, 512)
    assert "a cache of 0 rows" in why(1, 32, 8, 0) and "2147483648 rows" in why(1, 32, 8, 1 << 31)
    for name in Strides._fields:
        assert "no multiples of 8" in why(1, 32, 8, 512, **{name: 132})
        assert "no multiples of 8" in why(1, 32, 8, 512, **{name: -8})
        assert why(1, 32, 8, 512, **{name: 0}) == why(1, 32, 8, 512, **{name: (1 << 31) - 8}) == "None"
        assert "32 bits" in why(1, 32, 8, 512, **{name: 1 << 31})


def test_chosen() -> None:
    found = turned.chosen("bf16", 2, 32, 8, 128, 512)
    assert found is not None
    instance, launch = found
    assert instance.name == "turned_bf16_d128" and instance.all_shared and instance in INSTANCES
    assert launch.overlap and launch.grid == (3, 2, 1) and launch.cluster == (1, 1, 1)
    assert launch.threads == instance.threads == 128 and launch.shared_bytes == 0
    assert not any(launch.scalars[name] for name in Strides._fields), "given at each launch"
    assert set(launch.scalars) == {name for name, kind in instance.parameters if kind[0] == "i"}
    assert [launch.scalars[name] for name in ("heads", "groups", "rows")] == [32, 8, 512]
    assert instance.parameters[10] == ("at", "*i64") and "long long *at" in instance.source
    small = turned.chosen("fp16", 64, 32, 8, 64, 1)
    assert small is not None and small[0].name == "turned_d64" and small[1].grid == (2, 64, 1)
    assert (
        turned.chosen("fp16", 129, 32, 8, 64, 512) is None
        and turned.chosen("fp16", 1, 32, 8, 96, 512) is None
    )
    assert turned.chosen("fp32", 1, 32, 8, 64, 512) is None and turned.chosen("fp16", 1, 32, 8, 64, 0) is None
