"""`evolve`: a proposer rewrites a kernel's source; judged like any candidate, kept in the same store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from sassafras.api.optimize import _pool, _pool_device
from sassafras.core import Device, SearchError, Workload
from sassafras.jobs.opening import DEFAULT_ARCH, check_workers, load_workload, opened_store
from sassafras.jobs.result import Result
from sassafras.llm.evolve import Evolve
from sassafras.llm.job import SourceJob
from sassafras.llm.journal import Remembered
from sassafras.llm.limits import Spend, proposer
from sassafras.llm.proposer import Proposer
from sassafras.llm.source_space import SourceSpace
from sassafras.llm.spending import Meter
from sassafras.search import Progress, check_settings
from sassafras.store import Store


def evolve(
    target: str | Path | Workload,
    *,
    proposer: str | Proposer | None = "mutate",
    settings: Mapping[str, Any] | None = None,
    budget: str | Spend = "10m",
    device: str | Device = "auto",
    seed: int = 0,
    case: str | None = None,
    arch: str | None = None,
    whole: bool = False,
    store: str | Path | Store | bool | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    endpoint: Mapping[str, Any] | None = None,
    prices: tuple[float, float] = (0.0, 0.0),
    cluster: str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> Result:
    """Let a proposer rewrite a kernel's holes (or its whole source), judge every proposal, keep the best.

    The same call, made again after an interruption, goes on where it stopped: outcomes come from the store
    and answers from a journal beside it, so that nothing is asked or paid for twice.

    Args:
        target: a workload from a Triton kernel or CUDA C++, as for `sassafras.optimize`; or ``gemm:MxNxK``,
            configurations of our HGEMM kernels as JSON (`sassafras.api.evolve_gemm`).
        proposer: ``mutate`` (random edits, the control), ``endpoint:MODEL``, ``local:PATH[+ADAPTER]``, or a
            `Proposer` of your own.
        settings: of `sassafras.llm.evolve.Evolve`: exemplars, contrastive, temperature, repairs, ...
        budget: ``"10m,200e,500kt,2.5usd"``: seconds, evaluations, tokens, dollars; any of them.
        device: ``cuda``, ``model`` (modelled, a stand-in), ``auto``, or your own `Device`.
        seed: of everything random.
        case, arch, store, out, fresh, progress, stage: as for `sassafras.optimize`.
        whole: let the whole source be rewritten instead of its holes.
        endpoint: ``base_url``, ``key_variable``, ``requests_per_minute``, ``timeout_s``; ``device`` of a
            local model.
        prices: dollars a million prompt tokens and answer tokens.
        cluster, workers: as for `sassafras.optimize`; the proposer is asked by this process alone.

    Raises:
        SassafrasError: one of its subclasses; `ProposerError` when the proposer is dead.
    """
    if isinstance(target, str) and target.startswith("gemm:"):
        from sassafras.api.evolve_gemm import evolve_gemm, refuse

        if not isinstance(device, str):
            raise SearchError("gemm:MxNxK makes its own device", hint="auto, cuda or model")
        refuse(case=case, arch=arch, whole=whole, cluster=cluster, workers=workers)
        return evolve_gemm(
            target,
            proposer=proposer,
            settings=settings,
            budget=budget,
            device=device,
            seed=seed,
            store=store,
            out=out,
            fresh=fresh,
            endpoint=endpoint,
            prices=prices,
            progress=progress,
            stage=stage,
        )
    from sassafras.evaluate.source import SourceEvaluator

    say = stage or (lambda text: None)
    check_workers(cluster, workers)
    limits = Spend.parse(budget) if isinstance(budget, str) else budget
    meter = Meter(limits.tokens, limits.dollars, *prices)
    given = dict(settings or {})
    check_settings(partial(Evolve, None), given, Evolve.name)
    asked = proposer_of(proposer, meter, endpoint or {})
    workload = load_workload(target)
    which = workload.case(case)
    with ExitStack() as stack:
        pool = (
            None if cluster is None else stack.enter_context(_pool(cluster, device, workers, programs=True))
        )
        if pool is not None and pool.device == "cuda":
            opened = _pool_device(pool)
        else:
            opened = _device(device, arch)
        stack.enter_context(closing(opened))
        kept = stack.enter_context(opened_store(store))
        say(f"compiling {workload.name} {which.name}")
        baseline = workload.build(which, arch or getattr(opened, "arch", None) or DEFAULT_ARCH)
        judge = SourceEvaluator(opened, workload, which, baseline)
        space = SourceSpace(workload, which, baseline, judge, whole=whole)
        identity = {"proposer": asked.name if asked is not None else "mutation"}

        def strategy_of(chosen: int, among: Proposer | None) -> Evolve:
            """The strategy of a search with this seed, behind a journal of its own."""
            if among is not None and kept is not None:
                what = (workload.name, which.name, chosen, space.description)
                among = remembered(among, meter, kept, fresh, what)
            return Evolve(among, **given)

        # an island's strategy has its own journal; the driver's is never asked, and counts what they did
        strategy = strategy_of(seed, asked) if pool is None else Evolve(asked, **given)
        job = SourceJob(
            workload,
            which,
            baseline,
            strategy,
            limits.budget,
            seed,
            opened,
            space,
            kept,
            say,
            proposals=identity,
            caps=str(limits),
            meter=meter,
        )
        if pool is not None:
            job = _on_islands(job, pool, asked, strategy_of, whole)
        result = job.stored_result(fresh) or job.run(progress)
    if out is not None:
        result.save(out)
        if len(strategy.archive):
            strategy.archive.save(Path(out) / f"{workload.name}-variants.jsonl")
    return result


def _on_islands(
    job: SourceJob, pool: Any, asked: Proposer | None, strategy_of: Callable[..., Evolve], whole: bool
) -> SourceJob:
    from sassafras.cluster.evolve import OneAtATime, SourceIslands

    if asked is not None and not getattr(asked, "concurrent", False):
        asked = OneAtATime(asked)
    given = {f.name: getattr(job, f.name) for f in fields(SourceJob)}
    return SourceIslands(**given, pool=pool, whole=whole, make_strategy=lambda seed: strategy_of(seed, asked))


def proposer_of(what: str | Proposer | None, meter: Meter, endpoint: Mapping[str, Any]) -> Proposer | None:
    """A proposer by name, or the one given; None for chance. Raises as `limits.proposer`."""
    if not isinstance(what, str):
        return what
    return proposer(what, meter, **endpoint)


def remembered(asked: Proposer, meter: Meter, store: Store, fresh: bool, what: tuple[Any, ...]) -> Proposer:
    """The proposer behind its journal, which lies beside the store; `what` it is asked about names it."""
    digest = hashlib.sha256(repr((asked.name, *what)).encode()).hexdigest()[:16]
    path = store.path.parent / "proposals" / f"{digest}.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    return Remembered(asked, path, meter)


def _device(device: str | Device, arch: str | None) -> Device:
    """A device that compares with the reference instead of bit by bit."""
    if not isinstance(device, str):
        return device
    from sassafras.core import DeviceError
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice

    if device == "auto":
        device = "cuda" if available()[0] else "model"
    made: Device
    if device == "cuda":
        made = CudaDevice(bitwise=False)
    elif device == "model":
        from sassafras.llm.program_model import ProgramModel

        made = ProgramModel(arch or DEFAULT_ARCH)
    else:
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda, model, or a Device of your own")
    return made
