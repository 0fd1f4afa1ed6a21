"""`sassafras ptxas-options`: the fastest of what ptxas makes of one PTX, by measurement."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sassafras.core import Candidate, Case, Device, DeviceError, Kernel, SassafrasError, Workload, beats
from sassafras.core.errors import reason
from sassafras.frontend.ptxas_options import PtxasOptions, PtxasOptionSpace, fetch
from sassafras.sass import Cubin
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.draws import LAST_MOST, Draws, DrawSet, redraw
from sassafras.timing_model.evidence import correlation, refusal

#: quick looks at each candidate, and how many of the best are measured in fresh processes
LOOKS, FINALISTS = 3, 3
#: of so many of the fastest settings pairs are tried as well
COMBINED = 4
FORMAT = "sassafras-ptxas-options"
#: of files that earlier versions wrote; `load` reads them
OLD_FORMAT = "sassafras-knobs"


@dataclass(frozen=True, slots=True)
class PtxasOptionRow:
    """One distinct kernel.

    Attributes:
        ptxas, flags: how it was made.
        verdict: of the device; ``modelled`` on the timing model.
        speedup: over the frontend's own kernel, by the quick looks (median); modelled on the timing model.
        registers: a thread's.
        detail: why it was refused, or the final measurement in words.
    """

    ptxas: str
    flags: tuple[str, ...]
    verdict: str
    speedup: float | None
    registers: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PtxasOptionChoice:
    """The outcome.

    Attributes:
        workload, case, device, modelled: of what, on what.
        rows: every distinct kernel, fastest first.
        refused: settings that ptxas refused.
        settings: number of settings tried.
        best: the setting to use; the frontend's own unless another one is faster outside its null.
        speedup, low, high, null, null_low, null_high: of the best, measured afresh, or modelled
            on fresh draws of start times.
        kernel: the best one.
    """

    workload: str
    case: str
    device: str
    modelled: bool
    rows: tuple[PtxasOptionRow, ...]
    refused: tuple[str, ...]
    settings: int
    best: PtxasOptions
    ptxas: str
    speedup: float | None
    kernel: Kernel = field(repr=False)
    low: float | None = None
    high: float | None = None
    null: float | None = None
    null_low: float | None = None
    null_high: float | None = None

    def summary(self) -> str:
        """One line."""
        what = self.best.describe(self.ptxas)
        if self.best == PtxasOptions():
            return f"the frontend's own {what} stays: none of {len(self.rows) - 1} other kernels is faster"
        if self.modelled:
            if why := refusal(correlation(self.workload, self.case)):
                return f"{what}: {why}"
            if self.low is None:
                return f"{what}: modelled {self.speedup:.3f}x as selected, not re-drawn (not a measurement)"
        how = "modelled on fresh draws, not a measurement: " if self.modelled else ""
        return (
            f"{what}: {how}{self.speedup:.3f}x [{self.low:.3f}, {self.high:.3f}] over the frontend's own, "
            f"null {self.null:.3f} [{self.null_low:.3f}, {self.null_high:.3f}]"
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `load` reads ``best`` back."""
        out: dict[str, Any] = {"format": FORMAT}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "kernel":
                out["digest"] = value.digest
            elif f.name == "best":
                named = {x.name: getattr(value, x.name) for x in fields(value) if x.name != "ptxas"}
                out["best"] = {k: v for k, v in named.items() if v is not None}
            elif f.name == "rows":
                out["rows"] = [{x.name: getattr(r, x.name) for x in fields(r)} for r in value]
            else:
                out[f.name] = list(value) if isinstance(value, tuple) else value
        return out

    def save(self, folder: str | Path) -> Path:
        """Write ``<workload>-<case>.ptxas-options.json``, which ``optimize --ptxas-options`` takes."""
        path = Path(folder) / f"{self.workload}-{self.case}.ptxas-options.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        return path


