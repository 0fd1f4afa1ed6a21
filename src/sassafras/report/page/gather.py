"""Contents of a report as plain values, read from stores and result files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import Interval, SassafrasError, StoreError, beats
from sassafras.core.errors import reason
from sassafras.store import RunRecord, Store
from sassafras.timing_model.evidence import correlation, refusal

#: a candidate tree larger than this is cut to its best branches
MOST_NODES = 400


def _real(value: Any) -> float | None:
    """JSON may hold anything where a figure is expected."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return None if value is None else float(value)
    raise StoreError(f"a figure is expected, not {str(value)[:40]!r}", hint="the source is damaged or forged")


def _interval(ends: Any) -> Interval | None:
    if ends is None:
        return None
    a, b = map(_real, ends)
    if a is None or b is None:
        raise StoreError("an interval lacks a bound", hint="the source is damaged or forged")
    return Interval(a, b)


@dataclass(frozen=True, slots=True)
class Node:
    """A candidate that says which other it was made from.

    Attributes:
        digest, parent: sha256 of their cubins, or whatever else the recipe calls them by.
        ratio: speed-up, measured or modelled as the run is; None where there is none.
        verdict: as text.
        label: a word or two from the recipe.
    """

    digest: str
    parent: str
    ratio: float | None
    verdict: str
    label: str


@dataclass(frozen=True, slots=True)
class StageView:
    """What a stage of a search selected on, and the re-measured figure of its best.

    Attributes:
        name: of the stage.
        ratio, interval, null_interval: re-measured, or modelled on fresh draws, over the baseline.
        as_selected: the search's own figure; None where the baseline stayed.
        corrected: less what the largest of so many equal candidates is too large, in expectation, at most.
        candidates: how many there were.
        retained: `ratio` / `as_selected`.
    """

    name: str
    ratio: float | None
    interval: Interval | None
    null_interval: Interval | None
    as_selected: float | None
    corrected: float | None
    candidates: float | None
    retained: float | None


@dataclass(frozen=True)
class RunView:
    """One search.

    Attributes:
        key: unique in the page, ``run-3``.
        name: workload and case.
        record: as the store has it.
        verdicts: outcomes by verdict.
        curve: (evaluations, seconds of budget, best ratio so far) at the start, at each improvement, at the end.
        nodes: candidates with a parent.
    """

    key: str
    name: str
    store: Path
    record: RunRecord
    verdicts: Mapping[str, int]
    curve: tuple[tuple[int, float, float], ...]
    nodes: tuple[Node, ...] = ()

    @property
    def result(self) -> Mapping[str, Any]:
        """What the run reported; empty while it can be resumed."""
        return self.record.result or {}

    @property
    def ratio(self) -> float | None:
        """The reported speed-up or modelled ratio."""
        found = self.result.get("modelled_ratio" if self.record.modelled else "speedup")
        return None if found is None or self.refusal else float(found)

    @property
    def interval(self) -> Interval | None:
        """Of `ratio`; None of a modelled one that is what the search selected on, not re-drawn."""
        return _interval(self.result.get("interval"))

    @property
    def null_interval(self) -> Interval | None:
        """Of the null experiment beside it."""
        return _interval(self.result.get("null_interval"))

    @property
    def stages(self) -> list[StageView]:
        """Of a search by stages; empty of others, and where its figures are no evidence."""
        facts = self.result.get("facts")
        rows = facts.get("stages") if isinstance(facts, Mapping) and not self.refusal else None
        figures = ("as_selected", "corrected", "candidates", "retained")
        return [
            StageView(
                str(row.get("stage", "")),
                _real(row.get("ratio")),
                _interval(row.get("interval")),
                _interval(row.get("null_interval")),
                *(_real(row.get(name)) for name in figures),
            )
            for row in rows or ()
            if isinstance(row, Mapping)
        ]

    @property
    def refusal(self) -> str:
        """Why the modelled ratio is no evidence for this kernel; empty where it may be quoted."""
        return refusal(correlation(self.record.workload, self.record.case)) if self.record.modelled else ""

    @property
    def tau(self) -> str:
        """The model's rank correlation for this kernel, and the ceiling that noise allows."""
        found = self.result.get("correlation")
        if not found:
            return "not measured"
        ceiling = found.get("ceiling")
        return f"{found['kendall_tau']:.2f}" + ("" if ceiling is None else f" of {ceiling:.2f}")

    @property
    def remark(self) -> str:
        """What a reader has to know of a modelled ratio."""
        if self.refusal or self.ratio is None:
            return self.refusal
        if not self.result.get("improved"):
            return "nothing beat the baseline"
        return "as selected, not re-drawn" if self.interval is None else ""

    @property
    def counts(self) -> bool:
        """Is it a gain that lies beyond its null?"""
        return bool(self.result.get("improved")) and self.ratio is not None and beats(self)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One speed-up that was measured, with its interval and its null experiment.

    Attributes:
        name: kernel and shape.
        anchor: where on the page there is more, or empty.
        source: file or run that it comes from.
    """

    name: str
    speedup: float
    interval: Interval
    null: float | None
    null_interval: Interval | None
    baseline_us: float | None
    gpu: str
    source: str
    anchor: str = ""
    note: str = ""

    @property
    def counts(self) -> bool:
        """Does its interval lie wholly above the null's (and above 1)?"""
        null = self.null_interval.high if self.null_interval else 1.0
        return self.interval.low > max(null, 1.0)


