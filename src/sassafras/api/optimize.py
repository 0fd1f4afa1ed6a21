"""`optimize`: where frontends, spaces, strategies, evaluators, devices and the store meet."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sassafras import search
from sassafras.cluster import Pool
from sassafras.cluster.islands import IslandsJob, PoolDevice
from sassafras.core import Budget, Device, DeviceError, Kernel, SearchError, Space, Workload
from sassafras.cuda import ahead
from sassafras.frontend.limit import COMPILE_SECONDS, within
from sassafras.frontend.ptx import of as ptx_space
from sassafras.frontend.ptxas_options import available
from sassafras.jobs.job import Job
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, open_device, opened_store
from sassafras.jobs.rates import work_of
from sassafras.jobs.result import Result
from sassafras.schedule.spaces import SPACES, space_of
from sassafras.search import Progress, Strategy
from sassafras.store import Store
from sassafras.validate import Validator

from . import ptx_search
from .check import refuse_wrong
from .compiler_search import CompilerJob
from .compiler_space import CompilerJudge, CompilerSpace
from .instruction_costs import informed
from .live import of_launch
from .ptxas_options import load as load_ptxas_options

#: spaces whose candidates are judged by results; `schedule.spaces` has the others
BY_RESULTS = ("ptx", "compiler")
#: seconds of search by the effort that a user names
EFFORTS = {"quick": "10s", "normal": "60s", "full": "10m"}


def optimize(
    target: str | Path | Workload | Callable[..., Any],
    *args: Any,
    strategy: str | Strategy | type | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    budget: str | Budget | None = None,
    effort: str = "normal",
    device: str | Device = "auto",
    seed: int = 0,
    case: str | None = None,
    arch: str | None = None,
    ptxas: str | Path | None = None,
    ptxas_options: str | Path | None = None,
    ptxas_controls: Sequence[str] | None = None,
    store: str | Path | Store | bool | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    space: str | Callable[[Kernel], Space[Any, Any]] | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    check: bool = True,
    compile_timeout: float = COMPILE_SECONDS,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    **kwargs: Any,
) -> Result:
    """Search a faster schedule for a kernel, prove the winner legal, measure it afresh, and keep it.

    The same call, made again after an interruption, goes on where it stopped; after it finished, it returns
    the stored result immediately.

    Args:
        target: a workload; or what `sassafras.targets.load` reads: ``file.py[:attribute]``,
            ``file.toml``, ``suite:NAME[/CASE]``; or a launch, ``optimize(kernel[grid], *args, **kwargs)``
            with tensors on a GPU or, for the timing model, on the CPU (`sassafras.workload_of`).
        strategy: a name of `sassafras.search.names()`, or your own strategy (class or object). By default
            ``"guided"``, which found most on an H200; ``"anneal"`` in a space of your own,
            of which it asks no more than moves.
        settings: fields of a strategy given by name or class.
        preset: a paper's protocol instead of a strategy: ``"cuasmrl"`` or ``"sip"``; `settings` change it.
        budget: for example ``"60s"``, ``"3000e"`` (evaluations), ``"60s,3000e"``; None: the
            preset's, or that of `effort`. Seconds are the whole wait: at least half of them are searched,
            and ten more, or a third of a long budget, may be needed.
        effort: ``"quick"`` (10 s), ``"normal"`` (60 s) or ``"full"`` (10 min).
        device: ``"cuda"``, ``"model"`` (the timing model, no GPU), ``"auto"`` (CUDA where there is a GPU), or
            your own `Device`.
        seed: of everything random in the search.
        case: name of the workload's case, by default its first.
        arch: architecture to compile for, by default the GPU's, or ``sm_90a`` on the timing model.
        ptxas: another ptxas to make the baseline with (same PTX, same flags); by default the frontend's own.
        ptxas_options: a choice that `sassafras ptxas-options` wrote: its kernel is the baseline.
        ptxas_controls: in the spaces ptx and compiler, options of ptxas with a file each, ``--OPTION=FILE``.
        store: path or `Store`; None for the default path, False for none.
        out: folder to write the winner's cubin and JSON to, or None.
        fresh: start over even if the store holds this search.
        space: ``"swaps"`` (the default), ``"control"``, ``"renaming"`` or ``"blocks"`` (`schedule.spaces`),
            ``"ptx"`` (`frontend.ptx`: nothing is proved, results are compared bitwise), ``"compiler"`` (ptx,
            then schedules of its best), or what makes the space to search from the baseline kernel; the
            spaces of schedules take the strategy's `space_options`.
        cluster: search on every GPU of a Ray cluster, an independent search each (``"auto"`` or
            ``HOST:PORT``; see `docs/guides/cluster.md`); with ``device="model"`` on every CPU.
        workers: how many of them to use, by default all.
        check: before a modelled run, check the case in Triton's interpreter (`sassafras.check`), and refuse
            what is wrong; a GPU checks by itself.
        compile_timeout: seconds that the kernel's compilation may take.
        progress: called after each new outcome.
        stage: called with a line of text when another part of the work begins.

    Raises:
        SassafrasError: one of its subclasses, with what is wrong, where, and what to do.
    """
    asked, began = locals(), time.monotonic()
    say = stage or (lambda text: None)
    if cluster is None:
        ahead.begin(device)
    if workers is not None and cluster is None:
        raise SearchError("there are workers only in a cluster", hint="--cluster auto, or HOST:PORT")
    if preset is not None:
        if strategy is not None:
            raise SearchError("a preset names its strategy", hint=f"leave out {strategy!r} or {preset!r}")
        protocol = search.preset(preset)
        strategy, settings = protocol.strategy, {**protocol.settings, **(settings or {})}
        budget = protocol.budget if budget is None else budget
    if by_results := judged_by_results(space):
        ptx_search.check_asked(str(space), ptxas_options, cluster, strategy)
    elif ptxas_controls:
        raise SearchError("controls are for --space ptx, compiler and ptxas-options", hint=f"not {space!r}")
    if space == "compiler":
        strategy = search.Descent
    elif strategy is None:
        strategy = "guided" if space is None or isinstance(space, str) else "anneal"
    chosen = search.get(strategy, settings)
    if effort not in EFFORTS:
        raise SearchError(f"there is no effort {effort!r}", hint=", ".join(EFFORTS))
    limit = Budget.of(EFFORTS[effort] if budget is None else budget)
    if callable(target):
        given = {name: value for name, value in _OPTIONS.items() if asked[name] != value}
        target = of_launch(target, args, kwargs, given, device if isinstance(device, str) else "auto", arch)
    elif args or kwargs:
        raise TypeError(f"optimize() takes no {', '.join(kwargs) or 'further arguments'} with this target")
    with ExitStack() as stack:
        stack.callback(ahead.drop)
        pool = None if cluster is None else stack.enter_context(_pool(cluster, device, workers, say))
        opened: Device
        if pool is not None and pool.device == "cuda":
            opened = PoolDevice(pool)
        else:
            opened = open_device(device, arch)
        opened = ptx_search.device_for(opened) if by_results else opened
        stack.enter_context(closing(opened))
        workload = load_workload(target)  # after the device, whose processes import meanwhile
        which = workload.case(case)
        kept = stack.enter_context(opened_store(store))
        say(f"compiling {workload.name} {which.name}")
        if (begin := getattr(opened, "begin", None)) is not None:
            begin(workload, which)
        chosen_arch = arch or getattr(opened, "arch", None) or DEFAULT_ARCH
        tool = {} if ptxas is None else {"ptxas": str(ptxas)}
        notes: tuple[str, ...] = ()
        if ptxas_options is None:
            baseline = within(
                compile_timeout,
                lambda: workload.build(which, chosen_arch, **tool),
                f"{workload.name}, case {which.name}",
                "--compile-timeout SECONDS, or compile_timeout=, allows more",
            )
        else:
            made_by, note = load_ptxas_options(
                ptxas_options, lambda tools: ptx_space(workload, which, chosen_arch, tools)
            )
            baseline, notes = made_by.kernel, (note,)
        options = getattr(chosen, "space_options", {})
        make: Callable[[Kernel], Space[Any, Any]]
        if by_results:
            tools = None if ptxas is None else [str(ptxas), *available()]
            make = partial(ptx_space, workload, which, baseline.arch, tools, ptxas_controls or ())
        elif space is None or isinstance(space, str):
            make = space_of(space or "swaps", Validator, asked_by_name=arch is not None, **options)
        else:
            make = space
        if getattr(chosen, "informed", False):
            make = informed(make, workload, which)
        kind: Callable[..., Job] = Job if pool is None else partial(IslandsJob, pool=pool, make_space=make)
        searched: Any = make(baseline)
        if space == "ptx":
            kind = partial(ptx_search.PtxJob, judge=ptx_search.PtxJudge(opened, baseline))
        elif space == "compiler":
            searched = CompilerSpace(searched, arch is not None)
            kind = partial(CompilerJob, judge=CompilerJudge(opened, baseline, searched))
        job = kind(workload, which, baseline, chosen, limit, seed, opened, searched, kept, say, notes)
        job.began = began if pool is None else None  # an island's budget is its search's
        result = job.stored_result(fresh)
        if result is None:
            if check and opened.modelled and pool is None:
                job.about += refuse_wrong(workload, which.name, chosen_arch, say)
            result = job.run(progress)
    if "cases" not in result.facts:
        result = replace(result, facts={**result.facts, "work": work_of(workload, which)})
    if out is not None:
        result.save(out)
    return result


def judged_by_results(space: Any) -> bool:
    """Whether a space is judged by results alone. Raises SearchError where there is no such space."""
    if isinstance(space, str) and space not in (*SPACES, *BY_RESULTS):
        known = ", ".join((*SPACES, *BY_RESULTS))
        raise SearchError(f"there is no space {space!r}", hint=f"one of {known}")
    return isinstance(space, str) and space in BY_RESULTS


#: options of `optimize` and their defaults
_OPTIONS = {
    p.name: p.default for p in inspect.signature(optimize).parameters.values() if p.kind is p.KEYWORD_ONLY
}


def _pool(cluster: str, device: str | Device, workers: int | None, say: Callable[[str], None]) -> Pool:
    if not isinstance(device, str):
        raise DeviceError("a cluster makes its own devices", hint='device="cuda" or "model"')
    return Pool(cluster, device="cuda" if device == "auto" else device, workers=workers, say=say)
