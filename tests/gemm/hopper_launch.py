"""Builds the Hopper emulator for some instances and runs launches on it, as the host describes them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs.persistent import PersistentConfig, PersistentInstance
from sassafras.gemm.configs.persistent_folded import FoldedPersistentInstance
from sassafras.gemm.configs.split_k import SplitKConfig, SplitKInstance
from sassafras.gemm.configs.split_k_folded import FoldedInstance
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance
from sassafras.gemm.configs.tma_wgmma import LAYOUTS
from sassafras.gemm.configs.unaligned import UnalignedConfig, UnalignedInstance
from sassafras.gemm.problem.shape import Shape
from tests.shared import compiled

HERE = Path(__file__).parent
Instance = PersistentInstance | SplitKInstance | UnalignedInstance | StreamInstance
Config = PersistentConfig | SplitKConfig | UnalignedConfig | StreamConfig
_KINDS = {PersistentInstance: "ws", SplitKInstance: "cs", UnalignedInstance: "any", StreamInstance: "st"}
_KINDS |= {FoldedInstance: "cs", FoldedPersistentInstance: "wf"}
#: gcc looks for garbage late: there are gigabytes for the few hundred MB that it fills
_ROOM = ("--param=ggc-min-expand=1000", "--param=ggc-min-heapsize=500000")
LATE, RANDOM, EAGER = 0, 1, 2

_W, _C = PersistentInstance, SplitKInstance
#: faults are planted in these
SPLIT, LEAD = _C("nn", 128, 64, 3), _W("tn", 256, 32, 2, False, 3, stagger=2)
TALL = _W("tn", 128, 80, 2, True, 3, cluster_m=2, swap_ab=True, store_stages=1)
FOLDS = FoldedPersistentInstance("tn", 128, 64, 2, False, 3, stagger=2)
#: every path: layouts, cooperative, ping-pong, clusters, two blocks a warpgroup, swapped, BF16, few stages
INSTANCES: list[Instance] = [
    _W("tn", 128, 64, 2, False, 3),
    _W("nn", 128, 128, 2, False, 3, cluster_m=2),
    _W("nn", 128, 64, 2, False, 2, cluster_n=2),
    _W("tn", 64, 32, 2, True, 4),
    _W("nt", 128, 64, 2, True, 3, dtype="bf16"),
    _W("tt", 256, 64, 2, False, 3),
    _W("nn", 64, 16, 1, False, 3, swap_ab=True),
    _W("tn", 128, 32, 2, False, 3, swap_ab=True),
    _W("tn", 192, 96, 3, False, 3, store_stages=1),
    _W("tn", 64, 64, 2, True, 4, cluster_m=2),
    _W("tn", 128, 112, 2, True, 3, cluster_m=2, store_stages=4),
    _W("nn", 128, 192, 2, True, 2, cluster_n=2),
    SPLIT,
    _C("nn", 64, 32, 5, swap_ab=True),
    _C("tn", 64, 16, 6, swap_ab=True, k_blocks=2),
    _C("nt", 64, 64, 4, dtype="bf16"),
    _C("tt", 128, 32, 4),
    _W("nt", 128, 192, 2, True, 2, cluster_n=2),
    _W("nt", 128, 128, 2, True, 2, cluster_m=2),
    _C("tn", 64, 32, 3, swap_ab=True, k_blocks=2),
    _C("tt", 64, 64, 2, dtype="bf16", k_blocks=2),
    _W("nn", 128, 128, 2, False, 4, cluster_m=2, stagger=3),
    LEAD,
    _W("tn", 128, 64, 2, True, 3, cluster_m=2, cluster_n=2),
    _W("nn", 128, 128, 2, False, 4, cluster_m=2, cluster_n=2, stagger=3),
    _W("tn", 64, 64, 2, True, 3, cluster_m=1, cluster_n=4),
    _W("tn", 128, 32, 2, True, 2, cluster_m=4, cluster_n=2),
    _C("nn", 128, 64, 4, stagger=3),
    _W("tn", 128, 152, 2, True, 2, cluster_n=2, store_stages=1),
    _W("nn", 128, 168, 2, True, 3, swap_ab=True),
    TALL,
    _W("nn", 64, 64, 2, True, 3, cluster_n=1, swap_ab=True, store_stages=3, dtype="bf16"),
    FoldedInstance("tn", 64, 64, 3),
    FoldedInstance("nn", 128, 64, 4, dtype="bf16"),
    FOLDS,
    FoldedPersistentInstance("nn", 128, 64, 2, False, 4, cluster_m=1, cluster_n=2, dtype="bf16", stagger=3),
    FoldedPersistentInstance("tn", 128, 80, 2, False, 2, cluster_m=2, store_stages=1, stagger=1),
    FoldedPersistentInstance("tn", 64, 32, 1, False, 3),
]
#: rows of any length
UNALIGNED: list[Instance] = [
    UnalignedInstance("tn", 64, 64, 3), UnalignedInstance("tn", 128, 128, 3),
    UnalignedInstance("tn", 64, 256, 4), UnalignedInstance("tn", 64, 128, 6),
    UnalignedInstance("tn", 64, 64, 4, dtype="bf16"),
]  # fmt: skip
#: fewer warps and stages than chunks, more, BF16
STREAM: list[Instance] = [
    StreamInstance(2, 2, 64),
    StreamInstance(4, 1, 64, dtype="bf16"),
    StreamInstance(2, 3, 128),
]


@dataclass
class Emulator:
    """A compiled emulator and the instances it knows."""

    path: Path
    instances: list[Instance]

    def run(
        self, config: Config, shape: Shape, folder: Path, *, policy: int = LATE, seed: int = 0,
        repeats: int = 1, fault: int = 0, thrifty: bool = False,
    ) -> str:  # fmt: skip
        """Launch and compare with FP64; what is wrong, ``""`` when nothing is.

        Args:
            thrifty: a copy that asks for rows outside of its operand is wrong.
        """
        a, b, exact = operands(config, shape, seed)
        a.tofile(folder / "a")
        b.tofile(folder / "b")
        np.zeros((shape.m, shape.n), np.uint16).tofile(folder / "c")
        plan = config.launch(shape)
        first, second = (1, 0) if config.swap_ab else (0, 1)
        place = {"a": first, "b": second, "c": 2}
        words: list[Any] = [self.instances.index(config.instance), *plan.grid]
        words += [*plan.cluster, plan.threads, plan.shared_bytes, policy, seed, repeats, fault]
        words.append(int(thrifty))
        named = [name for name, kind in config.instance.parameters if kind == "i32"]
        words += [len(named), *(plan.scalars[name] for name in named)]
        maps = [plan.tensor_maps[n] for n, kind in config.instance.parameters if kind == "tensormap"]
        words.append(len(maps))
        for tensor in maps:
            rank = len(tensor.dims)
            words += [place[tensor.operand], rank, *tensor.dims, *tensor.strides, *tensor.box, tensor.swizzle]
        words += [plan.workspace_bytes, "a", "b", "c"]
        (folder / "job").write_text(" ".join(map(str, words)))
        done = subprocess.run(
            [str(self.path), "job"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            return done.stderr.strip() or f"status {done.returncode}"
        bits = np.fromfile(folder / "c", np.uint16).reshape(shape.m, shape.n)
        c = values(bits, config.dtype)
        unit = 2.0**-8 if config.dtype == "bf16" else 2.0**-11
        allowed = np.abs(exact) * unit + 1e-5 * np.sqrt(shape.k) + 2.0**-25
        wrong = ~(np.abs(c - exact) <= allowed)
        if not wrong.any():
            return ""
        rows, columns = np.nonzero(wrong)
        return f"{wrong.sum()} of {wrong.size} wrong, first at {rows[0]}, {columns[0]}"


def operands(config: Config, shape: Shape, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A and B as they lie in memory (16-bit patterns), and the exact product."""
    rng = np.random.default_rng(seed)
    a = rounded(rng.standard_normal((shape.m, shape.k)), config.dtype)
    b = rounded(rng.standard_normal((shape.k, shape.n)), config.dtype)
    exact = values(a, config.dtype) @ values(b, config.dtype)
    a_mn, b_mn = LAYOUTS[config.layout]
    return np.ascontiguousarray(a.T if a_mn else a), np.ascontiguousarray(b if b_mn else b.T), exact


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """16-bit patterns of FP16 or (truncated) BF16."""
    if dtype == "fp16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """FP64 values of 16-bit patterns."""
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def build(
    shared: Path,
    instances: Sequence[Instance] = (*INSTANCES, *UNALIGNED, *STREAM),
    edit: Callable[[str], str] | None = None,
) -> Emulator:
    """Compile the emulator for these instances, once a run; `edit` spoils the kernels' text.

    One program for all tests of kernels as they are: each instance more takes it 0.1 s, each program 2 s.
    """
    kernels = (
        "hopper_tile",
        "epilogue",
        "sm90_gemm_persistent",
        "sm90_gemm_split_k",
        "sm90_gemm_unaligned",
        "sm90_gemm_stream",
    )
    files = {f"{name}.cuh": (KERNELS / f"{name}.cuh").read_text() for name in kernels}
    if edit is not None:
        files = {name: edit(text) for name, text in files.items()}
    files["ptx_rows.cuh"] = (HERE / "rows_emulator.hpp").read_text()
    files["ptx_stream.cuh"] = (HERE / "stream_emulator.hpp").read_text()
    table = " ".join(
        f"X({number}, {i.template.replace(',', ' COMMA')}, {_KINDS[type(i)]})"
        for number, i in enumerate(instances)
    )
    return Emulator(emulated(shared, "emulated_hopper.cpp", files, INSTANCES=table), list(instances))


def spoiling(*faults: tuple[str, str]) -> tuple[Callable[[str], str], list[str]]:
    """An edit that puts these faults (text, text instead) into kernels, and the list of those it found.

    A fault's text says where it is another: `emulator::spoilt` is the number in the variable ``SPOILT``. A
    build takes seconds, and one serves all faults.
    """
    found: list[str] = []

    def edit(text: str) -> str:
        for before, after in faults:
            found.extend([before] * text.count(before))
            text = text.replace(before, after)
        return text

    return edit, found


def emulated(shared: Path, source: str, files: dict[str, str], **tables: str) -> Path:
    """Compile one of our programs with these kernels.

    What stands in for ptx_hopper.cuh is compiled once a run: more than half of the time of most programs.
    """
    command = ["g++", "-std=c++17", "-fconcepts", "-O1", *_ROOM]
    names = {"ptx_hopper.cuh": "hopper_emulator.hpp", "lane_emulator.hpp": "lane_emulator.hpp"}
    header = {name: (HERE / file).read_text() for name, file in names.items()}
    folder = compiled(shared, header, [*command, "-w", "-x", "c++-header", "ptx_hopper.cuh"])
    command += ["-include", str(folder / "ptx_hopper.cuh"), f"-I{folder}", "-DCOMMA=,"]
    command += ["-static", "-o", "emulated"]
    command += [*(f"-D{name}={table}" for name, table in tables.items()), source]
    return compiled(shared, {**files, source: (HERE / source).read_text()}, command) / "emulated"
