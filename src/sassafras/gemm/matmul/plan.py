"""A configuration and a problem become a plan: what both launchers need but the addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from sassafras.cuda.tensor_maps import L2_PROMOTION_128

from ..configs import registry
from ..configs.registry import Config, dtype
from ..problem.launch import Launch, TensorMap
from ..problem.shape import Shape
from .problem import DTYPES, Problem

#: CUtensorMapDataType, CUtensorMapSwizzle
_MAP_TYPES = {"fp16": 6, "bf16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """How to launch a kernel for a problem.

    Attributes:
        grid, threads, shared, cluster: as the driver takes them.
        parameters: one tuple a parameter: ``("a",)``, ``("b",)``, ``("c",)``, ``("workspace",)``,
            ``("counters",)``, ``("value", int)`` or ``("map", operand, type, dims, strides, box, element
            strides, interleave, swizzle, promotion, fill)``. Operands are the problem's.
        workspace: bytes.
        counters: words that are zero before and after each launch.
        overlap: it may start while the launch before is at work.
        then: a second launch of the same call, right behind this one: its instance and its plan, which shares
            the workspace.
    """

    grid: tuple[int, int, int]
    threads: int
    shared: int
    cluster: tuple[int, int, int]
    parameters: tuple[tuple[Any, ...], ...]
    workspace: int
    counters: int
    overlap: bool
    then: tuple[Any, KernelPlan] | None = None

    @property
    def behind(self) -> tuple[Any, ...]:
        """What both launchers take of a plan that is the second of a call, but for its function."""
        return self.grid, self.threads, self.shared, self.cluster, self.parameters, self.overlap


def why_illegal(config: Config, problem: Problem) -> str | None:
    """Why a configuration cannot serve a problem, None when it can."""
    if config.layout != problem.layout:
        return f"it reads {config.layout}, the tensors are {problem.layout}"
    if dtype(config) != DTYPES[problem.dtype]:
        return f"it multiplies {dtype(config)}"
    if not getattr(config, "deterministic", True):
        return "two launches may differ"
    if why := config.why_illegal(Shape(problem.m, problem.n, problem.k)):
        return why
    any_alignment = bool(getattr(config, "any_alignment", False))
    if not problem.aligned and not any_alignment:
        return "an address is not a multiple of 16 bytes"
    if not problem.natural:
        any_line = any_alignment or getattr(config, "any_line", False)
        if not any_line and any(ld % 8 for ld in (problem.lda, problem.ldb, problem.ldc)):
            return "a leading dimension is not a multiple of 8"
        if max(problem.lda, problem.ldb, problem.ldc) >= 1 << 22:
            return "lines lie too far apart for 32-bit offsets within a tile"
        try:
            plan(config, problem)
        except ValueError as error:
            return str(error)
    return None


def first_legal(problem: Problem) -> Config | None:
    """The first configuration of all that can serve a problem, however slowly; None where none can."""
    every = chain(registry.configurations(), registry.other_configurations())
    return next((config for config in every if why_illegal(config, problem) is None), None)


def plan(config: Config, problem: Problem) -> KernelPlan:
    """The plan. Raises SassafrasError (`Config.launch`), or ValueError when gaps cannot be told to it."""
    launch = config.launch(Shape(problem.m, problem.n, problem.k))
    # the kernel's names: swapped configurations call the problem's B "a"
    role = {"a": "b", "b": "a", "c": "c"} if config.swapped else {"a": "a", "b": "b", "c": "c"}
    leading = {"a": problem.lda, "b": problem.ldb, "c": problem.ldc}
    tight = {
        "a": problem.m if problem.transposed & 2 else problem.k,
        "b": problem.k if problem.transposed & 1 else problem.n,
        "c": problem.n,
    }
    made = _plan(config.instance, launch, role, leading, tight)
    _every_gap_is_told(made.parameters, config, leading, tight, role)
    if launch.then is None:
        return made
    second = launch.then
    return replace(made, then=(second.instance, _plan(second.instance, second.launch, role, leading, tight)))


def _plan(
    instance: Any, launch: Launch, role: dict[str, str], leading: dict[str, int], tight: dict[str, int]
) -> KernelPlan:
    """Of one launch."""
    made: list[tuple[Any, ...]] = []
    for name, kind in instance.parameters:
        if kind == "tensormap":
            made.append(_map(launch.tensor_maps[name], role, leading, tight))
        elif name in ("workspace", "counters"):
            made.append((name,))
        elif kind.startswith("*"):
            made.append((role[name],))
        else:
            value = launch.scalars[name]
            if name in ("lda", "ldb", "ldc"):
                operand = role[name[2]]
                if value == tight[operand]:
                    value = leading[operand]
                elif leading[operand] != tight[operand]:
                    raise ValueError(f"{name} is not a plain leading dimension of this kernel")
            made.append(("value", value & 0xFFFFFFFFFFFFFFFF))
    return KernelPlan(
        launch.grid,
        launch.threads,
        launch.shared_bytes,
        launch.cluster,
        tuple(made),
        launch.workspace_bytes,
        launch.counters,
        launch.overlap,
    )


def _map(
    described: TensorMap, role: dict[str, str], leading: dict[str, int], tight: dict[str, int]
) -> tuple[Any, ...]:
    operand = role[described.operand]
    there = described.spread(tight[operand], leading[operand])
    return (
        "map",
        operand,
        _MAP_TYPES[there.dtype],
        there.dims,
        there.strides,
        there.box,
        (1,) * len(there.dims),
        0,
        _SWIZZLES[there.swizzle],
        L2_PROMOTION_128,
        0,
    )


def _every_gap_is_told(
    made: tuple[tuple[Any, ...], ...],
    config: Config,
    leading: dict[str, int],
    tight: dict[str, int],
    role: dict[str, str],
) -> None:
    """An operand passed by address needs its leading dimension among the scalars, if that is not tight."""
    names = {name for name, _ in config.instance.parameters}
    by_map = {item[1] for item in made if item[0] == "map"}
    for kernel_name, operand in role.items():
        if leading[operand] != tight[operand] and operand not in by_map and f"ld{kernel_name}" not in names:
            raise ValueError(f"this kernel is not told the leading dimension of {operand}")
