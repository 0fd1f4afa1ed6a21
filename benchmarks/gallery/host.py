"""Python candidates that cheat on the host. They run on a CPU here: what is tested is the judge."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import Exhibit, texts

N = 256
#: what a trick that is allowed to run may gain at most: noise on a busy machine
NOTHING = 1.3
#: enough work (tens of milliseconds) that skipping it shows
WORK = """
import torch

def product(x, w, scale):
    for _ in range(60):
        y = torch.mm(x, w)
    return y * scale
"""
HONEST = WORK + "\ndef run(x, w, scale):\n    return product(x, w, scale)\n"


def workload() -> tuple[Any, Any]:
    """A matrix product in FP32 with an FP64 reference, and its case."""
    from sassafras.core import Buffer, Case, Tolerance, Workload

    case = Case(
        str(N),
        (1, 1, 1),
        {
            "y": Buffer("fp32", (N, N), "out"),
            "x": Buffer("fp32", (N, N)),
            "w": Buffer("fp32", (N, N)),
            "scale": 2,
        },
    )

    def reference(tensors: Any) -> Any:
        return {"y": tensors["x"].double() @ tensors["w"].double() * tensors["scale"]}

    def nothing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    return Workload("product", (case,), nothing, reference, Tolerance(1e-4, 1e-3)), case


def judge(**settings: Any) -> Any:
    """The evaluator; without its scan, so that confinement and checks have to do the work."""
    from sassafras.evaluate.host import HostEvaluator, HostSource

    made, case = workload()
    settings = {"scan": False, "rounds": 4, "call_s": 20.0, **settings}
    return HostEvaluator(made, case, HostSource(HONEST), **settings)


def _exhibits(*groups: str) -> list[Exhibit]:
    """Groups of exhibits.txt: ``shared`` tricks with the turns, the clock and the machine are let run."""
    made = []
    for group, name, title, expected, by, text in texts(*groups):
        how = "python" if group == "shared" else group
        kind = "honest" if expected == ("correct",) else "cheat"
        before = "" if how == "python_scan" else WORK
        prefix = "python_gpu" if how == "python_gpu" else "python"
        most = NOTHING if group == "shared" else None
        make = partial(str.__add__, before, text)
        made.append(Exhibit(f"{prefix}_{name}", title, kind, how, expected, by, make, most))
    return made


def on_gpu() -> list[Exhibit]:
    """Python candidates that use a GPU; judged with ``device="cuda"``."""
    return _exhibits("python_gpu")


def exhibits() -> list[Exhibit]:
    """Python cheats, and honest candidates."""
    return _exhibits("python", "shared", "python_scan")
