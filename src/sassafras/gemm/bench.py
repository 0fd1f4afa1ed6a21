"""The benchmark: select in one process, report from others. Starts workers, survives them, resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError

from . import summary
from .compile import build
from .families import INSTANCES
from .journal import Journal
from .journal import read as read_journal
from .select import Options
from .shapes import Shape

#: how often a worker may die before the run is given up
_DEATHS = 25
Say = Callable[[str], None]


def run(
    shapes: Sequence[Shape],
    folder: Path,
    options: Options | None = None,
    *,
    mode: str = "offline",
    processes: int = 1,
    fresh: bool = False,
    cache: Path | None = None,
    progress: int = 1,
    say: Say = print,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows (one a shape, in the given order) and their summary.

    Args:
        folder: journals go here; the same call resumes from them.
        mode: only ``offline`` (calls back to back, warm L2) exists so far.
        processes: fresh processes that measure; the speed-up's interval is hierarchical from 2 on.
        fresh: delete earlier journals of this folder.
        cache: folder of compiled cubins.
        progress: print every so many shapes, 0 for never.

    Raises:
        SassafrasError: nothing to do, or a mode that does not exist.
        DeviceError: workers die again and again.
        CompileError, ToolMissing: our kernels cannot be built.
    """
    if mode != "offline":
        raise SassafrasError(f"mode {mode!r} does not exist yet", hint="offline is the only one so far")
    if not shapes or processes < 1:
        raise SassafrasError("the benchmark needs at least one shape and one process")
    from sassafras.device.cuda import available

    found, reason = available()
    if not found:
        raise DeviceError(f"the benchmark needs a GPU: {reason}")
    options = options or Options()
    folder.mkdir(parents=True, exist_ok=True)
    selection = folder / "hgemm-select.jsonl"
    measured = [folder / f"hgemm-measure-{index}.jsonl" for index in range(processes)]
    if fresh:
        for path in (selection, *folder.glob("hgemm-measure-*.jsonl")):
            path.unlink(missing_ok=True)
    begin = time.perf_counter()
    build(INSTANCES, cache)
    say(f"{len(INSTANCES)} kernels built or found in {time.perf_counter() - begin:.1f} s")
    texts = [str(shape) for shape in shapes]
    base = {"options": asdict(options), "cache": str(cache) if cache else None, "progress": progress}
    _work({**base, "mode": "select", "shapes": texts, "journal": str(selection)}, say)
    chosen = {r["shape"]: r for r in read_journal(selection)[1:] if "begun" not in r}
    usable = [text for text in texts if "error" not in chosen[text]]
    for index, journal in enumerate(measured):
        plan = {
            **base, "mode": "measure", "shapes": usable, "journal": str(journal), "selection": str(selection),
            "process": index,
        }  # fmt: skip
        if usable:
            _work(plan, say)
    rows = [_row(text, chosen[text], measured) for text in texts]
    return rows, summary.summarise(rows)


def _row(text: str, chosen: dict[str, Any], journals: Sequence[Path]) -> dict[str, Any]:
    shape = Shape.parse(text)
    head = {"shape": text, "m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band}
    if "error" in chosen:
        return {**head, "error": f"selection: {chosen['error']}"}
    found = [
        record
        for path in journals
        for record in read_journal(path)[1:]
        if record.get("shape") == text and "begun" not in record
    ]
    good = [record for record in found if "error" not in record]
    if len(good) < len(journals):
        errors = [record["error"] for record in found if "error" in record]
        return {**head, "error": errors[0] if errors else "not measured"}
    return {**head, **summary.merge(good), "wrong_in_selection": len(chosen.get("wrong", []))}


def _work(plan: dict[str, Any], say: Say) -> None:
    """Run workers until every shape of the plan is in the journal."""
    path = Path(plan["journal"])
    plan_path = path.with_suffix(".plan.json")
    plan_path.write_text(json.dumps(plan))
    root = str(Path(__file__).resolve().parent.parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": root + (os.pathsep + inherited if inherited else "")}
    for _ in range(_DEATHS):
        worker = [sys.executable, "-P", "-m", "sassafras.gemm.worker", str(plan_path)]
        status = subprocess.run(worker, env=environment, check=False).returncode
        if status == 0:
            plan_path.unlink(missing_ok=True)
            return
        if not path.exists():
            break
        header = read_journal(path)[0]["header"]
        journal = Journal(path, header)
        lost = journal.interrupted()
        for shape in lost:
            band = Shape.parse(shape).band
            journal.finish({"shape": shape, "band": band, "error": f"the worker ended with status {status}"})
        say(f"a worker ended with status {status}" + (f" in {', '.join(lost)}" if lost else ""))
        if not lost and status == 1:
            break
    raise DeviceError(f"the {plan['mode']} worker cannot finish; its messages are above", where=path.name)
