"""One kernel on all steps of the ladder of `beyond.py`: best of ptxas, searches, one joint re-measurement."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from common import commit

from sassafras.jobs.confirm import select
from sassafras.jobs.job import FAILURES, Job

Row = dict[str, Any]
#: in this order; `knobs` and `identity` search nothing
STAGES = ("knobs", "identity", "swaps", "control", "renaming", "blocks")
#: of tuned HGEMM kernels: their compiler is NVRTC, and copies of them are not tried
GEMM_STAGES = ("identity", "swaps", "control")
#: looks at every prepared kernel, and at the few fastest; what a setting must promise to replace the
#: frontend's own
LOOKS, MORE_LOOKS, LEADERS, WORTH = 3, 9, 4, 0.998
#: of one search; thousands of a fault that is found again and again once cost a sitting's results
COUNTER_EXAMPLES = 8
#: schedules of a step that the next ones begin with
SEEDS = 3


@dataclass
class Keeper:
    """The search's record: it keeps approved candidates that failed, for a test to be made of them."""

    folder: Path
    label: str
    kept: int = 0

    def known(self, digest: str) -> None:
        """Nothing: a row is searched in one sitting."""

    def record(self, candidate: Any, outcome: Any, took: float) -> Any:
        """Write a counter-example down, with what it did."""
        from sassafras.search import Recorded

        if outcome.verdict in FAILURES and self.kept < COUNTER_EXAMPLES:
            self.kept += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            stem = self.folder / f"{self.label}-{candidate.digest[:16]}"
            stem.with_suffix(".cubin").write_bytes(candidate.kernel.cubin)
            said = {"verdict": str(outcome.verdict), "detail": outcome.detail, "recipe": candidate.recipe}
            stem.with_suffix(".json").write_text(json.dumps(said, default=str))
        return Recorded(outcome, took)


@dataclass(frozen=True)
class Onward:
    """A strategy that looks at some schedules first."""

    strategy: Any
    seeds: Sequence[Any]

    @property
    def name(self) -> str:
        """Whose search it is."""
        return str(self.strategy.name)

    def search(self, space: Any, evaluate: Any, session: Any) -> None:
        """See `sassafras.search.contract`."""
        for state in self.seeds:
            evaluate(state)
        self.strategy.search(space, evaluate, session)


def taken_over(space: Any, states: Sequence[Any]) -> list[Any]:
    """Orders of other spaces of the same kernel with stall counts of this one; those that are none of its are
    left out."""
    from sassafras.core import SassafrasError

    if "moved over" in getattr(space, "description", ""):
        return []
    found: list[Any] = []
    for state in states:
        with contextlib.suppress(SassafrasError):
            own = space.tightened(state)
            if own not in found and not space.violation(own):
                found.append(own)
    return found


@dataclass
class Step(Job):
    """A `Job` in parts, so that those that need no GPU run while another kernel has it."""

    found: Any = None
    begun: int = 0
    notes: list[str] = field(default_factory=list)
    leaders: Sequence[Any] = ()

    def prepare(self) -> None:
        """Space, validator and whatever is compiled on first use."""
        self._judge = self._evaluator()
        self._evaluator = lambda: self._judge  # type: ignore[method-assign]
        self._warm_up()
        self._warm_up = lambda: None  # type: ignore[method-assign]

    def walk(self, keeper: Keeper, earlier: Sequence[Any] = ()) -> None:
        """Search; on the GPU. First of all the best schedules of `earlier` steps, as far as they are in this
        space, so that a step begins where the one before it ended."""
        seeds = taken_over(self.space, earlier)
        self.begun, self.strategy = len(seeds), Onward(self.strategy, seeds)
        self.found = self.search(None, recorder=keeper)

    def best(self) -> list[Any]:
        """The few best schedules that were found, for the steps behind this one."""
        if self.found is None or "moved over" in getattr(self.space, "description", ""):
            return []  # of a copy with other blocks: nobody else knows its positions
        limit = self.found.baseline.cost
        return [f.state for f in self.found.leaders if f.cost < limit][:SEEDS]

    def judge(self) -> None:
        """Validate the leaders from scratch; no GPU."""
        self.leaders = self._contenders(self.found, self.notes)

    def freeze(self) -> Any:
        """The candidate to re-measure, None where nothing beat the baseline; some looks on the GPU."""
        chosen = select(self.device, self.leaders, lambda outcome: self._failed(outcome, self.notes))
        return chosen[0] if chosen else None

    def facts(self) -> Row:
        """What the row says of the search."""
        found = self.found
        failed = sum(found.verdicts.get(v.value, 0) + self.failed_later[v.value] for v in FAILURES)
        return {
            "evaluations": found.evaluations, "search_seconds": round(found.seconds, 1),
            "ended": found.reason, "verdicts": dict(found.verdicts), "failed_after_validation": failed,
            "space": getattr(self.space, "description", ""), "begun_from": self.begun,
            "notes": list(self.notes),
        }  # fmt: skip