def choose(
    space: PtxasOptionSpace,
    workload: Workload,
    case: Case,
    device: Device,
    settings: Sequence[PtxasOptions] | None = None,
    say: Callable[[str], None] | None = None,
) -> PtxasOptionChoice:
    """Look at every distinct kernel, combine the best settings, measure the finalists in fresh processes.

    Args:
        space: the kernels.
        workload, case: what they compute.
        device: opened here; `CudaDevice` measures, `ModelDevice` models.
        settings: which ones; None: `PtxasOptionSpace.sweep`.
        say: called with a line of text now and then.

    Raises:
        DeviceError, CompileError: as the device and ptxas raise them for the frontend's own kernel.
    """
    say = say or (lambda text: None)
    tried = list(settings) if settings is not None else list(space.sweep())
    if PtxasOptions() not in tried:
        tried.insert(0, PtxasOptions())
    say(f"assembling {len(tried)} settings")
    found, refused = space.distinct(tried)
    judge = _Judge(space, workload, case, device, {each.flags(): each for each in tried})
    say(f"judging {len(found)} distinct kernels")
    judge.all(found)
    pairs = _pairs(judge.fastest(COMBINED))
    judge.known |= {each.flags(): each for each in pairs}
    more, also = space.distinct(pairs)
    judge.all([c for c in more if c.digest not in judge.rows])
    refused += also
    tried += pairs
    ranked = sorted(judge.rows.values(), key=lambda r: -(r.speedup or 0.0))
    best, final = judge.final(say)
    options, version = judge.setting(best)
    return PtxasOptionChoice(
        workload.name,
        case.name,
        device.name,
        device.modelled,
        tuple(ranked),
        tuple(refused),
        len(tried),
        options,
        version,
        final.pop("speedup"),
        best.kernel,
        **final,
    )


class _Judge:
    def __init__(
        self,
        space: PtxasOptionSpace,
        workload: Workload,
        case: Case,
        device: Device,
        known: dict[tuple[str, ...], PtxasOptions],
    ) -> None:
        self.space, self.workload, self.case, self.device, self.known = space, workload, case, device, known
        self.rows: dict[str, PtxasOptionRow] = {}
        self.made: dict[str, Candidate] = {}
        self.own = space.candidate(PtxasOptions())
        self._cycles = 0.0

    def all(self, candidates: Sequence[Candidate]) -> None:
        """A row for each."""
        if not self.device.modelled:
            self.device.open(self.workload, self.case, self.own.kernel)
        elif not self._cycles:
            self._cycles = self._model(self.own.kernel)
        for candidate in candidates:
            self.made[candidate.digest] = candidate
            self.rows[candidate.digest] = self._one(candidate)

    def _one(self, candidate: Candidate) -> PtxasOptionRow:
        recipe = candidate.recipe
        registers = Cubin.parse(candidate.kernel.cubin).entries[candidate.kernel.name].registers
        row = PtxasOptionRow(str(recipe["ptxas"]), tuple(recipe["flags"]), "", None, registers)
        if self.device.modelled:
            try:
                return replace(row, verdict="modelled", speedup=self._cycles / self._model(candidate.kernel))
            except SassafrasError as error:
                return replace(row, verdict="unsupported", detail=str(error))
        looks = []
        for _ in range(LOOKS):
            outcome = self.device.run(candidate)
            if outcome.cost is None:
                return replace(row, verdict=str(outcome.verdict), detail=outcome.detail)
            looks.append(1 / outcome.cost)
        return replace(row, verdict="correct", speedup=statistics.median(looks))

    def _model(self, kernel: Kernel) -> float:
        self.device.open(self.workload, self.case, kernel)
        cycles = getattr(self.device.run(Candidate(kernel)), "cycles", None)
        if cycles is None:
            raise DeviceError("not modelled", where=kernel.name)
        return float(cycles)

    def fastest(self, count: int) -> list[PtxasOptions]:
        """Settings of the fastest kernels that beat the frontend's own."""
        able = [(r.speedup, d) for d, r in self.rows.items() if r.speedup is not None and r.speedup > 1.0]
        return [self.setting(self.made[d])[0] for _, d in sorted(able, reverse=True)[:count]]

    def setting(self, candidate: Candidate) -> tuple[PtxasOptions, str]:
        """The options that made a candidate, and the ptxas release."""
        version = str(candidate.recipe["ptxas"])
        return replace(self.known[tuple(candidate.recipe["flags"])], ptxas=self.space.tools[version]), version

    def final(self, say: Callable[[str], None]) -> tuple[Candidate, dict[str, Any]]:
        """The best one, and what it was measured at."""
        able = [(r.speedup, d) for d, r in self.rows.items() if r.speedup is not None and r.speedup > 1.0]
        able = [x for x in sorted(able, reverse=True) if x[1] != self.own.digest]
        if isinstance(self.device, ModelDevice):
            return self._redrawn(self.device, [digest for _, digest in able[:FINALISTS]], say)
        if self.device.modelled:
            if not able:
                return self.own, {"speedup": 1.0}
            return self.made[able[0][1]], {"speedup": able[0][0]}
        measured = []
        for _, digest in able[:FINALISTS]:
            say(f"measuring {self.rows[digest].ptxas} {' '.join(self.rows[digest].flags)} in fresh processes")
            outcome = self.device.remeasure(self.made[digest], processes=3, cold_l2=False)  # type: ignore[attr-defined]
            if outcome.verdict.ok and beats(outcome):
                measured.append((outcome.speedup, digest, outcome))
        if not measured:
            return self.own, {"speedup": 1.0}
        speedup, digest, outcome = max(measured, key=lambda x: x[0])
        return self.made[digest], _figures(speedup, outcome)

    def _redrawn(
        self, device: ModelDevice, finalists: Sequence[str], say: Callable[[str], None]
    ) -> tuple[Candidate, dict[str, Any]]:
        """The finalist that is best on draws of its own set, if others put it beyond the null."""
        say("modelling the finalists on fresh draws")

        def draws_of(candidate: Candidate) -> Draws:
            device.open(self.workload, self.case, candidate.kernel)
            return device.draws

        own, drawn = draws_of(self.own), {digest: draws_of(self.made[digest]) for digest in finalists}
        if drawn:
            best = min(drawn, key=lambda d: float(drawn[d].baseline(DrawSet.CHOICE, 0, LAST_MOST).mean()))
            new = redraw(
                lambda a, b: own.baseline(DrawSet.REPORT, a, b),
                lambda a, b: drawn[best].baseline(DrawSet.REPORT, a, b),
                lambda a, b: own.baseline(DrawSet.NULL, a, b),
            )
            if beats(new):
                return self.made[best], _figures(new.ratio, new)
        return self.own, {"speedup": 1.0}