@dataclass
class Gathered:
    """Everything that a page shows.

    Attributes:
        runs: searches, from stores.
        measured: speed-ups, from runs and result files.
        explanations: JSON of `Explanation.to_json`, given as files.
        environments: (where from, facts).
        notes: what could not be read or shown, and why.
    """

    runs: list[RunView] = field(default_factory=list)
    measured: list[MeasuredRow] = field(default_factory=list)
    explanations: list[dict[str, Any]] = field(default_factory=list)
    environments: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def gather(sources: Sequence[str | Path] = (), store: str | Path | None = None) -> Gathered:
    """Read what is named.

    Args:
        sources: stores (any SQLite file of ours), ``run:N`` of `store`, results that `Result.save` wrote, of
            such runs, result files of the project's format (``benchmarks/results/*.json``), explanations that
            `Explanation.save` wrote; none: all of `store`.
        store: the store for ``run:N``; None for the default.

    Raises:
        SassafrasError: a source cannot be read, or is nothing that a report can show.
    """
    found = Gathered()
    texts = [str(s) for s in sources]
    numbers: list[int] = []
    for text in texts:
        if text.startswith("run:"):
            if not text[4:].isdigit():
                raise SassafrasError(
                    f"{text!r} names no run", hint="run:3, as `sassafras store list` numbers them"
                )
            numbers.append(int(text[4:]))
        elif Path(text).suffix == ".json":
            numbers += _file(found, Path(text), store)
        else:
            _store(found, Path(text), None)
    if numbers or not texts:
        _store(found, None if store is None else Path(store), numbers or None)
    if not (found.runs or found.measured or found.explanations):
        raise SassafrasError(
            "there is nothing to report",
            where=", ".join(found.sources) or None,
            hint="run `sassafras optimize` first",
        )
    return found


def _store(found: Gathered, path: Path | None, numbers: Sequence[int] | None) -> None:
    with Store.open(path, readonly=True) as store:
        found.sources.append(store.path.name)
        records = store.runs() if numbers is None else [store.run(n) for n in numbers]
        for record in records:
            view = _run(store, record, f"run-{len(found.runs) + 1}")
            found.runs.append(view)
            found.environments.append((f"run {record.id}, {view.name}", record.environment))
            if not record.modelled and (row := _measured(view)):
                found.measured.append(row)