def stages_of(subject: str) -> tuple[str, ...]:
    """What is measured of a subject."""
    return GEMM_STAGES if subject.startswith("gemm:") else STAGES


def subject_rows(subject: str, options: Row, lock: Any = None, ready: Any = None) -> list[Row]:
    """A row for each stage of ``suite:NAME`` or ``gemm:MxNxK/CONFIGURATION``, whatever happens.

    Args:
        lock: held while anything runs on the GPU; None for nobody else there.
        ready: an event that is set when compiled loops are in their cache.
    """
    begin = time.perf_counter()
    common: Row = {
        "kernel": subject.removeprefix("suite:"), "modelled": options["device"] == "model",
        "seconds": options["seconds"], "seed": options["seed"],
    }  # fmt: skip
    try:
        rows = _Ladder(subject, options, lock, ready).rows(common)
    except Exception as error:
        traceback.print_exc()
        rows = [{**common, "stage": "all", "error": f"{type(error).__name__}: {error}"}]
    for row in rows:
        row["wall_seconds"] = round(time.perf_counter() - begin, 1)
    return rows


class _Ladder:
    def __init__(self, subject: str, options: Row, lock: Any, ready: Any) -> None:
        self.subject, self.options, self.lock, self.ready = subject, options, lock, ready
        self.clock: dict[str, float] = {}

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Have the GPU; seconds of waiting and of holding are kept by name."""
        begin = time.perf_counter()
        with self.lock or contextlib.nullcontext():
            held = time.perf_counter()
            try:
                yield
            finally:
                self.clock[f"{what}_waited"] = round(held - begin, 1)
                self.clock[what] = round(time.perf_counter() - held, 1)

    def rows(self, common: Row) -> list[Row]:
        from sassafras.api import optimize
        from sassafras.targets import load

        device = optimize.open_device(self.options["device"], None)
        try:
            if not device.modelled:
                device.reserve(1 + 6)  # type: ignore[attr-defined]
            workload = load(self.subject)
            return self._rows(device, workload, workload.case(), common)
        finally:
            device.close()

    def _rows(self, device: Any, workload: Any, case: Any, common: Row) -> list[Row]:
        common["shape"] = case.name
        if config := workload.meta.get("config"):
            common["config"] = config
        stages = [s for s in stages_of(self.subject) if s in self.options["stages"]]
        own = workload.build(case, device.arch)
        kernel, knobs = own, {}
        folder = Path(self.options["bundle"]) / workload.name
        if "knobs" in stages:
            with self.alone("knobs"):
                kernel, knobs = best_of(device, workload, case, own, folder)
        elif code := self.options.get("baselines", {}).get(common["kernel"]):
            kernel = prepared(own, folder, code) or own
        if self.ready is not None:
            self.ready.wait(120)
        steps, notes = self._prepared(device, workload, case, kernel, stages)
        with self.alone("searches"):
            device.open(workload, case, kernel)
            earlier: list[Any] = []
            for stage, step in steps.items():
                folder = Path(self.options["out"]) / "failures"
                step.walk(Keeper(folder, f"{workload.name}-{stage}"), earlier)
                earlier = [*step.best(), *earlier]
        for step in steps.values():
            step.judge()
        frozen = self._frozen(own, kernel, stages, notes)
        made = frozen.get("identity")
        with self.alone("frozen"):
            for stage, step in steps.items():
                if (candidate := step.freeze()) is not None:
                    frozen[stage] = candidate
            outcomes = self._outcomes(device, frozen)
        environment = device.environment()
        common |= {"commit": commit(), "baseline_digest": kernel.digest[:16], **codes(kernel, made)}
        rows = []
        for stage in stages:
            row = {**common, "stage": stage}
            row |= knobs if stage == "knobs" else {}
            row |= steps[stage].facts() if stage in steps else {}
            if stage in notes:
                row["error" if stage in ("swaps", "identity") else "unavailable"] = notes[stage]
            elif stage != "knobs" or not device.modelled:
                row |= reported(stage, outcomes.get(stage), own is kernel)
            rows.append({**row, "clock": self.clock, "environment": environment})
        return rows

    def _prepared(
        self, device: Any, workload: Any, case: Any, kernel: Any, stages: Sequence[str]
    ) -> tuple[dict[str, Step], dict[str, str]]:
        """Searches by stage, ready to begin; what could not be made ready, with why."""
        from sassafras import search
        from sassafras.core import Budget, SassafrasError
        from sassafras.schedule.spaces import space_of
        from sassafras.validate import Validator

        evaluations = self.options["evaluations"]
        budget = Budget.parse(f"{evaluations}e" if evaluations else f"{self.options['seconds']:g}s")
        steps: dict[str, Step] = {}
        notes: dict[str, str] = {}
        if device.modelled:
            device.open(workload, case, kernel)  # the warm-up runs the baseline
        for stage in stages:
            if stage in ("knobs", "identity"):
                continue
            try:
                step = Step(
                    workload, case, kernel, search.get("anneal", {}), budget, self.options["seed"], device,
                    space_of(stage, Validator)(kernel), None, lambda text: None,
                )  # fmt: skip
                step.prepare()
                steps[stage] = step
            except SassafrasError as error:
                notes[stage] = str(error)
        return steps, notes

    def _frozen(self, own: Any, kernel: Any, stages: Sequence[str], notes: dict[str, str]) -> Row:
        """What is re-measured besides winners: the frontend's own kernel, the identity under new codes."""
        from sassafras.core import Candidate, SassafrasError

        frozen: Row = {}
        if "knobs" in stages and own.cubin != kernel.cubin:
            frozen["knobs"] = Candidate(own)
        if "identity" in stages:
            try:
                frozen["identity"] = identity(kernel)
            except SassafrasError as error:
                notes["identity"] = str(error)
        return frozen

    def _outcomes(self, device: Any, frozen: Row) -> Row:
        """Stage -> its re-measurement; what is the same code is measured once."""
        if device.modelled:  # the frontend's own kernel is no schedule of another
            return {stage: device.remeasure(c) for stage, c in frozen.items() if stage != "knobs"}
        distinct = {candidate.digest: candidate for candidate in frozen.values()}
        if not distinct:
            return {}
        found = device.remeasure_all(list(distinct.values()), processes=5, cold_l2=False)
        by = {outcome.digest: outcome for outcome in found}
        return {stage: by[candidate.digest] for stage, candidate in frozen.items()}


