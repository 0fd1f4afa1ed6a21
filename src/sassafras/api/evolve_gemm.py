"""`evolve` on ``gemm:MxNxK``: a proposer names configurations of our HGEMM kernels as JSON, judged on a GPU.

An answer that breaks the schema, or names what cannot run the shape, goes back with the reason. What is legal
is compiled, compared with FP64, and timed beside cuBLASLt's best algorithm of both layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sassafras.api.evolve import proposer_of, remembered
from sassafras.core import Buffer, Case, DeviceError, Evaluation, Evaluator, SassafrasError, Workload, beats
from sassafras.gemm.bench.device import GemmDevice
from sassafras.gemm.build.cubins import cubin
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.space import GemmSpace, kernel
from sassafras.gemm.select.table import TableRow, TunedTable
from sassafras.jobs.confirm import remeasure, select
from sassafras.jobs.opening import opened_store
from sassafras.jobs.result import Result
from sassafras.llm.evolve import Evolve
from sassafras.llm.gemm_json import GemmProposals
from sassafras.llm.job import SourceJob
from sassafras.llm.limits import Spend
from sassafras.llm.proposer import Proposer
from sassafras.llm.spending import Meter
from sassafras.search import Finished

PREFIX = "gemm:"


@dataclass
class GemmJob(SourceJob):
    """A `SourceJob` whose candidates are configurations and whose baseline is cuBLASLt.

    Attributes:
        install: where a measured winner's row goes, for `sassafras.matmul`; None: nowhere.
    """

    install: Path | None = None

    def _evaluator(self) -> Evaluator:
        made: Evaluator = SimpleNamespace(evaluate=self.device.run)  # type: ignore[assignment]
        return made

    def _contenders(self, found: Finished[Any], notes: list[str]) -> list[Any]:
        """Every leader: the start is a configuration like the others, and the baseline is none of them."""
        if not self.device.modelled:
            return list(found.leaders)
        return [leader for leader in found.leaders if leader.cost < 1.0]

    def _confirmed(self, found: Finished[Any]) -> Result:
        notes = ["the baseline is cuBLASLt's fastest algorithm of both layouts"]
        if self.device.modelled:  # a rehearsal, which draws nothing
            return super()._confirmed(found)
        contenders = self._contenders(found, notes)
        self.say("choosing among the search's leaders")
        for candidate in select(self.device, contenders, lambda outcome: self._failed(outcome, notes)):
            self.say("measuring the winner in fresh processes")
            final = remeasure(self.device, candidate)
            if final.cost is None:
                self._failed(final, notes)
                continue
            if not beats(final):
                name = candidate.recipe["config"]
                notes.append(f"the best of ours, {name}, re-measured {1 / final.cost:.3f}x {final.interval}")
            return self._result(found, candidate, notes, improved=beats(final), final=final)
        raise DeviceError("no configuration could be re-measured", where=self.case.name)

    def _keep(self, result: Result) -> None:
        """Tell `sassafras.matmul` of a measured winner; all evaluations are in the store anyway."""
        if not result.improved or self.install is None or not isinstance(self.final, Evaluation):
            return
        device = self.device
        assert isinstance(device, GemmDevice)
        row = winner_row(Shape.parse(self.case.name), str(result.recipe["config"]), device)
        header = {k: v for k, v in device.header.items() if k in ("gpu", "kernels", "cublaslt", "torch")}
        table = TunedTable(header, [row])
        (TunedTable.load(self.install).merged(table) if self.install.is_file() else table).save(self.install)


def winner_row(shape: Shape, name: str, device: GemmDevice) -> TableRow:
    """What dispatch is told of a shape, from the last re-measurement."""
    layout, times, lt = registry.parse(name).layout, device.last_times, device.baseline
    same = lt is not None and lt["layout"] == layout
    return TableRow(
        shape,
        layout,
        ((name, times[name]),),
        times[f"torch_{layout}"],
        times["lt"] if same else None,
        lt if same else None,
    )


def workload_of(shape: Shape, cache: Path | None = None) -> Workload:
    """C = A x B as a workload: FP16, FP32 accumulation; its kernel is the estimate's favourite."""

    def build(case: Case, arch: str, **options: Any) -> Any:
        config = GemmSpace(shape, lambda chosen: b"").start()
        return kernel(config, shape, cubin(config.instance, cache))

    args = {
        "a": Buffer("fp16", (shape.m, shape.k)),
        "b": Buffer("fp16", (shape.k, shape.n)),
        "c": Buffer("fp16", (shape.m, shape.n), "out"),
    }
    case = Case(str(shape), (1, 1, 1), args)
    return Workload("hgemm", (case,), build, source=f"{PREFIX}{shape}", meta={"accumulate": "fp32"})


