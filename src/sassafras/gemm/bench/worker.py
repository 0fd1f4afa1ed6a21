"""The process that touches a GPU: ``python -m sassafras.gemm.bench.worker PLAN.json``.

The plan names a mode (``select`` or ``measure``), the shapes, the journal to append to, and the options. The
process ends with status 3 when its CUDA context is lost; whoever started it starts another for the rest.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError

from ..problem.shape import LAYOUTS, Shape
from .faults import FaultTracker, of_plan
from .journal import Journal
from .journal import read as read_journal
from .judge import Judge, answer
from .options import MEASURING, SELECTING, Options
from .tune import choose

LOST = 3


def kernels_digest(layouts: Sequence[str] = LAYOUTS) -> str:
    """Hash of the text of all our kernels for these layouts: what measurements belong to."""
    from ..build.cubins import source
    from ..configs.backward import instances

    return hashlib.sha256("".join(source(i) for i in instances(layouts)).encode()).hexdigest()[:16]


def asked(plan: dict[str, Any]) -> dict[str, Any]:
    """The part of `conditions` that is known without a GPU."""
    wanted = SELECTING if plan["mode"] == "select" else MEASURING
    header = {
        "mode": plan["mode"],
        "options": {name: plan["options"][name] for name in wanted},
        "kernels": kernels_digest(plan["options"]["layouts"]),
    }
    if plan["mode"] == "measure":
        header |= {"process": plan["process"], "how": plan["how"]}
    return header


def conditions(plan: dict[str, Any], stage: Any) -> dict[str, Any]:
    """What must be equal for records to belong together."""
    import importlib.metadata

    header = asked(plan) | {"cublaslt": stage.lt.version, "modelled": stage.modelled}
    if not stage.modelled:
        import torch

        header |= {"torch": importlib.metadata.version("torch"), "gpu": torch.cuda.get_device_name(0)}
    return header


class ShapeWorker:
    """A GPU (or the modelled clock) with a plan: what works one shape after another off.

    Args:
        plan: ``mode`` (``select``, ``measure``; ``judge``, ``confirm``), ``options``, ``cache``, ``dry``; of
            a measurement also ``process`` and ``how``, of a confirmation ``process``.

    Attributes:
        header: the conditions that its records belong to.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.options = Options(**plan["options"])
        self.stage = _stage(plan)
        self.header = conditions(plan, self.stage)
        self._judge: Judge | None = None

    def work(
        self, text: str, selection: dict[str, Any] | None, trials: FaultTracker | None = None
    ) -> tuple[dict[str, Any], bool]:
        """(the shape's record, whether the context is lost); a failure is a record with ``error``.

        Args:
            text: the shape.
            selection: what was chosen for it, for a measurement.
            trials: which candidates have lost a context, for a selection.
        """
        return self.answer({"shape": text, "selection": selection}, trials)

    def answer(
        self, question: dict[str, Any], trials: FaultTracker | None = None
    ) -> tuple[dict[str, Any], bool]:
        """The same for a question of any mode; see `judge.answer` for those of a search."""
        from sassafras.cuda.driver import CudaError

        text = question["shape"]
        shape = Shape.parse(text)
        started = time.perf_counter()
        lost = False
        try:
            record = self._answer(shape, question, trials)
        except Exception as error:
            record = {
                "shape": text,
                "band": shape.band,
                "error": f"{type(error).__name__}: {error}",
            }
            traceback.print_exc()
            lost = (isinstance(error, CudaError) and error.sticky) or "CUDA error" in str(error)
        if not lost:
            record["seconds"] = round(time.perf_counter() - started, 3)
        return record, lost

    def _answer(self, shape: Shape, question: dict[str, Any], trials: FaultTracker | None) -> dict[str, Any]:
        from .measure import measure

        if self.plan["mode"] == "select":
            return choose(self.stage, shape, self.options, trials)
        if self.plan["mode"] != "measure":
            if self._judge is None:
                self._judge = Judge(self.stage, self.options)
            return answer(self._judge, self.plan, question)
        selection = question.get("selection")
        if selection is None:
            raise SassafrasError("nothing was selected for this shape", where=str(shape))
        row = measure(self.stage, selection, self.options, self.plan["process"], self.plan["how"])
        return {"shape": str(shape), **row}


def main(path: str) -> int:
    """Work a plan off, until its shapes are done or its deadline has passed."""
    plan = json.loads(Path(path).read_text())
    station = ShapeWorker(plan)
    journal = Journal(Path(plan["journal"]), station.header)
    done = journal.done()
    selections: dict[str, Any] = {}
    for file in plan.get("selections", []):
        selections |= {r["shape"]: r for r in read_journal(Path(file))[1:] if "begun" not in r}
    begin = time.perf_counter()
    for number, text in enumerate(plan["shapes"], 1):
        if text in done:
            continue
        if plan.get("deadline") and time.time() > plan["deadline"]:
            print(
                f"{plan['mode']}: time is up after {number - 1} of {len(plan['shapes'])} shapes", flush=True
            )
            return 0
        journal.begin(text)
        record, lost = station.work(text, selections.get(text), of_plan(plan, text, journal))
        if lost:  # whoever started this process decides whether the shape is tried again
            journal.note(text, lost=record["error"])
            return LOST
        journal.finish(record)
        if (every := plan.get("progress")) and number % every == 0:
            spent = time.perf_counter() - begin
            print(
                f"{plan['mode']} {number}/{len(plan['shapes'])} {text} {brief(record)} {spent:.1f} s",
                flush=True,
            )
    return 0


def _stage(plan: dict[str, Any]) -> Any:
    cache = Path(plan["cache"]) if plan.get("cache") else None
    if plan.get("dry"):
        from .dry_run import DryContestants

        return DryContestants(cache, plan["options"]["seed"])
    from .contestants import Contestants

    return Contestants(cache)


def brief(record: dict[str, Any]) -> str:
    """A record in a few words."""
    if "error" in record:
        return str(record["error"])
    if "lt_autotune" in record:
        names = ("ours", "portfolio", "lt_autotune", "lt_heuristic", "cublas", "torch")
        times = " ".join(f"{name} {record[name]:.2f}" for name in names if record.get(name))
        return f"{times} us, speed-up {record.get('speedup', float('nan')):.3f}, null {record['null']:.3f}"
    ours = record.get("ours_us")
    text = f"AutoTuning {record['baseline_us']:.2f}"
    return text + (
        f", {record['ours']} {ours:.2f} us" if ours else f" us, {record.get('why_not', 'none right')}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
