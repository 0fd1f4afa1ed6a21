"""Attention of one query row: the kernel on the CPU against FP64, its SASS, its configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs import attention
from sassafras.gemm.configs.attention import AttentionInstance, Strides
from sassafras.gemm.configs.epilogue import bits
from sassafras.gemm.problem.launch import SHARED_LIMIT

from .hopper_launch import HERE, LATE, RANDOM, emulated, rounded, spoiling, values
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
INSTANCES = attention.INSTANCES

#: what stands in the text; what it does where this fault is asked for; what is then found
FAULTS = (
    (
        "wait_for_predecessors();\n        u32",
        "if (emulator::spoilt != 1) wait_for_predecessors();\n        u32",
        "does not wait",
    ),
    ("(CHUNKS + splits)", "(CHUNKS + splits + (emulator::spoilt == 2))", "wait for each other forever"),
    ("64 * half, row <", "64 * half, emulator::spoilt == 3 || row <", "outside"),
    ("if (at + g + 8 * half >=", "if (emulator::spoilt != 4 && at + g + 8 * half >=", "wrong"),
    ("ok = at + g + 8 * half <", "ok = emulator::spoilt == 5 || at + g + 8 * half <", "outside"),
    ("q + 32 * i, g <", "q + 32 * i, emulator::spoilt == 6 || g <", "outside"),
    ("= weight(most[h], now)", "= emulator::spoilt == 7 ? 1.0f : weight(most[h], now)", "wrong"),
    ("sum += factor * stats", "sum += (emulator::spoilt == 8 ? 1.0f : factor) * stats", "wrong"),
    ("store_global(p.c", "if (emulator::spoilt != 9 || at) store_global(p.c", "not stored once"),
    ("ok = first + row <", "ok = emulator::spoilt == 10 || first + row <", "outside"),
)  # fmt: skip
TAIL = len(FAULTS) + 1
_TAIL = ("if (at + TILE > p.keys)", f"if (emulator::spoilt != {TAIL} && at + TILE > p.keys)")
_SEEN = ("&& added[i] != HIDDEN", f"&& (emulator::spoilt == {TAIL + 1} || added[i] != HIDDEN)")


def build(shared: Path) -> Path:
    """The emulator of the kernels, compiled once a run; they have a fault only where one is asked for."""
    names = ("epilogue", "sm90_decode_attention")
    edit, changed = spoiling(*(texts[:2] for texts in FAULTS), _TAIL, _SEEN)
    files = {f"{name}.cuh": edit((KERNELS / f"{name}.cuh").read_text()) for name in names}
    assert sorted(changed) == sorted(before for before, *_ in (*FAULTS, _TAIL, _SEEN)), (
        "each text stands in one place"
    )
    for name in ("rows", "stream", "attention"):
        files[f"ptx_{name}.cuh"] = (HERE / f"{name}_emulator.hpp").read_text()
    files["emulated_job.hpp"] = (HERE / "emulated_job.hpp").read_text()
    table = " ".join(f"X({n}, {i.template.replace(',', ' COMMA')})" for n, i in enumerate(INSTANCES))
    return emulated(shared, "emulated_attention.cpp", files, INSTANCES=table)


class Case:
    """Operands as they lie in memory, poisoned where nothing is to be read, and the exact result.

    Args:
        mask: ``""``, ``head`` (one a head), ``batch`` (one a batch), ``all``.
        gap: rows of a longer cache behind the keys; with `apart`, rows of all groups lie side by side.
        size: of scores.
        masked: share of masked keys, `blocks`: of blocks of 16.
    """

    def __init__(
        self, instance: AttentionInstance, batch: int, groups: int, group: int, keys: int, *, seed: int = 0,
        mask: str = "", gap: int = 0, apart: bool = False, size: float = 1.0, masked: float = 0.3,
        blocks: bool = False,
    ) -> None:  # fmt: skip
        self.instance, self.seed = instance, seed
        self.sizes = batch, groups, group, keys
        rng, head, dtype = np.random.default_rng(seed), instance.head, instance.dtype
        nan = rounded(np.full(1, np.nan), dtype)[0]
        heads, rows = groups * group, keys + gap
        q = rounded(size * rng.standard_normal((batch, heads, head)), dtype)
        laid = (batch, rows, groups, head) if apart else (batch, groups, rows, head)
        cached = []
        for _ in range(2):
            x = np.full(laid, nan, np.uint16)
            seen = x.transpose(0, 2, 1, 3) if apart else x
            seen[:, :, :keys] = rounded(rng.standard_normal((batch, groups, keys, head)), dtype)
            cached.append((x, seen[:, :, :keys]))
        row = head * groups if apart else head
        group_step = head if apart else head * rows
        steps = (groups * rows * head, group_step, row) * 2
        added, mask_steps = np.zeros((batch, heads, keys)), (0, 0)
        self.arrays = {"q": q, "k": cached[0][0], "v": cached[1][0]}
        if mask:
            shape = {"head": (batch, heads), "batch": (batch, 1), "all": (1, 1)}[mask]
            given = rng.standard_normal((*shape, keys))
            drawn = rng.random((*shape, -(-keys // 16) if blocks else keys)) < masked
            given[np.repeat(drawn, 16, -1)[..., :keys] if blocks else drawn] = -np.inf
            wide = np.full((*shape, keys + 3), nan, np.uint16)  # rows that begin anywhere
            wide[..., :keys] = rounded(given, dtype)
            self.arrays["mask"] = wide
            added = values(wide[..., :keys].copy(), dtype) + np.zeros_like(added)
            mask_steps = int(shape[0] > 1) * shape[1] * (keys + 3), int(shape[1] > 1) * (keys + 3)
        self.strides = Strides(heads * head, head, *steps, *mask_steps)
        self.scale = float(np.float32(head**-0.5))
        self.operands = q, *(np.ascontiguousarray(x) for _, x in cached), added
        self.exact()

    def hide(self, keys: Any) -> None:
        """Mask keys for all heads; an exact result follows. The mask is there."""
        self.arrays["mask"][..., : keys.size][..., keys] = rounded(np.array(-np.inf), self.instance.dtype)
        self.operands[3][..., keys] = -np.inf
        self.exact()

    def exact(self) -> None:
        """The result in FP64, and the sum of its terms' sizes."""
        dtype, group = self.instance.dtype, self.sizes[2]
        q, *cached, added = self.operands
        k, v = (np.repeat(values(x, dtype), group, 1) for x in cached)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = self.scale * np.einsum("bhd,bhsd->bhs", values(q, dtype), k) + added
            most = scores.max(-1, keepdims=True)
            p = np.exp(scores - np.where(np.isinf(most), 0, most))
            total = p.sum(-1, keepdims=True)
            self.wanted = np.einsum("bhs,bhsd->bhd", p / np.where(total == 0, 1, total), v)
            self.weighed = np.einsum("bhs,bhsd->bhd", p / np.where(total == 0, 1, total), np.abs(v))

    def run(self, program: Path, folder: Path, splits: int, policy: int = LATE) -> Any:
        """C's patterns, or what is wrong."""
        instance, (batch, groups, group, keys) = self.instance, self.sizes
        asked = batch, groups, group, keys, self.strides, splits
        assert instance.why_illegal(*asked) is None
        plan = instance.launch(*asked)
        for name, array in {**self.arrays, "c": np.zeros(self.arrays["q"].shape, np.uint16)}.items():
            array.tofile(folder / name)
        words = [INSTANCES.index(instance), *plan.grid, plan.cluster[0], plan.threads, plan.shared_bytes]
        words += [policy, self.seed]
        words += [
            name if name in self.arrays or name == "c" else "-" for name in ("q", "k", "v", "mask", "c")
        ]
        for name, kind in instance.parameters:
            if kind.startswith("*"):
                words.append(name)
            else:
                words += ["float", bits(self.scale)] if kind == "f32" else ["int", plan.scalars[name]]
        (folder / "job").write_text(" ".join(map(str, words)))
        done = subprocess.run(
            [str(program), "job"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            return done.stderr.strip() or f"status {done.returncode}"
        if (np.fromfile(folder / "c.stores", np.uint8) != 1).any():
            return "an element was not stored once"
        return np.fromfile(folder / "c", np.uint16).reshape(self.arrays["q"].shape)

    def wrong(self, program: Path, folder: Path, splits: int, policy: int = LATE) -> str:
        """What is wrong, ``""`` when nothing is."""
        found = self.run(program, folder, splits, policy)
        if isinstance(found, str):
            return found
        unit = 2.0**-8 if self.instance.dtype == "bf16" else 2.0**-11
        # numerators and the result are rounded once each
        allowed = (np.abs(self.wanted) + self.weighed) * unit + 1e-5 + 1e-5 * self.weighed
        bad = ~(np.abs(values(found, self.instance.dtype) - self.wanted) <= allowed)
        return f"{bad.sum()} of {bad.size} wrong" if bad.any() else ""


@pytest.fixture(scope="module")
def program(shared: Path) -> Path:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_every_instance_is_right_at_boundaries(
    instance: AttentionInstance, program: Path, tmp_path: Path
) -> None:
    """Tiles that are full, a key short, a key long; warps and CTAs without a tile; all groups and splits."""
    masks = ("head", "batch", "all") if instance.masked else ("",)
    all_keys = (1, 15, 16, 17, 16 * instance.warps, 16 * instance.warps + 1, 16 * 8 * instance.warps + 17)
    for turn, keys in enumerate(all_keys):
        case = Case(
            instance, 1 + turn % 2, 1 + turn // 2 % 2, 1 + turn, keys, seed=turn, gap=turn % 3,
            mask=masks[turn % len(masks)], apart=turn % 2 == 1, size=(1.0, 8.0)[turn % 2],
        )  # fmt: skip
        for splits in (1, 2, 4, 8):
            assert case.wrong(program, tmp_path, splits) == "", f"{instance.name}, {case.sizes}, {splits}"


@needs_compiler
def test_random_launches_are_right(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    for turn in range(40):
        random_launch(rng, turn, program, tmp_path)


def random_launch(rng: np.random.Generator, turn: int, program: Path, folder: Path) -> None:
    """One of any sizes, alignments and order of events."""
    instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
    sizes = [int(rng.integers(1, most)) for most in (3, 4, 9)]
    sizes[2] *= (1, 1, 2, 3)[int(rng.integers(4))]  # parts of a group
    keys = int(rng.integers(1, (40, 200, 700)[turn % 3]))
    mask = ("head", "batch", "all")[int(rng.integers(3))] if instance.masked else ""
    case = Case(
        instance, *sizes, keys, seed=turn, mask=mask, gap=int(rng.integers(5)), apart=bool(rng.integers(2)),
        size=float(2.0 ** rng.integers(-3, 5)), masked=float(rng.random()), blocks=bool(rng.integers(2)),
    )  # fmt: skip
    splits, policy = 1 << int(rng.integers(4)), int(rng.integers(3))
    found = case.wrong(program, folder, splits, policy)
    assert found == "", f"{instance.name}, {sizes}, {keys} keys, {splits} splits, {mask}, {policy}, {turn}"


@needs_compiler
def test_bits_depend_on_a_heads_own_operands(program: Path, tmp_path: Path) -> None:
    """Not on the batch, on other groups, on the order of events, or on where its keys lie."""
    instance = INSTANCES[0]
    case = Case(instance, 3, 2, 4, 300)
    bits_of = [case.run(program, tmp_path, 4, policy) for policy in (LATE, RANDOM)]
    assert np.array_equal(*bits_of)
    alone = Case(instance, 1, 1, 4, 300)
    alone.arrays = {
        "q": case.arrays["q"][1:2, 4:],
        "k": case.arrays["k"][1:2, 1:],
        "v": case.arrays["v"][1:2, 1:],
    }
    assert np.array_equal(alone.run(program, tmp_path, 4)[0], bits_of[0][1, 4:])


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_masks_leave(dtype: str, program: Path, tmp_path: Path) -> None:
    """Nothing: zeros. All keys by the lowest number: their mean, if scores vanish beside it."""
    instance = AttentionInstance(dtype, 64, 4, True)
    lowest = rounded(np.array(-65504.0 if dtype == "fp16" else -3.3895313892515355e38), dtype)
    for splits in (1, 4):
        case = Case(instance, 1, 1, 4, 100, mask="head", masked=0.0)
        mask, v = case.arrays["mask"], case.arrays["v"]
        mask[0, 1, :100] = rounded(np.array(-np.inf), dtype)
        mask[0, 2, :100] = lowest
        mask[0, 3, :100] = lowest
        mask[0, 3, 99] = 0
        mask[0, 0, 7] = rounded(np.array(np.nan), dtype)
        found = values(case.run(program, tmp_path, splits), dtype)[0]
        assert np.isnan(found[0]).all() and (found[1] == 0).all()
        all_v = values(v[0, 0], dtype)
        assert dtype == "fp16" or np.allclose(found[2], all_v.mean(0), atol=1e-3)
        assert np.isfinite(found[2]).all() and np.array_equal(found[3], all_v[99])


@needs_compiler
@pytest.mark.parametrize("mask", ["all", "batch", "head"])
def test_tiles_that_no_head_sees_are_not_read(
    mask: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that is filled in part, padding ahead, gaps, the last key alone; more than 32 tiles a warp."""
    instance, hidden = AttentionInstance("bf16", 64, 4, True), np.uint16(0xFF80)
    rng = np.random.default_rng(3)
    for turn, (keys, splits) in enumerate(((500, 1), (500, 8), (2300, 1), (4500, 2))):
        for seen in (
            np.arange(keys) < 70,
            np.arange(keys) >= keys - 90,
            np.arange(keys) == keys - 1,
            np.repeat(rng.random(-(-keys // 16)) < 0.1, 16)[:keys] | (np.arange(keys) == 5),
        ):
            case = Case(instance, 2, 1, 3, keys, seed=turn, mask=mask, masked=0.0)
            case.hide(~seen)
            read = np.repeat(np.add.reduceat(seen, np.arange(0, keys, 16)) > 0, 16)[:keys]
            for name in ("k", "v"):
                case.arrays[name][:, :, ~read] = rounded(np.array(np.nan), "bf16")
            assert case.wrong(program, tmp_path, splits, turn % 3) == ""
    monkeypatch.setenv("SPOILT", str(TAIL + 1))
    assert "wrong" in case.wrong(program, tmp_path, splits)
    assert (case.arrays["mask"] == hidden).any()


@needs_compiler
def test_infinities_come_through(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from registers that a tile with fewer keys leaves as they are."""
    case = Case(INSTANCES[0], 1, 1, 4, 100)
    case.arrays["v"][0, 0, (99, 40), (3, 5)] = rounded(np.array(np.inf), "fp16")
    case.arrays["v"][0, 0, 5, 4] = rounded(np.array(np.nan), "fp16")
    for splits in (1, 4):
        found = values(case.run(program, tmp_path, splits), "fp16")[0]
        assert np.isposinf(found[:, (3, 5)]).all() and np.isnan(found[:, 4]).all()
        assert np.isfinite(np.delete(found, (3, 4, 5), 1)).all()
    monkeypatch.setenv("SPOILT", str(TAIL))
    assert np.isnan(values(case.run(program, tmp_path, 1), "fp16")[0, :, 5]).all()


@pytest.fixture(scope="module")
def right(program: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, int]]:
    """Launches, and their order of events, that are right without a fault."""
    sizes, folder = ((199, 0), (201, 40), (30, 0)), tmp_path_factory.mktemp("right")
    cases = [Case(INSTANCES[0], 1, 1, 3, keys, gap=gap, size=4.0) for keys, gap in sizes]
    runs = [(case, policy) for case in cases for policy in (LATE, RANDOM)]
    assert all(case.wrong(program, folder, 2, policy) == "" for case, policy in runs)
    return runs


@needs_compiler
@pytest.mark.parametrize("fault", range(1, len(FAULTS) + 1))
def test_a_spoilt_kernel_is_found(
    program: Path, right: list[tuple[Case, int]], tmp_path: Path, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOILT", str(fault))
    found = [case.wrong(program, tmp_path, 2, policy) for case, policy in right]
    assert any(FAULTS[fault - 1][2] in one for one in found), found


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_sass(instance: AttentionInstance, shared: Path) -> None:
    """The launch behind starts first, nothing is read before the wait; no spills, no sums in any order."""
    program = together(shared, INSTANCES)
    function = program.function(instance.name)
    opcodes = [i.opcode for i in function.instructions]
    loads = [number for number, op in enumerate(opcodes) if op.startswith("LDG")]
    assert opcodes.index("PREEXIT") < opcodes.index("ACQBULK") < loads[0]
    lines = [number for number, op in enumerate(opcodes) if op.startswith("CCTL.E.PF2")]
    assert len(lines) == instance.head // 64 and lines[-1] < opcodes.index("ACQBULK"), "lines come earlier"
    assert not [op for op in opcodes if "CONSTANT" in op], "may be moved ahead of the wait"
    wide = [op for op in opcodes if op.startswith("LDG") and ".128" in op]
    assert wide.count("LDG.E.EF.LTC256B.128") == 2 * instance.head // 8, "first tiles, next ones: K and V"
    assert len(wide) == 2 * instance.head // 8 + instance.head // 32, "and Q"
    assert len(loads) - len(wide) == 12 * instance.masked, "of its tiles, and which are seen"
    products = [op for op in opcodes if "MMA" in op]
    kind = ".BF16" if instance.dtype == "bf16" else ""
    assert products == [f"HMMA.16816.F32{kind}"] * (instance.head // 8)
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    assert not [op for op in opcodes if op.startswith(("ATOM", "RED"))], "sums have a fixed order"
    assert not [op for op in opcodes if op.startswith("MEMBAR.ALL.GPU")], "CTAs send without a fence"
    accepted(program, instance.name)
    sizes = parameter_sizes(program.cubin.entries[instance.name])
    of_kind = {"i32": 4, "f32": 4}
    assert sizes == [of_kind.get(kind, 8) for _, kind in instance.parameters]


def test_what_they_cannot_run() -> None:
    instance, strides = AttentionInstance("fp16", 128), Strides(*(1024,) * 8)

    def why(*sizes: int, strides: Strides = strides, splits: int = 1) -> str:
        return str(instance.why_illegal(*sizes, strides, splits))

    assert why(1, 8, 8, 512) == why(65535, 1, 1, 1, splits=8) == "None"
    assert why(1, 8, 9, 512) == why(1, 8, 16, 512) == why(1, 8, 32, 512) == "None", "in equal parts"
    assert "11 heads share" in why(1, 8, 11, 512) and "0 heads" in why(1, 8, 0, 512)
    assert "40 heads share" in why(1, 8, 40, 512)
    assert "a grid takes" in why(65536, 1, 1, 512) and "a grid takes" in why(1, 65536, 1, 512)
    assert "keys" in why(1, 8, 1, 0) and "keys" in why(1, 8, 1, 1 << 30)
    assert "CTAs of a cluster" in why(1, 8, 1, 512, splits=3)
    assert "no multiples of 8" in why(1, 8, 1, 512, strides=strides._replace(k_row=132))
    assert "no multiples of 8" in why(1, 8, 1, 512, strides=strides._replace(v_head=-8))
    assert why(1, 8, 1, 512, strides=strides._replace(k_batch=(1 << 31) - 8)) == "None"
    assert "32 bits" in why(1, 8, 1, 512, strides=strides._replace(k_batch=1 << 31))
    assert "reads no mask" in why(1, 8, 1, 512, strides=strides._replace(mask_head=1))
    masked = AttentionInstance("fp16", 128, 4, True)
    assert masked.why_illegal(1, 8, 1, 512, strides._replace(mask_head=3, mask_batch=5)) is None


def test_chosen() -> None:
    strides = Strides(*(1024,) * 8)

    def how(batch: int, groups: int, keys: int, head: int = 128, masked: bool = False) -> Any:
        found = attention.chosen("bf16", batch, groups, 4, keys, head, strides, masked)
        return found and (found[0].name.removeprefix("attention_bf16_"), found[1].cluster[0])

    assert how(1, 8, 512) == ("d128w4", 8) and how(1, 8, 512, 64, True) == ("d64w4m", 8)
    assert how(1, 8, 64) == ("d128w4", 1) and how(1, 8, 128) == ("d128w4", 2)
    assert how(1, 8, 4096) == how(1, 8, 1024) == ("d128w8", 8), "each warp has a tile"
    assert how(4, 4, 512) == ("d128w8", 4) and how(4, 8, 512) == ("d128w8", 2), "half of the multiprocessors"
    assert how(8, 8, 512) == ("d128w8", 2) and how(8, 8, 511 - 16) == ("d128w8", 1), "all, for two tiles each"
    assert how(16, 8, 512) == ("d128w8", 1) and how(32, 8, 512) == how(64, 8, 512) == ("d128w4", 1)
    assert how(128, 4, 512) == ("d128w4", 1) and how(129, 1, 512) is None and how(1, 8, 512, 96) is None
    assert how(16, 8, 4096) is None and how(16, 8, 4096, masked=True) == ("d128w8m", 1), "what is not hidden"
    assert attention.chosen("bf16", 1, 8, 11, 512, 128, strides, False) is None
    shared = attention.chosen("bf16", 1, 2, 16, 512, 128, strides, False)
    assert shared is not None and shared[1].grid == (16, 2, 1) and shared[1].cluster == (8, 1, 1)
    assert (shared[1].scalars["group"], shared[1].scalars["parts"]) == (8, 2)
    parted = [attention.chosen("bf16", batch, 4, 9, 512, 128, strides, False) for batch in (22, 23)]
    assert parted[0] is not None and parted[1] is None, "three parts each: more CTAs read as many keys again"
    found = attention.chosen("fp16", 2, 8, 4, 100, 128, strides, False)
    assert found is not None
    launch = found[1]
    assert launch.overlap and launch.grid == (1, 8, 2) and launch.cluster == (1, 1, 1)
    assert launch.threads == found[0].threads == 128
    assert launch.shared_bytes == attention.shared_of(1) <= SHARED_LIMIT
    many = attention.chosen("fp16", 64, 8, 4, 512, 128, strides, False)
    assert many is not None and many[1].shared_bytes == attention.shared_of(4) >= many[0].shared_bytes
    for count in range(1, 5):
        each = attention.shared_of(count) + 1024  # a multiprocessor has 228 KB, a CTA takes one more
        assert count * (each + 1024) <= 228 * 1024 < (count + 1) * each
    known = {name for name, kind in found[0].parameters if kind.startswith("i")}
    assert set(launch.scalars) == known, "the rest is given at each launch"
