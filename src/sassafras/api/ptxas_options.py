"""`sassafras ptxas-options`: the fastest of what ptxas makes of one PTX, by measurement."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sassafras.core import Candidate, Case, Device, Kernel, Redrawing, SassafrasError, Workload, beats
from sassafras.core.errors import os_errors, reason
from sassafras.core.files import write_whole
from sassafras.frontend.ptx import PtxSpace, PtxState
from sassafras.frontend.ptxas_options import PtxasOptions, controls_digest, fetch
from sassafras.jobs.result import file_stem
from sassafras.sass import Cubin
from sassafras.timing_model.evidence import correlation, refusal

from .ptx_search import device_for

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
        speedup, low, high, null, null_low, null_high: of the best, measured afresh (after
            it was chosen), or modelled on fresh draws of start times.
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
                out["best"] = value.given()
                if value.controls is not None:
                    out["controls"] = controls_digest(value.controls)
            elif f.name == "rows":
                out["rows"] = [{x.name: getattr(r, x.name) for x in fields(r)} for r in value]
            else:
                out[f.name] = list(value) if isinstance(value, tuple) else value
        return out

    def save(self, folder: str | Path) -> Path:
        """Write ``<workload>-<case>.ptxas-options.json``, which ``optimize --ptxas-options`` takes.

        Raises:
            SassafrasError: it cannot be written.
        """
        path = Path(folder) / f"{file_stem(f'{self.workload}-{self.case}')}.ptxas-options.json"
        with os_errors("cannot write the choice", path):
            write_whole(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path


def choose(
    space: PtxSpace,
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
        settings: which ones; None: `PtxSpace.sweep`.
        say: called with a line of text now and then.

    Raises:
        DeviceError, CompileError: as the device and ptxas raise them for the frontend's own kernel.
    """
    say, device = say or (lambda text: None), device_for(device)
    tried = list(settings) if settings is not None else [each.options for each in space.sweep()]
    if PtxasOptions() not in tried:
        tried.insert(0, PtxasOptions())
    say(f"assembling {len(tried)} settings")
    found, refused = space.distinct([PtxState(each) for each in tried])
    judge = _Judge(space, workload, case, device)
    say(f"judging {len(found)} distinct kernels")
    judge.all(found)
    both = pairs(judge.fastest(COMBINED))
    more, also = space.distinct([PtxState(each) for each in both])
    judge.all([c for c in more if c.digest not in judge.rows])
    refused += also
    tried += both
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
    def __init__(self, space: PtxSpace, workload: Workload, case: Case, device: Device) -> None:
        self.space, self.device = space, device
        self.rows: dict[str, PtxasOptionRow] = {}
        self.made: dict[str, Candidate] = {}
        self.own = space.build(PtxState())
        device.open(workload, case, self.own.kernel)

    def all(self, candidates: Sequence[Candidate]) -> None:
        """A row for each."""
        for candidate in candidates:
            self.made[candidate.digest] = candidate
            self.rows[candidate.digest] = self._one(candidate)

    def _one(self, candidate: Candidate) -> PtxasOptionRow:
        recipe = candidate.recipe
        registers = Cubin.parse(candidate.kernel.cubin).entries[candidate.kernel.name].registers
        row = PtxasOptionRow(str(recipe["ptxas"]), tuple(recipe["flags"]), "", None, registers)
        looks = []
        for _ in range(1 if self.device.modelled else LOOKS):
            outcome = self.device.run(candidate)
            if outcome.cost is None:
                return replace(row, verdict=str(outcome.verdict), detail=outcome.detail)
            looks.append(1 / outcome.cost)
        verdict = "modelled" if self.device.modelled else "correct"
        return replace(row, verdict=verdict, speedup=statistics.median(looks))

    def fastest(self, count: int) -> list[PtxasOptions]:
        """Settings of the fastest kernels that beat the frontend's own."""
        able = [(r.speedup, d) for d, r in self.rows.items() if r.speedup is not None and r.speedup > 1.0]
        return [self.setting(self.made[d])[0] for _, d in sorted(able, reverse=True)[:count]]

    def setting(self, candidate: Candidate) -> tuple[PtxasOptions, str]:
        """The options that made a candidate, and the ptxas release."""
        version = str(candidate.recipe["ptxas"])
        return PtxState.from_json(candidate.recipe, self.space.tools[version]).options, version

    def final(self, say: Callable[[str], None]) -> tuple[Candidate, dict[str, Any]]:
        """The best one, and what it was measured at."""
        able = [(r.speedup, d) for d, r in self.rows.items() if r.speedup is not None and r.speedup > 1.0]
        able = [x for x in sorted(able, reverse=True) if x[1] != self.own.digest]
        device: Any = self.device
        if device.modelled and not isinstance(device, Redrawing):
            best = self.made[able[0][1]] if able else self.own
            return best, {"speedup": self.rows[best.digest].speedup if able else 1.0}
        finalists = [self.made[digest] for _, digest in able[:FINALISTS]]
        how: dict[str, Any] = {"processes": 3, "cold_l2": False}
        if device.modelled:  # (draws that nothing was selected on)
            finalists, how = sorted(finalists, key=lambda one: device.look(one, 0).cost)[:1], {}
        measured = []
        for candidate in finalists:
            row = self.rows[candidate.digest]
            say(
                f"{row.ptxas} {' '.join(row.flags)} "
                + ("on fresh draws" if not how else "in fresh processes")
            )
            outcome = device.remeasure(candidate, **how)
            if outcome.cost is not None and beats(outcome):
                measured.append((1 / outcome.cost, candidate, outcome))
        if not measured:
            return self.own, {"speedup": 1.0}
        speedup, candidate, outcome = max(measured, key=lambda x: x[0])
        if len(finalists) > 1:  # the best of several owes its place to luck, too
            say("the fastest once more")
            outcome = device.remeasure(candidate, **how)
            if outcome.cost is None or not beats(outcome):
                return self.own, {"speedup": 1.0}
            speedup = 1 / outcome.cost
        return candidate, _figures(speedup, outcome)


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


