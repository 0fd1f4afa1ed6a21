"""Builds the emulator for instances with an epilogue and runs launches on it, compared with FP64."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs import epilogue, joined
from sassafras.gemm.configs.epilogue import Batch, Lines
from sassafras.gemm.configs.fallback import FallbackInstance
from sassafras.gemm.configs.joined import JoinedEarlyInstance, JoinedStreamInstance
from sassafras.gemm.configs.persistent import PersistentInstance
from sassafras.gemm.configs.persistent_folded import FoldedPersistentInstance
from sassafras.gemm.configs.persistent_pair import PairInstance
from sassafras.gemm.configs.registry import Config, Instance
from sassafras.gemm.configs.small import SmallInstance
from sassafras.gemm.configs.split_k import SplitKInstance
from sassafras.gemm.configs.split_k_early import EarlyInstance
from sassafras.gemm.configs.split_k_folded import FoldedInstance
from sassafras.gemm.configs.stream import StreamInstance
from sassafras.gemm.configs.unaligned import UnalignedInstance
from sassafras.gemm.problem.launch import Launch
from sassafras.gemm.problem.shape import Shape

from .hopper_launch import emulated, rounded, values

HERE = Path(__file__).parent
NAN = 0x7FFF  # in FP16 and BF16
_BIASES = ("bias", "second_bias", "third_bias")
#: buffers of a job that tensor maps are of, by their places
BUFFERS = ("a", "b", "c", "bias", "addend", "norm", *joined.OPERANDS)
_W, _C, _L, _S, _R = PersistentInstance, SplitKInstance, SmallInstance, FallbackInstance, StreamInstance
#: the compiled ones, small tiles standing for large ones of their kind; and paths that none takes yet
INSTANCES: list[Instance] = [
    _L("tn", 1, 2, 4, epilogue=True),
    _L("nn", 1, 2, 4, epilogue=True),
    _L("tn", 1, 2, 2, epilogue=True, swap_ab=True),
    _L("tn", 1, 1, 2, epilogue=True),
    _S("tn", 64, 64, 2, 2, 4, 1, epilogue=True),
    _S("nn", 64, 64, 2, 2, 4, 1, epilogue=True),
    _S("nn", 32, 32, 2, 2, 4, epilogue=True),
    _C("tn", 64, 64, 6, epilogue=True),
    _C("nn", 64, 64, 6, dtype="bf16", epilogue=True),
    _C("nn", 64, 32, 8, swap_ab=True, epilogue=True),
    _W("tn", 128, 64, 2, True, 3, cluster_m=2, epilogue=True),
    _W("nn", 128, 64, 2, False, 3, cluster_m=1, dtype="bf16", epilogue=True),
    _W("tn", 64, 16, 1, False, 3, swap_ab=True, epilogue=True),
    UnalignedInstance("tn", 64, 64, 3, epilogue=True),
    UnalignedInstance("tn", 64, 128, 3, epilogue=True),
    _R(2, 2, 64, epilogue=True),
    _R(4, 1, 64, dtype="bf16", epilogue=True),
    FoldedInstance("tn", 64, 64, 3, epilogue=True),
    FoldedPersistentInstance("tn", 128, 64, 2, False, 3, cluster_m=2, epilogue=True, stagger=2),
    _L("tn", 1, 2, 4, epilogue=True, dtype="bf16"),
    _L("tn", 1, 2, 2, epilogue=True, swap_ab=True, dtype="bf16"),
    _S("nn", 64, 64, 2, 2, 4, 1, epilogue=True, dtype="bf16"),
    UnalignedInstance("tn", 64, 64, 3, epilogue=True, dtype="bf16"),
]
#: weights that are read early
EARLY = [
    EarlyInstance("tn", 64, 16, 3, swap_ab=True, epilogue=True),
    EarlyInstance("tn", 64, 32, 2, swap_ab=True, dtype="bf16", epilogue=True, k_blocks=2),
    EarlyInstance("tn", 64, 48, 3, epilogue=True, k_blocks=2),
]
#: SwiGLU's pair of many rows: the compiled tiles with fewer stages, and small ones
PAIRS = [
    PairInstance("tn", 128, 64, 2, False, 3, epilogue=True, stagger=2),
    PairInstance("tn", 64, 64, 2, True, 3, cluster_m=2, dtype="bf16", epilogue=True),
    PairInstance("tn", 128, 128, 2, True, 2, cluster_m=1, cluster_n=2, epilogue=True),
    PairInstance("tn", 128, 256, 2, False, 2, cluster_m=2, dtype="bf16", epilogue=True, stagger=1),
    PairInstance("tn", 192, 144, 3, False, 2, epilogue=True),
    PairInstance("tn", 64, 128, 1, False, 2, cluster_m=2, cluster_n=2, epilogue=True),
    PairInstance("tn", 64, 224, 2, True, 2, cluster_m=2, dtype="bf16", epilogue=True),
]
#: rows that are normalised first
NORMED = [
    _R(2, 2, 64, epilogue=True, norm=True),
    _R(4, 1, 64, epilogue=True, norm=True),
    _R(2, 2, 64, dtype="bf16", epilogue=True, norm=True),
    _R(4, 1, 64, dtype="bf16", epilogue=True, norm=True),
]
#: products that share A
JOINED = [
    JoinedStreamInstance(2, 2, 64, epilogue=True),
    JoinedStreamInstance(4, 1, 64, dtype="bf16", epilogue=True),
    JoinedStreamInstance(2, 2, 64, epilogue=True, norm=True),
    JoinedStreamInstance(4, 1, 64, dtype="bf16", epilogue=True, norm=True),
    JoinedEarlyInstance("tn", 64, 16, 3, swap_ab=True, epilogue=True),
    JoinedEarlyInstance("tn", 64, 32, 2, swap_ab=True, dtype="bf16", epilogue=True, k_blocks=2),
    JoinedEarlyInstance("tn", 64, 48, 3, epilogue=True, k_blocks=2),
    JoinedEarlyInstance("tn", 64, 32, 3, dtype="bf16", epilogue=True),
]
#: of theirs the ring for one product that is not above
ALONE = [EarlyInstance("tn", 64, 32, 3, dtype="bf16", epilogue=True)]


@dataclass(frozen=True)
class Case:
    """What is launched beside a product of tight matrices."""

    alpha: float = 1.0
    beta: float = 0.0
    activation: str | None = None
    bias: bool = False
    batch: int = 1
    shared: str = ""  # the operand, a or b, that all products of the batch share
    gap: int = 0  # elements between lines, of every operand
    apart: bool = False  # the addend is not C itself; of SwiGLU, up's weight does not lie behind the gate's
    size: float = 1.0  # of a's elements, a power of two
    gamma: float = 1.0  # of norm's elements
    eps: float = 1e-3
    norm: bool = False  # a's rows are normalised first
    cuts: tuple[int, ...] = ()  # columns at which the second product and the third begin
    without: int = -1  # of joined products the one that has no bias
    columns: tuple[int, int] | None = None  # of C that are asked for: from, to
    early: bool = False  # b, up's weight and norm are read before the launch ahead has ended
    shift: int = 0  # bytes by which operands miss a 256-byte boundary
    policy: int = 0
    repeats: int = 1
    seed: int = 0


@dataclass
class Emulator:
    """A compiled emulator and the instances it knows."""

    path: Path
    instances: list[Instance]

    def run(self, config: Config, shape: Shape, case: Case, folder: Path) -> str:
        """Launch and compare; what is wrong, ``""`` when nothing is."""
        dtype, (m, n, k) = config.dtype, (shape.m, shape.n, shape.k)
        rng = np.random.default_rng(case.seed)
        count = case.batch
        a = rounded(case.size * rng.standard_normal((1 if case.shared == "a" else count, m, k)), dtype)
        b = rounded(rng.standard_normal((1 if case.shared == "b" else count, k, n)), dtype)
        pair = case.activation == epilogue.SWIGLU
        width = n // 2 if pair else n
        old = rounded(rng.standard_normal((count, m, width)), dtype)
        bias = rounded(rng.standard_normal(n), dtype)
        b, old, bias = (x[..., slice(*(case.columns or (None,)))] for x in (b, old, bias))
        shape = Shape(m, n := b.shape[2], k)
        width = width if pair else n
        gamma, x = rounded(case.gamma * (1 + 0.1 * rng.standard_normal(k)), dtype), values(a, dtype)
        if case.norm:  # products with the weight are rounded
            factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + case.eps)
            x = x * values(gamma, dtype)
            scale = 2.0**-2 / case.size  # of which all products are numbers of FP16, no small ones
            x = (
                values(rounded(x * scale, "fp16"), dtype) / scale
                if dtype == "fp16"
                else values(nearest(x), dtype)
            )
            x = x * factor
        exact = case.alpha * (x @ values(b, dtype))
        if case.beta and not pair:
            exact = exact + case.beta * values(old, dtype)
        sections = np.split(np.arange(n), case.cuts)
        if case.bias:
            of_parts = [
                (number != case.without) * values(bias[s], dtype) for number, s in enumerate(sections)
            ]
            exact = exact + np.concatenate(of_parts)
        factors = np.zeros(1)
        if pair:  # either sum's error is multiplied by the other
            gate, up = exact[..., :width], exact[..., width:]
            exact, factors = activated("silu", gate) * up, np.abs(gate) + np.abs(up)
        else:
            exact = activated(case.activation, exact)
        laid = b if config.layout == "nn" else b.transpose(0, 2, 1)
        parts = [_gaps(x, case.gap) for x in (a, laid, old)]
        added = parts[1][:, width:] if pair and case.apart else parts[2]
        for name, part in zip("ab", parts, strict=False):
            (part[:, :width] if pair and case.apart and name == "b" else part).tofile(folder / name)
        files = dict.fromkeys(joined.OPERANDS, "-")
        for name, section in zip(("b", "second", "third"), sections, strict=False) if case.cuts else ():
            files[name] = name
            parts[1][:, section].tofile(folder / name)
        # what C holds must not be read where beta is 0, nor where the addend lies elsewhere
        own = bool(case.beta) and not case.apart
        (parts[2] if own else np.full_like(parts[2], NAN)).tofile(folder / "c")
        added.tofile(folder / "addend")
        for number, (name, section) in enumerate(zip(_BIASES, sections, strict=False)):
            files[name] = name if case.bias and number != case.without else "-"
            bias[section].tofile(folder / name)
        gamma.tofile(folder / "norm")
        lines = Lines(*(part.shape[2] for part in parts))
        steps = [part.shape[1] * part.shape[2] if part.shape[0] > 1 else 0 for part in parts]
        plan = epilogue.launch(
            config, shape, alpha=case.alpha, beta=case.beta, activation=case.activation,
            batch=Batch(count, *steps), lines=lines, eps=case.eps,
        )  # fmt: skip
        plan = replace(plan, scalars={**plan.scalars, "early": int(case.early)})
        if case.cuts:
            more = joined.launch(config, shape, case.cuts, lines, case.early)
            plan = replace(more, scalars={**plan.scalars, **more.scalars, "eps": plan.scalars["eps"]})
        addend = "-" if not case.beta else "c" if own else "addend"
        words = [self.instances.index(config.instance), *plan.grid, *plan.cluster, plan.threads]
        words += [plan.shared_bytes, case.policy, case.seed, case.repeats, case.shift]
        words.append(plan.workspace_bytes)
        first, second = ("b", "a") if config.swap_ab else ("a", "b")
        words += [first, second, "c", files["bias"], addend, "norm" if case.norm else "-"]
        words += [files[name] for name in joined.OPERANDS]
        words += parameters(config, plan)
        (folder / "job").write_text(" ".join(map(str, words)))
        done = subprocess.run(
            [str(self.path), "job"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            return done.stderr.strip() or f"status {done.returncode}"
        stores = np.fromfile(folder / "c.stores", np.uint8).reshape(parts[2].shape)
        if (stores[:, :, :width] != 1).any() or stores[:, :, width:].any():
            return "an element was not stored once, or a gap was"
        bits = np.fromfile(folder / "c", np.uint16).reshape(parts[2].shape)[:, :, :width]
        c = values(np.ascontiguousarray(bits), dtype)
        unit = 2.0**-8 if dtype == "bf16" else 2.0**-11
        allowed = np.abs(exact) * unit + 1e-5 * np.sqrt(k) * max(1.0, abs(case.alpha)) + 2.0**-20
        wrong = ~(np.abs(c - exact) <= allowed + 1e-6 * np.sqrt(k) * factors)
        if not wrong.any():
            return ""
        return f"{wrong.sum()} of {wrong.size} wrong, first at {[int(i[0]) for i in np.nonzero(wrong)]}"


def nearest(x: np.ndarray) -> np.ndarray:
    """Patterns of the nearest BF16, to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def parameters(config: Config, plan: Launch) -> list[Any]:
    """The job's words for the kernel's parameters; operands are the kernel's own."""
    words: list[Any] = []
    for name, kind in config.instance.parameters:
        if kind == "tensormap":
            tensor = plan.tensor_maps[name]
            flat = len(tensor.dims) == 2
            words += ["map2" if flat else "map", BUFFERS.index(tensor.operand), *tensor.dims, *[1] * flat]
            words += [*tensor.strides, *[0] * flat]
            words += [*tensor.box[:2], tensor.swizzle]
        elif kind.startswith("*"):
            words.append(name)
        else:
            words += ["float" if kind == "f32" else "int", plan.scalars[name]]
    return words