def identity(kernel: Any) -> Any:
    """ptxas's own order with scoreboards, waits and stall counts from scratch, approved by the validator.

    Raises:
        SassafrasError: it has not, or there are none.
    """
    from sassafras.core import Candidate, SassafrasError
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    space = ScheduleSpace(kernel, control="regenerate")
    cubin = space.emit(space.tightened(space.start()))
    report = Validator(kernel.cubin, kernel.name).check(cubin)
    if not report.ok:
        raise SassafrasError(f"the validator refuses it: {report.violations[0]}", where=kernel.name)
    return Candidate(kernel.with_cubin(cubin), {"space": "identity"})


def codes(kernel: Any, made: Any = None) -> Row:
    """What tells whether a row still stands: fingerprints of the baseline's code and of its identity's.

    Args:
        made: the identity, if that is at hand.
    """
    from sassafras.core import SassafrasError
    from sassafras.frontend.ptxas_options import fingerprint

    try:
        text = fingerprint((made or identity(kernel)).kernel.cubin)[:16]
    except SassafrasError:
        text = "none"
    return {"baseline_code": fingerprint(kernel.cubin)[:16], "identity_code": text}


def stands(subject: str, known: Row, bundle: str) -> bool:
    """Whether rows of `known` codes still say what would be measured today.

    They do if their baseline (the frontend's own kernel or a prepared one) can still be made, and has
    the same code under control codes from scratch.
    """
    from sassafras.core import SassafrasError
    from sassafras.targets import load

    try:
        workload = load(subject)
        kernel = workload.build(workload.case(), "sm_90a")
    except SassafrasError:
        return False
    baseline = prepared(kernel, Path(bundle) / workload.name, known["baseline_code"])
    return baseline is not None and codes(baseline) == known


def prepared(own: Any, folder: Path, code: str) -> Any:
    """The frontend's own kernel or a prepared one, by the fingerprint of its code; None if none is it."""
    from sassafras.frontend.ptxas_options import fingerprint

    cubins = (path.read_bytes() for path in sorted(folder.glob("*.cubin")))
    for cubin in itertools.chain([own.cubin], cubins):
        if fingerprint(cubin)[:16] == code:
            return own.with_cubin(cubin)
    return None


