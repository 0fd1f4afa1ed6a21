"""`evolve`: a proposer rewrites a kernel's source.

Proposals are judged like any candidate by their results; what happened is kept in the store or in a folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sassafras import __version__
from sassafras.core import (
    Candidate,
    Case,
    Device,
    DeviceError,
    Kernel,
    SearchError,
    ToolMissing,
    Workload,
)
from sassafras.core.errors import reason
from sassafras.cuda.environment import available
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.profile import profile
from sassafras.evaluate.source import SourceEvaluator
from sassafras.gemm.bench.rival import rival
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.source_workload import PREFIX as SOURCE_PREFIX
from sassafras.gemm.select.workload import PREFIX
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, opened_store
from sassafras.jobs.result import Result, file_stem
from sassafras.llm.archive import Archive
from sassafras.llm.evolve import Evolve
from sassafras.llm.gemm_source import GemmSourceSpace
from sassafras.llm.job import SourceJob
from sassafras.llm.journal import Remembered
from sassafras.llm.named import proposer_named
from sassafras.llm.program_model import ProgramModel
from sassafras.llm.proposer import Proposer
from sassafras.llm.record import Record, RecordError, Task
from sassafras.llm.retrieve import Passages, readable
from sassafras.llm.rounds import Rounds, prompt_seed, replay
from sassafras.llm.source_space import SourceSpace
from sassafras.llm.spending import Meter, Spend
from sassafras.search import Progress, check_settings, settings_of
from sassafras.store import Store


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run in a folder stands that was not judged here.

    Attributes:
        folder: of the run.
        judged: answers that were judged.
        waiting: prompts without an answer.
        answered: answers that are not judged yet.
        archive: the variants so far.
    """

    folder: Path
    judged: int
    waiting: int
    answered: int
    archive: Archive

    def summary(self) -> str:
        """One line."""
        best = self.archive.best
        kind = "modelled " * (best is not None and best.verdict == "modelled")
        score = "" if best is None else f", the best at {kind}{best.score:.3f}x as selected"
        return (
            f"{self.folder}: {self.judged} answers judged{score}; {self.answered} to be judged, "
            f"waiting for {self.waiting} answers"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``best`` is the score of the archive's best, None without one."""
        best = self.archive.best
        counts = {name: getattr(self, name) for name in ("judged", "answered", "waiting")}
        score, verdict = (None, None) if best is None else (best.score, best.verdict)
        return {"folder": str(self.folder), **counts, "best": score, "modelled": verdict == "modelled"}


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
    folder: str | Path | None = None,
    context: Sequence[str | Path] = (),
    wait: float = 0.0,
    store: str | Path | Store | bool | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    endpoint: Mapping[str, Any] | None = None,
    prices: tuple[float, float] = (0.0, 0.0),
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> Result:
    """Let a proposer rewrite a kernel's holes (or its whole source), judge every proposal, keep the best.

    The same call, made again after an interruption, goes on where it stopped: from the run's folder where one
    is given, else from the store and a journal of answers beside it. Nothing is asked or paid for twice.

    Args:
        target: a workload from a Triton kernel or CUDA C++, as for `sassafras.optimize`; or ``gemm:MxNxK``: a
            CUDA kernel for one matrix product, which declares its launch, compared with the kernel that
            `sassafras.matmul` chooses and with cuBLASLt's best algorithm.
        proposer: ``mutate`` (random edits, the control), ``endpoint:MODEL``, ``local:PATH[+ADAPTER]``,
            ``exchange:FOLDER`` (answers come as files), ``replay:FOLDER`` (those of a recorded run, judged
            again), or a `Proposer` of your own.
        settings: of `sassafras.llm.evolve.Evolve`: width, proposals, contrastive, metrics, retrieval, ...
        budget: ``"10m,200e,500kt,2.5usd"``: seconds, evaluations, tokens, dollars; any of them. Of a run in a
            folder, seconds and evaluations are those of this call.
        device: ``cuda``, ``model`` (modelled, a stand-in), ``auto``, or your own `Device`, which stays open.
        seed: of everything random.
        case, arch, out, fresh, progress, stage: as for `sassafras.optimize`.
        whole: let the whole source be rewritten instead of its holes.
        folder: keeps prompts, answers, transcript and archive; it alone resumes the run.
        context: folders whose passages are shown in prompts (extra ``llm-context``).
        wait: seconds to wait for answers that come later, from an exchange folder.
        store: as for `sassafras.optimize`; by default none where there is a folder.
        endpoint: fields of `sassafras.llm.endpoint.EndpointSettings`; ``device`` of a local model.
        prices: dollars a million prompt tokens and answer tokens.

    Returns: the result; ``facts["waiting"]`` counts prompts that have no answer yet.

    Raises:
        SassafrasError: one of its subclasses; `ProposerError` when the proposer is dead, `RecordError` when
            the folder cannot be used.
    """
    say = stage or (lambda text: None)
    target, shape = source_target(target)
    folder = _folder_of(proposer, folder)
    if fresh and folder is not None:
        raise SearchError("a run in a folder goes on", where=str(folder), hint="for a fresh one name another")
    limits = budget if isinstance(budget, Spend) else Spend.parse(str(budget))
    meter = Meter(limits.tokens, limits.dollars, *prices)
    given = dict(settings or {})
    check_settings(partial(Evolve, None), given, Evolve.name)
    record = Record(folder)
    asked = proposer_named(proposer, endpoint)
    if asked is None and proposer and limits.endless:
        raise SearchError(
            "random edits spend no tokens: this budget has no end", hint="for example 10m or 200e"
        )
    loaded = load_workload(target)
    reads = asked is not None  # random edits read no prompt: nothing is retrieved or profiled for them
    retrieves = reads and bool(context)
    for one in () if reads else context:
        readable(one)
    try:
        passages = Passages(context) if retrieves else None
    except ToolMissing as error:
        if not record.settings:
            raise
        say(f"{error.what}: new prompts are left to another machine")
        passages = None
    with ExitStack() as stack:
        opened = device_named(device, arch)
        if opened is not device:
            stack.enter_context(closing(opened))
        kept = stack.enter_context(opened_store(False if folder is not None and store is None else store))
        workload, which, baseline, space = subject(loaded, opened, case, arch, whole, say)
        remembered = None
        if asked is not None:
            what = (workload.name, which.name, seed, getattr(space, "description", ""))
            path = None if folder is not None else _journal(asked, kept, fresh, what)
            remembered = Remembered(asked, meter, path)
        strategy = Evolve(remembered, **given)
        strategy.retrieve = None if passages is None else passages.find
        strategy.wait, strategy.ahead = wait, passages is not None or not retrieves
        if folder is not None:
            strategy.record = record
            strategy.task = _begun(record, space, strategy, str(target), which, seed, whole, context)
        if isinstance(opened, CudaDevice):

            def measured(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
                say(f"profiling {len(candidates)} variants")
                return profile(workload, which, [candidate.kernel for candidate in candidates])

            strategy.profile = measured if reads else None
            strategy.reference = {
                "device": opened.name,
                "rival": _rival(record, shape, workload, opened, say),
            }
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
            judge=space,
            proposals={"proposer": strategy.proposer, "context": [str(path) for path in context]},
            caps=str(limits),
            meter=meter,
            deploys=shape is None,
        )
        result = job.stored_result(fresh) or job.run(progress)
    if out is not None:
        result.save(out)
        if len(strategy.archive):
            strategy.archive.save(Path(out) / f"{file_stem(workload.name)}-variants.jsonl")
    return result


def write_prompts(
    target: str | Path | Workload,
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    case: str | None = None,
    arch: str | None = None,
    whole: bool = False,
    context: Sequence[str | Path] = (),
    gpu: str = "",
) -> Standing:
    """Begin a run in a folder, or go on with one, as far as that needs no device: write its open prompts.

    Args:
        gpu: name of the GPU that will judge, for the bound in the task; by default an H100.
        settings, seed, case, arch, whole, context: as those of `evolve`.

    Raises:
        SassafrasError: one of its subclasses.
    """
    target, _ = source_target(target)
    record = Record(folder)
    strategy = Evolve(None, **dict(settings or {}))
    passages = Passages(context) if context else None
    loaded = load_workload(target)
    _, which, _, space = subject(
        loaded, ProgramModel(arch or DEFAULT_ARCH), case, arch, whole, lambda _: None, gpu
    )
    task = _begun(record, space, strategy, str(target), which, seed, whole, context)
    rounds = Rounds(strategy, task, record, prompt_seed(seed), None if passages is None else passages.find)
    for number in rounds.open():
        rounds.ask(number)
    return standing(record, rounds.open())


def standing(record: Record, numbers: Sequence[int]) -> Standing:
    """How a run stands whose open prompts have these numbers."""
    assert record.folder is not None
    answered = sum(record.answer(number) is not None for number in numbers)
    judged = len(set(record.judged) - {0})
    return Standing(record.folder, judged, len(numbers) - answered, answered, record.archive())


def replay_run(folder: str | Path, target: str | Path | None = None, **expected: Any) -> Standing:
    """Walk a recorded run again without a model or a GPU: the same prompts bitwise, the same archive.

    Args:
        target: of the run, a file by its name alone; None for any.
        expected: settings, seed, case, whole, context that the run has to have.

    Raises:
        SassafrasError: one of its subclasses: something differs from the record.
    """
    recorded = Record(folder)
    if "settings" not in recorded.settings:
        raise RecordError("there is no recorded run here", where=str(folder))
    saved = recorded.settings
    _expect(saved, str(folder), target, expected)
    try:
        settings, task = Evolve(None, **saved["settings"]), Task(**saved["task"])
        seed = prompt_seed(int(saved["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        what = f"its settings are damaged, or another version's: {reason(error)}"
        raise RecordError(what, where=str(folder)) from error
    made = replay(recorded, settings, task, seed)
    path = Path(folder) / "archive.jsonl"
    if path.exists():
        kept = {variant.digest: asdict(variant) for variant in Archive.load(path)}
        if kept != {variant.digest: asdict(variant) for variant in made.archive()}:
            raise RecordError("archive.jsonl is not the archive of the transcript", where=str(path))
    made.folder = recorded.folder
    return standing(made, Rounds(settings, task, made, 0).open())


def _expect(
    saved: Mapping[str, Any], where: str, target: str | Path | None, expected: Mapping[str, Any]
) -> None:
    """Raises RecordError unless these are the recorded run's."""
    asked, had = dict(expected), dict(saved)
    if target is not None:  # a file may lie elsewhere by now
        asked["target"] = Path(str(source_target(target)[0])).name
        had["target"] = Path(str(saved.get("target"))).name
    if "settings" in asked and isinstance(all_ := saved.get("settings"), dict):
        had["settings"] = {name: all_.get(name) for name in asked["settings"]}
    for name, value in asked.items():
        if had.get(name) != value:
            raise RecordError(
                f"the run in this folder has {name} = {had.get(name)}, not {value}", where=where
            )


# -- what is asked for --------------------------------------------------------------------------------------


def source_target(target: str | Path | Workload) -> tuple[str | Path | Workload, Shape | None]:
    """The target, and its shape where it is a matrix product."""
    for prefix in (PREFIX, SOURCE_PREFIX):
        if isinstance(target, str) and target.startswith(prefix):
            text, _, config = target.removeprefix(prefix).partition("/")
            shape = Shape.parse(text.replace(",", "x"))
            return f"{SOURCE_PREFIX}{shape}" + (f"/{config}" if config else ""), shape
    return target, None


def _folder_of(proposer: Any, folder: str | Path | None) -> str | Path | None:
    if not isinstance(proposer, str) or not proposer.startswith("exchange:"):
        return folder
    named = proposer.removeprefix("exchange:")
    if folder is not None and Path(folder) != Path(named):
        raise SearchError("the exchange folder is the run's folder", hint="leave the other one out")
    return named or None


def _begun(
    record: Record,
    space: SourceSpace,
    strategy: Evolve,
    target: str,
    case: Case,
    seed: int,
    whole: bool,
    context: Sequence[str | Path],
) -> Task:
    """The task as the folder has it; its settings are compared with these, or written."""
    task = Task(space.brief(), space.form, space.show(space.seed()))
    kept = record.settings.get("task")
    record.agree(
        {
            "target": target,
            "case": case.name,
            "seed": seed,
            "whole": whole,
            "context": [str(path) for path in context],
            "settings": {k: v for k, v in settings_of(strategy).items() if k != "proposer"},
            # a brief that reads otherwise after an update does not end a run
            "task": kept or asdict(task),
            "sassafras": record.settings.get("sassafras", __version__),
        }
    )
    return Task(**kept) if kept else task


def _journal(asked: Proposer, store: Store | None, fresh: bool, what: tuple[Any, ...]) -> Path | None:
    """Where answers are kept: beside the store, named by `what` the proposer is asked about."""
    if store is None:
        return None
    digest = hashlib.sha256(repr((asked.name, *what)).encode()).hexdigest()[:16]
    path = store.path.parent / "proposals" / f"{digest}.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    return path


def subject(
    workload: Workload,
    device: Device,
    case: str | None,
    arch: str | None,
    whole: bool,
    say: Callable[[str], None],
    gpu: str = "",
) -> tuple[Workload, Case, Kernel, SourceSpace]:
    """The workload, its case, the compiled baseline, and the space of its sources; `gpu`: in place of the
    device's name."""
    which = workload.case(case)
    say(f"compiling {workload.name} {which.name}")
    baseline = workload.build(which, arch or getattr(device, "arch", None) or DEFAULT_ARCH)
    judge = SourceEvaluator(device, workload, which, baseline)
    kind = GemmSourceSpace if (workload.source or "").startswith(SOURCE_PREFIX) else SourceSpace
    return (
        workload,
        which,
        baseline,
        kind(workload, which, baseline, judge, whole=whole, gpu=gpu or device.name),
    )


def device_named(device: str | Device, arch: str | None) -> Device:
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


def _rival(
    record: Record, shape: Shape | None, workload: Workload, device: CudaDevice, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The fastest known time relative to the baseline's (`rival`), measured once on every kind of GPU."""
    if shape is None:
        return None
    for event in record.references:
        if event.get("device") == device.name and event.get("rival"):
            return dict(event["rival"])
    say("timing cuBLASLt's algorithms and our configurations")
    return rival(shape, from_fields(workload.meta["config"]))