def activated(name: str | None, x: np.ndarray) -> np.ndarray:
    """The activation in FP64."""
    if name is None:
        return x
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert name == "gelu"
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gaps(matrices: np.ndarray, gap: int) -> np.ndarray:
    return np.ascontiguousarray(np.pad(matrices, ((0, 0), (0, 0), (0, gap)), constant_values=NAN))


def build(
    shared: Path,
    instances: Sequence[Instance] = (*INSTANCES, *EARLY, *NORMED, *PAIRS, *JOINED, *ALONE),
    edit: Callable[[str], str] = lambda text: text,
) -> Emulator:
    """Compile the emulator for these instances, once a run; `edit` spoils the kernels' text.

    One program for all tests of kernels as they are: each instance more takes it 0.1 s, each program 2 s.
    """
    files = {p.name: edit(p.read_text()) for p in KERNELS.glob("*.cuh") if not p.name.startswith("ptx")}
    files["ptx_rows.cuh"] = (HERE / "rows_emulator.hpp").read_text()
    files["ptx_stream.cuh"] = (HERE / "stream_emulator.hpp").read_text()
    files["ptx.cuh"] = '#pragma once\n#include "ptx_hopper.cuh"\n'
    table = " ".join(f"X({number}, {kernel(i)})" for number, i in enumerate(instances))
    return Emulator(emulated(shared, "emulated_epilogue.cpp", files, INSTANCES=table), list(instances))


def kernel(instance: Instance) -> str:
    """The C++ type, with its commas hidden from the preprocessor."""
    return instance.template.replace(",", " COMMA")