def reported(stage: str, outcome: Any, unchanged: bool) -> Row:
    """An outcome's columns: of `knobs` over the frontend's own kernel, of the others over the best of ptxas.

    ``speedup`` is what a user gets: 1 where the interval is not wholly above the null's, as the kernel stays;
    ``measured`` is what came out. For `identity` nobody chooses, so that they are the same.
    """
    none: Row = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0, "improved": False}
    if outcome is None:
        return none if stage != "knobs" or unchanged else {"error": "it was not re-measured"}
    if outcome.verdict is None:
        return redrawn(outcome, stage)
    if not outcome.verdict.ok:
        return {"error": f"re-measured: {outcome.verdict}: {outcome.detail}"}
    speedup, low, high = outcome.speedup, outcome.interval.low, outcome.interval.high
    if stage == "knobs":  # the frontend's own was the candidate, the best of ptxas the baseline
        speedup, low, high = 1 / speedup, 1 / high, 1 / low
    null = outcome.null_interval
    row: Row = {
        "null": outcome.null, "null_low": null.low, "null_high": null.high,
        "baseline_us": outcome.baseline_us, "time_us": outcome.time_us, "samples": outcome.samples,
        "measured": speedup, "measured_low": low, "measured_high": high,
        "processes": outcome.facts["processes"],
        "clocks": [outcome.facts["clocks_before"], outcome.facts["clocks_after"]],
    }  # fmt: skip
    beats = low > max(1.0, null.high)
    if stage in ("knobs", "identity") or beats:
        return row | {"speedup": speedup, "speedup_low": low, "speedup_high": high, "improved": beats}
    return row | none


def redrawn(outcome: Any, stage: str) -> Row:
    """The columns of a timing model's figure on fresh draws."""
    from sassafras.core import beats

    low, high, null = outcome.interval.low, outcome.interval.high, outcome.null_interval
    ratio = outcome.modelled_ratio
    if beats(outcome) or stage == "identity":
        row: Row = {"speedup": ratio, "speedup_low": low, "speedup_high": high}
    else:
        row = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
    return row | {
        "null": outcome.null, "null_low": null.low, "null_high": null.high, "improved": beats(outcome),
        "redrawn": ratio, "redrawn_low": low, "redrawn_high": high,
    }  # fmt: skip


def modelled(ratio: float) -> Row:
    """The columns of a timing model's figure that was selected on."""
    return {
        "speedup": ratio, "speedup_low": ratio, "speedup_high": ratio, "null": 1.0, "null_low": 1.0,
        "null_high": 1.0, "improved": ratio > 1,
    }  # fmt: skip


def best_of(device: Any, workload: Any, case: Any, own: Any, folder: Path) -> tuple[Any, Row]:
    """The fastest prepared kernel by quick looks (without a bundle the frontend's own); re-measured later.

    Raises:
        SassafrasError: the frontend's own kernel cannot be opened.
    """
    from sassafras.core import Candidate
    from sassafras.sass import Cubin

    index = folder / "index.json"
    entries = json.loads(index.read_text())["settings"] if index.is_file() else []
    device.open(workload, case, own)
    looks: dict[int, list[float]] = {}
    candidates: list[Any] = []
    verdicts: dict[str, int] = {}

    def look(number: int) -> bool:
        candidate = candidates[number]
        if device.modelled:
            device.open(workload, case, candidate.kernel)
            outcome = device.run(candidate)
            cost = outcome.cycles
        else:
            outcome = device.run(candidate)
            cost = outcome.cost
        word = "modelled" if outcome.verdict is None else str(outcome.verdict)
        verdicts[word] = verdicts.get(word, 0) + 1
        if cost is not None:
            looks.setdefault(number, []).append(cost)
        elif word != "unstable_baseline":
            looks.pop(number, None)
        return cost is not None

    for number, entry in enumerate(entries):
        data = (folder / entry["file"]).read_bytes()
        Cubin.parse(data)
        meta = {**own.meta, "ptxas": entry["ptxas"], "ptxas_flags": entry["flags"]}
        candidates.append(Candidate(replace(own, cubin=data, meta=meta), entry))
        for _ in range(1 if device.modelled else LOOKS):
            if not look(number):
                break
    leaders = sorted(looks, key=lambda n: (median(looks[n]), n))[:LEADERS]
    for _ in range(0 if device.modelled else MORE_LOOKS):
        for number in leaders:
            if number in looks:
                look(number)
    facts: Row = {
        "settings": max(1, len(entries)), "knob_verdicts": verdicts, "ptxas": own.meta.get("ptxas"),
        "flags": [],
    }  # fmt: skip
    leaders = sorted((n for n in leaders if n in looks), key=lambda n: (median(looks[n]), n))
    usual = 1.0
    if device.modelled:
        device.open(workload, case, own)
        usual = device.run(Candidate(own)).cycles
        facts |= modelled(max([1.0, *(usual / looks[n][0] for n in leaders)]))
    if not leaders:
        return own, facts
    best = candidates[leaders[0]]
    if best.kernel.cubin == own.cubin or median(looks[leaders[0]]) > WORTH * usual:
        return own, facts
    return best.kernel, facts | {"ptxas": best.recipe["ptxas"], "flags": best.recipe["flags"]}