def evolve_gemm(
    target: str,
    *,
    proposer: str | Proposer | None = "mutate",
    settings: Mapping[str, Any] | None = None,
    budget: str | Spend = "10m",
    device: str | GemmDevice = "auto",
    seed: int = 0,
    store: Any = None,
    out: str | Path | None = None,
    fresh: bool = False,
    endpoint: Mapping[str, Any] | None = None,
    prices: tuple[float, float] = (0.0, 0.0),
    cache: Path | None = None,
    install: bool = True,
    progress: Any = None,
    stage: Any = None,
) -> Result:
    """`sassafras.api.evolve.evolve` for ``gemm:MxNxK``; arguments as there.

    Args:
        cache: folder of compiled kernels.
        install: let `sassafras.matmul` on this machine use a measured winner.

    Raises:
        SassafrasError: one of its subclasses; `ProposerError` when the proposer is dead.
    """
    shape = Shape.parse(target.removeprefix(PREFIX))
    limits = Spend.parse(budget) if isinstance(budget, str) else budget
    meter = Meter(limits.tokens, limits.dollars, *prices)
    asked = proposer_of(proposer, meter, endpoint or {})
    space = GemmProposals(GemmSpace(shape, lambda config: cubin(config.instance, cache)))
    opened = _device(device, cache, seed) if isinstance(device, str) else device
    workload = workload_of(shape, cache)
    which = workload.case(None)
    with closing(opened), opened_store(store) as kept:
        identity = {"proposer": asked.name if asked is not None else "mutation"}
        if asked is not None and kept is not None:
            asked = remembered(asked, meter, kept, fresh, ("hgemm", which.name, seed, space.description))
        strategy = Evolve(asked, **dict(settings or {}))
        job = GemmJob(
            workload,
            which,
            workload.build(which, opened.arch),
            strategy,
            limits.budget,
            seed,
            opened,
            space,
            kept,
            stage or (lambda text: None),
            proposals=identity,
            caps=str(limits),
            meter=meter,
            install=_tuned(opened) if install else None,
        )
        result = job.stored_result(fresh) or job.run(progress)
    if out is not None:
        result.save(out)
        if len(strategy.archive):
            strategy.archive.save(Path(out) / f"hgemm-{shape}-variants.jsonl")
    return result


def _tuned(device: GemmDevice) -> Path | None:
    from sassafras.gemm.matmul.planner import tuned_path

    return None if device.modelled else tuned_path(device.name)


def _device(device: str, cache: Path | None, seed: int) -> GemmDevice:
    from sassafras.cuda.environment import available

    if device not in ("auto", "cuda", "model"):
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda or model")
    dry = device == "model" or (device == "auto" and not available()[0])
    return GemmDevice(dry=dry, cache=cache, seed=seed)


def refuse(**given: Any) -> None:
    """Raise for options that mean nothing here. Raises SassafrasError."""
    for name, value in given.items():
        if value:
            raise SassafrasError(f"--{name} is not for {PREFIX}MxNxK", hint="leave it out")
