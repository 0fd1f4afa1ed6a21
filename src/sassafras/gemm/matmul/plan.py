"""A configuration and a problem become a plan: what both launchers need but functions and addresses."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from ..configs import attention, epilogue, joined, registry, turned
from ..configs.epilogue import Batch, Lines
from ..configs.registry import Config
from ..problem.launch import Launch
from ..problem.shape import Shape
from .joined_problem import apart
from .problem import BETA, CONSTANT, DTYPES, NORM, Problem
from .turned_problem import NAMES

#: CUtensorMapDataType, CUtensorMapSwizzle
_MAP_TYPES = {"fp16": 6, "bf16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
#: parameters that are given by their names at each launch (`ReadCall.values`, workspace)
_GIVEN = ("workspace", "bias", "addend", "norm", "eps", "alpha", "beta", "activation", *joined.OPERANDS)
#: the names that launchers have for what attention's kernels are given at each launch
_ATTENTION = {name: f"stride{i}" for i, name in enumerate(attention.Strides._fields)} | {
    **{"q": "a", "k": "b", "v": "second", "mask": "third", "c": "c", "scale": "eps"}
}
_TURNED = {name: f"stride{i}" for i, name in enumerate(turned.Strides._fields)} | NAMES | {"eps": "eps"}
#: leading dimensions from here on overflow 32-bit offsets within a tile
_FAR = 1 << 22


class LaunchPlan(NamedTuple):
    """One launch of a plan.

    Attributes:
        grid, threads, shared, cluster: as the driver takes them.
        parameters: one tuple a parameter: ``("a",)``, ``("b",)``, ``("c",)``, a name of `_GIVEN`,
            ``("value", int)`` or ``("map", operand, type, dims, strides, box, swizzle)``. Operands are the
            problem's.
        overlap: it may start while the launch before is at work.
    """

    grid: tuple[int, int, int]
    threads: int
    shared: int
    cluster: tuple[int, int, int]
    parameters: tuple[tuple[Any, ...], ...]
    overlap: bool = False


class KernelPlan(NamedTuple):
    """How our kernels serve a problem.

    Attributes:
        launches: one, or two of which the second is launched right behind the first and shares its workspace.
        workspace: bytes.
    """

    launches: tuple[LaunchPlan, ...]
    workspace: int = 0


def why_illegal(config: Config, problem: Problem) -> str | None:
    """Why a configuration cannot serve a problem, None when it can."""
    if config.layout != problem.layout:
        return f"it reads {config.layout}, the tensors are {problem.layout}"
    if config.dtype != DTYPES[problem.dtype]:
        return f"it multiplies {config.dtype}"
    if config.instance.epilogue or not problem.plain:
        asked = problem.batch, problem.lines, problem.pair, bool(problem.extra & NORM)
        why = epilogue.why_illegal(config, problem.shape, *asked)
    else:
        why = config.why_illegal(problem.shape) or _why_no_gaps(config, problem)
    if why is None and not problem.aligned and not config.any_alignment:
        return "an address is not a multiple of 16 bytes"
    return why


def _why_no_gaps(config: Config, problem: Problem) -> str | None:
    """Why a kernel without an epilogue cannot leave gaps between lines, if there are any."""
    lines = problem.lines
    if lines == problem.tight:
        return None
    if epilogue.uneven(config, lines):
        return "a leading dimension is not a multiple of 8"
    if max(lines.a, lines.b, lines.c) >= _FAR:
        return "lines lie too far apart for 32-bit offsets within a tile"
    try:
        plan(config, problem)
    except ValueError as error:
        return str(error)
    return None


def first_legal(problem: Problem) -> Config | None:
    """The first configuration of all that can serve a problem, however slowly; None where none can."""
    if problem.plain:
        every = chain(registry.configurations(), registry.other_configurations())
        return next((config for config in every if why_illegal(config, problem) is None), None)
    asked = problem.pair, bool(problem.extra & NORM)
    return next(iter(epilogue.configurations(*epilogue_problem(problem), *asked)), None)


def epilogue_problem(problem: Problem) -> tuple[Shape, str, str, Batch, Lines, bool]:
    """Shape, layout, type, batch, lines and alignment, as `configs.epilogue` and its selector take them."""
    kinds, aligned = (problem.layout, DTYPES[problem.dtype]), bool(problem.aligned)
    return problem.shape, *kinds, problem.batch, problem.lines, aligned


def plan(config: Config, problem: Problem) -> KernelPlan:
    """The plan.

    Raises:
        SassafrasError: the configuration cannot run the problem (`Config.launch`).
        ValueError: gaps between lines cannot be told to it.
    """
    lines, tight, beta = problem.lines, problem.tight, float(problem.extra & BETA)
    if config.instance.epilogue:  # its launch knows of gaps
        where, asked = (config, problem.shape), problem.activation
        launch = epilogue.launch(*where, beta=beta, activation=asked, batch=problem.batch, lines=lines)
        tight = lines
    else:
        launch = config.launch(problem.shape)
    if problem.extra & CONSTANT and "early" in launch.scalars:
        launch = replace(launch, scalars={**launch.scalars, "early": 1})
    role = _role(config)
    first = _launch_plan(config.instance, launch, role, lines, tight)
    names = {name for name, _ in config.instance.parameters}
    told = {item[1] for item in first.parameters if item[0] == "map"}
    for name, operand in role.items():  # by address: the leading dimension has to be among the scalars
        gap = getattr(lines, operand) != getattr(tight, operand)
        if gap and operand not in told and f"ld{name}" not in names:
            raise ValueError(f"this kernel is not told the leading dimension of {operand}")
    launches = [first]
    if launch.then is not None:
        launches.append(_launch_plan(launch.then.instance, launch.then.launch, role, lines, tight))
    return KernelPlan(tuple(launches), launch.workspace_bytes)


def plan_joined(config: Config, problem: Problem) -> KernelPlan:
    """The plan of products that share their rows. Raises SassafrasError: it cannot run them."""
    whole, cuts = apart(problem)
    launch = joined.launch(config, whole.shape, cuts, whole.lines, bool(problem.extra & CONSTANT))
    made = _launch_plan(config.instance, launch, _role(config), whole.lines, whole.lines)
    return KernelPlan((made,), launch.workspace_bytes)


def _role(config: Config) -> dict[str, str]:
    """The kernel's names: swapped configurations call the problem's B "a"."""
    return {"a": "b", "b": "a", "c": "c"} if config.swap_ab else {"a": "a", "b": "b", "c": "c"}


def plan_alone(instance: Any, launch: Launch) -> KernelPlan:
    """The plan of a kernel that multiplies nothing (`configs.rows`)."""
    lines = Lines(0, 0, 0)  # which its launch knows
    return KernelPlan((_launch_plan(instance, launch, {name: name for name in "abc"}, lines, lines),))


def plan_attention(instance: Any, launch: Launch) -> KernelPlan:
    """The plan of attention, or of what is turned ahead of it: strides are given at each launch
    (`configs.attention`, `configs.turned`)."""
    given = _ATTENTION if isinstance(instance, attention.AttentionInstance) else _TURNED
    made = tuple(
        (given[name],) if name in given else ("value", launch.scalars[name])
        for name, _ in instance.parameters
    )
    where = launch.grid, launch.threads, launch.shared_bytes, launch.cluster
    return KernelPlan((LaunchPlan(*where, made, launch.overlap),))


def _launch_plan(
    instance: Any, launch: Launch, role: dict[str, str], lines: Lines, tight: Lines
) -> LaunchPlan:
    made: list[tuple[Any, ...]] = []
    for name, kind in instance.parameters:
        if kind == "tensormap":
            described = launch.tensor_maps[name]
            operand = role.get(described.operand, described.operand)
            there = described
            if tight != lines:
                there = described.spread(getattr(tight, operand), getattr(lines, operand))
            kinds = _MAP_TYPES[there.dtype], there.dims, there.strides, there.box, _SWIZZLES[there.swizzle]
            made.append(("map", operand, *kinds))
        elif name in _GIVEN:
            made.append((name,))
        elif kind.startswith("*"):
            made.append((role[name],))
        else:
            value = launch.scalars[name]
            if name in ("lda", "ldb", "ldc"):
                operand = role[name[2]]
                before, after = getattr(tight, operand), getattr(lines, operand)
                if value == before:
                    value = after
                elif before != after:
                    raise ValueError(f"{name} is not a plain leading dimension of this kernel")
            made.append(("value", value & 0xFFFFFFFFFFFFFFFF))
    return LaunchPlan(
        launch.grid, launch.threads, launch.shared_bytes, launch.cluster, tuple(made), launch.overlap
    )
