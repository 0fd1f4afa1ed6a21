"""The process that touches a GPU and is asked for one shape after another; it may die or hang.

``worker_client`` starts it. A plan names a mode (``select``, ``measure``; ``judge``; ``program``;
``calibrate``) and the options. After an answer that says ``lost`` its CUDA context is gone, and
it is of no further use.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.cuda.driver import CudaError
from sassafras.cuda.environment import probe
from sassafras.cuda.worker_loop import Answer, serve

from ..build.cubins import build, source
from ..configs.backward import instances
from ..problem.shape import LAYOUTS, Product, Shape
from . import calibrate, context
from .contestants import Contestants
from .dry_run import DryContestants
from .faults import FaultTracker, FaultyConfig
from .journal import FORMAT
from .judge import Judge
from .measure import measure
from .options import MEASURING, SELECTING, Options
from .tune import choose


def kernels_digest(layouts: Sequence[str] = LAYOUTS) -> str:
    """Hash of the text of all our kernels for these layouts: what measurements belong to."""
    return hashlib.sha256("".join(source(i) for i in instances(layouts)).encode()).hexdigest()[:16]


def asked(plan: dict[str, Any]) -> dict[str, Any]:
    """The part of `ShapeWorker.header` that is known without a GPU."""
    wanted = SELECTING if plan["mode"] == "select" else MEASURING
    options = {name: plan["options"][name] for name in wanted}
    own: dict[str, Any] = {key: plan[key] for key in ("mode", "process", "how", "near") if key in plan}
    return {
        **own,
        "format": FORMAT,
        "modelled": bool(plan.get("dry")),
        "options": options,
        "kernels": kernels_digest(plan["options"]["layouts"]),
    }


def asked_here(plan: dict[str, Any]) -> dict[str, Any]:
    """`asked`, and this machine's GPU, which a finished journal's was."""
    gpu = None if plan.get("dry") else probe().get("gpu")
    return asked(plan) | ({"gpu": gpu} if gpu else {})


class ShapeWorker:
    """A GPU (or the modelled clock) with a plan: answers questions about one shape after another.

    Args:
        plan: ``mode``, ``options``, ``cache``, ``dry``; of a measurement also ``process`` and ``how``.

    Attributes:
        header: the conditions that must be equal for records to belong together.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.options = Options(**plan["options"])
        self.stage = _stage(plan)
        self.header = asked(plan) | {"cublaslt": self.stage.lt.version}
        if not self.stage.modelled:
            import torch

            gpu = torch.cuda.get_device_name(0)
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            self.header |= {"torch": importlib.metadata.version("torch"), "gpu": gpu}
            self.header |= {"sms": sms} if plan["mode"] == "program" else {}
        if plan["mode"] == "program":
            self._chooser = context.chooser(self.stage)
        self._judge = Judge(self.stage, self.options)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """A shape's record; a failure is one with ``error``, and ``lost`` when the context is gone.

        Args:
            question: ``shape``; of a measurement ``selection``, what was selected for it; of a selection
                ``faulty`` and ``trying`` (`FaultTracker`); of a search what `Judge` takes.
        """
        started = time.perf_counter()
        record: dict[str, Any] = {"shape": question["shape"]}
        try:
            record |= self._answer(question)
        except Exception as error:
            traceback.print_exc()
            record |= {
                "band": Shape.parse(question["shape"]).band,
                "error": f"{type(error).__name__}: {error}",
            }
            if (isinstance(error, CudaError) and error.sticky) or "CUDA error" in str(error):
                return {**record, "lost": True}
        return {**record, "seconds": round(time.perf_counter() - started, 3)}

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        shape = Shape.parse(question["shape"])
        if self.plan["mode"] == "select":
            faulty = [FaultyConfig(**entry) for entry in question.get("faulty", ())]
            trying = Path(question["trying"]) if "trying" in question else None
            return choose(self.stage, shape, self.options, FaultTracker(faulty, trying))
        if self.plan["mode"] == "calibrate":
            return calibrate.times(self.stage, shape, self.plan["near"], self.options)
        if self.plan["mode"] == "program":
            return self._program(question)
        if self.plan["mode"] == "judge":
            return self._judge.look(question["shape"], question["config"])
        process = self.plan["process"]
        if question.get("selection") is None:
            raise SassafrasError("nothing was selected for this shape", where=str(shape))
        return measure(self.stage, question["selection"], self.options, process, self.plan["how"])

    def _program(self, question: dict[str, Any]) -> dict[str, Any]:
        """A product's record; of `products`, how many kernels their candidates need, which are compiled."""
        if "products" in question:
            needed = context.instances(self._chooser, map(Product.from_json, question["products"]))
            if not self.stage.modelled:
                build(needed, Path(self.plan["cache"]) if self.plan.get("cache") else None)
            return {"kernels": len(needed)}
        product = Product.from_json(question["product"])
        return context.tune(self.stage, self._chooser, product, question["seconds"], self.options.seed)


def _stage(plan: dict[str, Any]) -> Any:
    cache = Path(plan["cache"]) if plan.get("cache") else None
    return DryContestants(cache, plan["options"]["seed"]) if plan.get("dry") else Contestants(cache)


def main() -> int:
    """Serve one parent: its plan first (``open``), then a question at a time (``shape``)."""
    opened: list[ShapeWorker] = []

    def start(message: Answer, blobs: list[bytes]) -> Answer:
        opened[:] = [ShapeWorker(message["plan"])]
        return {"header": opened[0].header}

    def shape(message: Answer, blobs: list[bytes]) -> Answer:
        return {"record": opened[0].answer(message["question"])}

    return serve({"open": start, "shape": shape})


if __name__ == "__main__":
    sys.exit(main())