def _figures(ratio: float, outcome: Any) -> dict[str, float]:
    """Fields of `PtxasOptionChoice` from a ratio that is outside its null."""
    return {
        "speedup": ratio,
        "low": outcome.interval.low,
        "high": outcome.interval.high,
        "null": outcome.null,
        "null_low": outcome.null_interval.low,
        "null_high": outcome.null_interval.high,
    }


def _pairs(settings: Sequence[PtxasOptions]) -> list[PtxasOptions]:
    """The options of each two settings together, where they do not contradict one another."""
    out: list[PtxasOptions] = []
    for n, a in enumerate(settings):
        for b in settings[n + 1 :]:
            both: dict[str, Any] = {}
            clash = False
            for f in fields(PtxasOptions):
                x, y = getattr(a, f.name), getattr(b, f.name)
                if f.name == "ptxas":
                    both[f.name] = x  # the faster one's
                    continue
                clash = clash or (x is not None and y is not None and x != y)
                both[f.name] = x if x is not None else y
            if not clash and PtxasOptions(**both) not in (*settings, *out):
                out.append(PtxasOptions(**both))
    return out


def load(
    path: str | Path, space_of: Callable[[Sequence[str] | None], PtxasOptionSpace]
) -> tuple[Candidate, str]:
    """The kernel that a saved choice names, assembled again, and a line that says so.

    Args:
        path: what `PtxasOptionChoice.save` wrote.
        space_of: makes the space from the ptxas programs to use (None: all that are found).

    Raises:
        SassafrasError: the file is no such choice, or its ptxas is not at hand.
    """
    file = Path(path)
    try:
        data = json.loads(file.read_text())
        version, best = data["ptxas"], data["best"]
        if data.get("format") not in (FORMAT, OLD_FORMAT) or not isinstance(best, dict):
            raise ValueError("it is of another format")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SassafrasError(
            f"cannot read a choice of ptxas options: {reason(error)}",
            where=str(file),
            hint="make one with `sassafras ptxas-options`",
        ) from None
    space = space_of(None)
    if version not in space.tools:
        try:
            space = space_of([str(fetch(version))])
        except SassafrasError as error:
            raise SassafrasError(f"ptxas {version} is not here: {error}", where=str(file)) from None
    unknown = set(best) - {f.name for f in fields(PtxasOptions)}
    if unknown:
        raise SassafrasError(f"unknown ptxas options {sorted(unknown)}", where=str(file))
    made = space.candidate(PtxasOptions(ptxas=space.tools[version], **best))
    return made, f"baseline: ptxas {version} {' '.join(made.recipe['flags'])}".rstrip()