def _run(store: Store, record: RunRecord, key: str) -> RunView:
    verdicts: Counter[str] = Counter()
    nodes: list[Node] = []
    curve: list[tuple[int, float, float]] = []
    best, seconds, n = 0.0, 0.0, 0
    # a schedule search's recipes name no parents, or the few outputs of ptxas that `RunView.stages` shows:
    # unpacking thousands of them would be for nothing
    kind = str(record.spec.get("space", ""))
    looks_for_parents = "ScheduleSpace" not in kind and "CompilerSpace" not in kind
    for n, step in enumerate(store.steps(record.id), 1):
        seconds += step.took
        kind = step.verdict or "modelled"
        verdicts[kind] += 1
        ratio = step.ratio if kind in ("correct", "modelled") else None
        if ratio is not None and ratio > best:
            best = ratio
            curve.append((n, seconds, best))
        if looks_for_parents:
            recipe = step.recipe
            if isinstance(parent := recipe.get("parent"), str):
                nodes.append(Node(step.digest, parent, ratio, kind, _label(recipe)))
    if n and (not curve or curve[-1][0] != n):
        curve.append((n, seconds, best))
    nodes.sort(key=lambda node: -(node.ratio or 0.0))
    return RunView(
        key,
        f"{record.workload} {record.case}",
        store.path,
        record,
        dict(verdicts),
        tuple(curve),
        tuple(nodes[:MOST_NODES]),
    )


def _label(recipe: Mapping[str, Any]) -> str:
    for name in ("note", "label", "origin", "model", "space"):
        if isinstance(value := recipe.get(name), str) and value:
            return value[:60]
    return ""


def _measured(view: RunView) -> MeasuredRow | None:
    result, interval = view.result, view.interval
    if result.get("speedup") is None or interval is None:
        return None
    return MeasuredRow(
        view.name,
        float(result["speedup"]),
        interval,
        _real(result.get("null")),
        view.null_interval,
        _real(result.get("baseline_us")),
        view.record.device,
        f"run {view.record.id}",
        view.key,
        "" if result.get("improved") else "nothing beat the baseline",
    )


def _file(found: Gathered, path: Path, store: str | Path | None) -> list[int]:
    """Take in a file; returns the run that it is the result of."""
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SassafrasError(f"cannot be read: {reason(error)}", where=str(path)) from error
    found.sources.append(path.name)
    if isinstance(facts, dict) and facts.get("format") == 1 and "moves" in facts:
        found.explanations.append(facts)
        return []
    of = facts.get("baseline") if isinstance(facts, dict) else None
    if isinstance(of, dict) and isinstance(run := facts.get("run"), int):
        with Store.open(store, readonly=True) as opened:
            if opened.run(run).baseline != of.get("digest"):
                raise StoreError(f"run {run} of this store is another search", where=str(path))
        return [run]
    rows = facts.get("rows") if isinstance(facts, dict) else None
    kept = [row for row in rows or () if isinstance(row, dict) and {"speedup", "speedup_low"} <= row.keys()]
    if not kept:
        raise StoreError(
            "no speed-ups with intervals in this file",
            where=str(path),
            hint="a report shows stores, runs, result files with speedup and speedup_low, and explanations",
        )
    environment = facts.get("environment") or {}
    for row in kept:
        low, high = row.get("null_low"), row.get("null_high")
        interval = (
            None if row["speedup_low"] is None else _interval((row["speedup_low"], row["speedup_high"]))
        )
        if row["speedup"] is None or interval is None:
            continue
        found.measured.append(
            MeasuredRow(
                f"{row.get('kernel', '')} {row.get('shape', row.get('stage', ''))}".strip(),
                float(row["speedup"]),
                interval,
                _real(row.get("null")),
                None if low is None or high is None else _interval((low, high)),
                _real(row.get("baseline_us")),
                str(environment.get("gpu", "")),
                path.name,
            )
        )
    about = {k: facts[k] for k in ("date", "command", "commit", "seed") if facts.get(k) is not None}
    found.environments.append((path.name, {**about, **environment}))
    return []