def pairs(settings: Sequence[PtxasOptions]) -> list[PtxasOptions]:
    """The options of each two settings together, where they do not contradict one another."""
    out: list[PtxasOptions] = []
    for a, b in itertools.combinations(settings, 2):
        x, y = a.given(), b.given()
        both = PtxasOptions(a.ptxas, **{**y, **x})  # under the faster one's ptxas
        if all(x[name] == y[name] for name in x.keys() & y.keys()) and both not in (*settings, *out):
            out.append(both)
    return out


def load(path: str | Path, space_of: Callable[[Sequence[str] | None], PtxSpace]) -> tuple[Candidate, str]:
    """The kernel that a saved choice names, assembled again, and a line that says so.

    Args:
        path: what `PtxasOptionChoice.save` wrote, or the JSON file of `optimize --space ptx`.
        space_of: makes the space from the ptxas programs to use (None: all that are found).

    Raises:
        SassafrasError: the file is no such choice, its ptxas is not at hand, or a file for ptxas has changed.
    """
    file = Path(path)
    try:
        data = json.loads(file.read_text())
        if (recipe := data.get("recipe", {})).get("space") == "ptx":
            data = {**recipe, "best": recipe["options"], "format": FORMAT}
        version, best, rewrites = data["ptxas"], data["best"], data.get("rewrites", [])
        if data.get("format") not in (FORMAT, OLD_FORMAT) or not isinstance(best, dict):
            raise ValueError("it is of another format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    try:
        state = PtxState.from_json({"options": best, "rewrites": rewrites}, space.tools[version])
    except SassafrasError as error:
        raise SassafrasError(error.what, where=str(file)) from None
    if (controls := state.options.controls) is not None and controls_digest(controls) != data.get("controls"):
        raise SassafrasError(f"the file of {controls} has changed", where=str(file))
    return space.build(state), f"baseline: {state.describe(version)}"
