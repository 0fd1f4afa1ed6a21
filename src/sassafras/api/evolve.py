"""`evolve`: a proposer rewrites a kernel's source, or names configurations of our HGEMM kernels.

One path for both: proposals are judged like any candidate by their results, and kept in the same store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sassafras.core import (
    Case,
    Device,
    DeviceError,
    Evaluator,
    Kernel,
    SassafrasError,
    SearchError,
    Space,
    Workload,
)
from sassafras.cuda.environment import available
from sassafras.evaluate import KernelEvaluator
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.source import SourceEvaluator
from sassafras.gemm.bench.device import GemmDevice
from sassafras.gemm.build.cubins import cubin
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.table import TableRow, TunedTable
from sassafras.gemm.select.workload import PREFIX
from sassafras.gemm.select.workload import workload as gemm_workload
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, opened_store
from sassafras.jobs.result import Result
from sassafras.llm.evolve import Evolve
from sassafras.llm.gemm_space import GemmJsonSpace
from sassafras.llm.job import SourceJob
from sassafras.llm.journal import Remembered
from sassafras.llm.named import proposer_named
from sassafras.llm.program_model import ProgramModel
from sassafras.llm.proposer import Proposer
from sassafras.llm.source_space import SourceSpace
from sassafras.llm.spending import Meter, Spend
from sassafras.search import Progress, check_settings
from sassafras.store import Store


@dataclass(frozen=True, slots=True)
class Subject:
    """What proposals are made for, and what judges them.

    Attributes:
        workload, case, baseline: what is improved.
        space: reads and shows proposals.
        judge: gives their verdicts.
        about: notes of every result.
        install: see `SourceJob.install`.
    """

    workload: Workload
    case: Case
    baseline: Kernel
    space: Space[Any, Any]
    judge: Evaluator
    about: tuple[str, ...] = ()
    install: Callable[[Result], None] | None = None


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
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> Result:
    """Let a proposer rewrite a kernel's holes (or its whole source), judge every proposal, keep the best.

    The same call, made again after an interruption, goes on where it stopped: outcomes come from the store
    and answers from a journal beside it, so that nothing is asked or paid for twice.

    Args:
        target: a workload from a Triton kernel or CUDA C++, as for `sassafras.optimize`; or ``gemm:MxNxK``:
            configurations of our HGEMM kernels as JSON, compared with FP64 and timed beside cuBLASLt's best
            algorithm of both layouts; `sassafras.matmul` on this machine uses a measured winner.
        proposer: ``mutate`` (random edits, the control), ``endpoint:MODEL``, ``local:PATH[+ADAPTER]``, or a
            `Proposer` of your own.
        settings: of `sassafras.llm.evolve.Evolve`: exemplars, contrastive, temperature, repairs, ...
        budget: ``"10m,200e,500kt,2.5usd"``: seconds, evaluations, tokens, dollars; any of them.
        device: ``cuda``, ``model`` (modelled, a stand-in), ``auto``, or your own `Device`.
        seed: of everything random.
        case, arch, store, out, fresh, progress, stage: as for `sassafras.optimize`.
        whole: let the whole source be rewritten instead of its holes.
        endpoint: fields of `sassafras.llm.endpoint.EndpointSettings`; ``device`` of a local model.
        prices: dollars a million prompt tokens and answer tokens.

    Raises:
        SassafrasError: one of its subclasses; `ProposerError` when the proposer is dead.
    """
    say = stage or (lambda text: None)
    shape: Shape | None = None
    if isinstance(target, str) and target.startswith(PREFIX):
        shape = Shape.parse(target.removeprefix(PREFIX))
        _refuse(case=case, arch=arch, whole=whole)
    limits = budget if isinstance(budget, Spend) else Spend.parse(str(budget))
    meter = Meter(limits.tokens, limits.dollars, *prices)
    given = dict(settings or {})
    check_settings(partial(Evolve, None), given, Evolve.name)
    asked = proposer_named(proposer, endpoint)
    loaded = load_workload(target) if shape is None else None
    with ExitStack() as stack:
        opened = _device(device, arch) if shape is None else _gemm_device(device, seed)
        stack.enter_context(closing(opened))
        kept = stack.enter_context(opened_store(store))
        if shape is not None:
            assert isinstance(opened, GemmDevice)
            subject = _gemm_subject(shape, opened)
        else:
            assert loaded is not None
            subject = _source_subject(loaded, opened, case, arch, whole, say)
        workload, which, space = subject.workload, subject.case, subject.space
        remembered = None
        if asked is not None:
            what = (workload.name, which.name, seed, getattr(space, "description", ""))
            remembered = Remembered(asked, meter, _journal(asked, kept, fresh, what))
        strategy = Evolve(remembered, **given)
        job = SourceJob(
            workload,
            which,
            subject.baseline,
            strategy,
            limits.budget,
            seed,
            opened,
            space,
            kept,
            say,
            about=subject.about,
            judge=subject.judge,
            proposals={"proposer": strategy.proposer},
            caps=str(limits),
            meter=meter,
            install=subject.install,
        )
        result = job.stored_result(fresh) or job.run(progress)
    if out is not None:
        result.save(out)
        if len(strategy.archive):
            stem = f"{workload.name}-{which.name}" if shape is not None else workload.name
            strategy.archive.save(Path(out) / f"{stem}-variants.jsonl")
    return result


def _journal(asked: Proposer, store: Store | None, fresh: bool, what: tuple[Any, ...]) -> Path | None:
    """Where answers are kept: beside the store, named by `what` the proposer is asked about."""
    if store is None:
        return None
    digest = hashlib.sha256(repr((asked.name, *what)).encode()).hexdigest()[:16]
    path = store.path.parent / "proposals" / f"{digest}.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    return path


# -- sources ------------------------------------------------------------------------------------------------


def _source_subject(
    workload: Workload,
    device: Device,
    case: str | None,
    arch: str | None,
    whole: bool,
    say: Callable[[str], None],
) -> Subject:
    which = workload.case(case)
    say(f"compiling {workload.name} {which.name}")
    baseline = workload.build(which, arch or getattr(device, "arch", None) or DEFAULT_ARCH)
    judge = SourceEvaluator(device, workload, which, baseline)
    space = SourceSpace(workload, which, baseline, judge, whole=whole)
    return Subject(workload, which, baseline, space, space)


def _device(device: str | Device, arch: str | None) -> Device:
    """A device that compares with the reference instead of bit by bit."""
    if not isinstance(device, str):
        return device
    made: Device
    if device == "cuda" or (device == "auto" and available()[0]):
        made = CudaDevice(bitwise=False)
    elif device in ("auto", "model"):
        made = ProgramModel(arch or DEFAULT_ARCH)
    else:
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda, model, or a Device of your own")
    return made


# -- configurations of our HGEMM kernels --------------------------------------------------------------------


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise SassafrasError(f"--{name} is not for {PREFIX}MxNxK", hint="leave it out")


def _gemm_device(device: str | Device, seed: int) -> GemmDevice:
    if isinstance(device, GemmDevice):
        return device
    if not isinstance(device, str):
        raise SearchError(f"{PREFIX}MxNxK needs a GemmDevice", hint="auto, cuda or model make one")
    if device not in ("auto", "cuda", "model"):
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda or model")
    return GemmDevice(dry=device == "model" or (device == "auto" and not available()[0]), seed=seed)


def _gemm_subject(shape: Shape, device: GemmDevice) -> Subject:
    """The estimate's favourite is the start; figures are relative to cuBLASLt."""
    space = GemmJsonSpace(shape, lambda config: cubin(config.instance))
    workload = gemm_workload(shape, space.start())
    case = workload.case(None)

    def install(result: Result) -> None:
        """Tell `sassafras.matmul` on this machine of a measured winner."""
        from sassafras.gemm.matmul.planner import tuned_path  # loads torch

        path = tuned_path(device.name)
        header = {k: v for k, v in device.header.items() if k in ("gpu", "kernels", "cublaslt", "torch")}
        table = TunedTable(header, [_winner_row(shape, result.recipe["config"], device)])
        (TunedTable.load(path).merged(table) if path.is_file() else table).save(path)

    baseline = workload.build(case, device.arch)
    judge = KernelEvaluator(device, None, baseline)
    about = ("the baseline is cuBLASLt's fastest algorithm of both layouts",)
    return Subject(workload, case, baseline, space, judge, about, install)


def _winner_row(shape: Shape, given: dict[str, Any], device: GemmDevice) -> TableRow:
    """What dispatch is told of a shape, from the last re-measurement."""
    config, times, lt = from_fields(given), device.last_times, device.baseline
    layout = config.layout
    same = lt is not None and lt["layout"] == layout
    return TableRow(
        shape,
        layout,
        ((config, times["ours"]),),
        times[f"torch_{layout}"],
        times["lt"] if same else None,
        lt if same else None,
    )
