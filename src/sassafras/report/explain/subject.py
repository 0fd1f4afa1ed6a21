"""The subject of `explain`: an original, a tuned cubin for it, and the case to evaluate them on."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sassafras import suite
from sassafras.core import Case, Kernel, SassafrasError, StoreError, Workload, WorkloadError
from sassafras.core.errors import os_errors
from sassafras.frontend.description import case_of
from sassafras.jobs.opening import DEFAULT_ARCH, read_store
from sassafras.store import RunRecord, Store
from sassafras.targets import load

_RUN = re.compile(r"run:(\d+)")


@dataclass(frozen=True)
class ExplainSubject:
    """An original and its tuned schedule.

    Attributes:
        workload, case, baseline: what was tuned.
        tuned: the tuned cubin.
        name: for messages.
    """

    workload: Workload
    case: Case
    baseline: Kernel = field(repr=False)
    tuned: bytes = field(repr=False)
    name: str


def find(
    target: str | Path | Workload,
    *,
    tuned: str | Path | bytes | None = None,
    case: str | None = None,
    arch: str | None = None,
    store: str | Path | Store | None = None,
) -> ExplainSubject:
    """What `target` names; see `explain`.

    Raises:
        SassafrasError: there is no such thing, or nothing tuned for it.
    """
    text = "" if isinstance(target, Workload) else str(target)
    run = _RUN.fullmatch(text)
    if run or (text.endswith(".json") and not _is_capture(Path(text))):
        for name, value in (("tuned", tuned), ("arch", arch)):
            if value is not None:
                raise SassafrasError(f"--{name} is for a workload, this is a run with its own", where=text)
        found = _of_number(store, int(run[1])) if run else _of_file(Path(text), store)
        return found if case is None else replace(found, case=found.workload.case(case))
    workload = target if isinstance(target, Workload) else load(text)
    which = workload.case(case)
    baseline = workload.build(which, arch or DEFAULT_ARCH)
    name = f"{workload.name} {which.name}"
    if tuned is not None:
        return ExplainSubject(
            workload, which, baseline, tuned if isinstance(tuned, bytes) else _read(Path(tuned)), name
        )
    with read_store(store) as opened:
        return ExplainSubject(workload, which, baseline, _best(opened, baseline.digest, name), name)


def of_run(store: Store, run: int) -> ExplainSubject:
    """The result of a run.

    Raises:
        StoreError: there is no such run, it is not finished, or nothing beat its baseline.
        WorkloadError: its case is not known any more.
    """
    record = store.run(run)
    where = f"run {run}"
    if record.result is None:
        raise StoreError("the run has not finished", where=where, hint="the command that began it resumes it")
    if not record.result.get("improved"):
        raise StoreError("nothing beat the baseline", where=where, hint="there is nothing to explain")
    baseline = store.baseline(run)
    workload, case = described(record)
    return ExplainSubject(workload, case, baseline, store.cubin(record.result["kernel"]["digest"]), where)


def described(record: RunRecord) -> tuple[Workload, Case]:
    """The workload and case of a run, from what the store says of them; no file of the user's is executed.

    Raises:
        WorkloadError: the store does not say, and it is no workload of the suite.
    """
    table = record.environment.get("case")
    if isinstance(table, dict):
        case = case_of(table, f"run {record.id}")
        return Workload(
            record.workload, (case,), _cannot_build, source=record.environment.get("target")
        ), case
    if record.workload not in suite.names():
        raise WorkloadError(
            "this run was recorded before cases were",
            where=f"run {record.id}, {record.workload}",
            hint="name the workload's file instead",
        )
    workload = suite.load(record.workload)
    return workload, workload.case(record.case)


def _cannot_build(*_: Any) -> Kernel:
    raise WorkloadError("this workload is known from the store alone and cannot be compiled")


def _is_capture(path: Path) -> bool:
    try:
        return "variants" in json.loads(_read(path))
    except (ValueError, TypeError):
        return False


def _of_number(store: Any, run: int) -> ExplainSubject:
    with read_store(store) as opened:
        return of_run(opened, run)


def _of_file(path: Path, store: Any) -> ExplainSubject:
    try:
        facts = json.loads(_read(path))
        name, original, run = facts["workload"], facts["baseline"]["digest"], facts["run"]
    except (ValueError, KeyError, TypeError) as error:
        raise SassafrasError("this is not a result that Sassafras wrote", where=str(path)) from error
    tuned = _read(path.with_suffix(".cubin"))
    if run is None:
        raise SassafrasError(
            "this result is in no store",
            where=str(path),
            hint=f"explain the workload with --tuned {path.stem}.cubin",
        )
    with read_store(store) as opened:
        record = opened.run(run)
        if record.baseline != original:
            raise StoreError(f"run {run} of this store is another search ({name})", where=str(path))
        workload, which = described(record)
        return ExplainSubject(workload, which, opened.baseline(run), tuned, str(path))


def _best(store: Store, original: str, name: str) -> bytes:
    """The measured winner with the best interval for this original, else the timing model's best."""
    for winners in (store.winners(original=original), store.modelled_winners(original=original)):
        if winners:
            return winners[0].kernel.cubin
    searched = [run.result for run in store.runs() if run.baseline == original and run.result is not None]
    if searched and not any(result.get("improved") for result in searched):
        raise StoreError(
            "nothing beat the baseline: there is nothing to explain",
            where=name,
            hint="a larger --budget of `sassafras optimize` may, or name a cubin with --tuned",
        )
    raise StoreError(
        "the store has no tuned kernel for it",
        where=name,
        hint="run `sassafras optimize` first, or name a cubin with --tuned",
    )


def _read(path: Path) -> bytes:
    with os_errors("cannot read the file", path):
        return path.read_bytes()
