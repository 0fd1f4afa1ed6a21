"""The process that touches the GPU: ``python -m sassafras.gemm.worker PLAN.json``.

The plan names a mode (``select`` or ``measure``), the shapes, the journal to append to, and the options. The
process ends with status 3 when its CUDA context is lost; whoever started it starts another for the rest.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .journal import Journal
from .journal import read as read_journal
from .select import Options, choose

LOST = 3


def conditions(plan: dict[str, Any], cublaslt: int) -> dict[str, Any]:
    """What must be equal for records to belong together."""
    import torch

    from .compile import source
    from .families import INSTANCES

    digest = hashlib.sha256("".join(source(i) for i in INSTANCES).encode()).hexdigest()[:16]
    return {
        "mode": plan["mode"], "options": plan["options"], "kernels": digest, "cublaslt": cublaslt,
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(0),
    }  # fmt: skip


def main(path: str) -> int:
    """Work a plan off."""
    from sassafras.device.cuda.driver import CudaError

    from .measure import measure
    from .shapes import Shape
    from .tools import Tools

    plan = json.loads(Path(path).read_text())
    options = Options(**plan["options"])
    tools = Tools(Path(plan["cache"]) if plan.get("cache") else None)
    header = conditions(plan, tools.lt.version)
    if plan["mode"] == "measure":
        header["process"] = plan["process"]
    journal = Journal(Path(plan["journal"]), header)
    done = journal.done()
    selections = {r["shape"]: r for r in read_journal(Path(plan["selection"]))[1:] if "begun" not in r} \
        if plan["mode"] == "measure" else {}  # fmt: skip
    begin = time.perf_counter()
    for number, text in enumerate(plan["shapes"], 1):
        if text in done:
            continue
        journal.begin(text)
        started = time.perf_counter()
        try:
            if plan["mode"] == "select":
                record = choose(tools, Shape.parse(text), options)
            else:
                record = {"shape": text, **measure(tools, selections[text], options, plan["process"])}
        except Exception as error:
            record = {
                "shape": text,
                "band": Shape.parse(text).band,
                "error": f"{type(error).__name__}: {error}",
            }
            traceback.print_exc()
            if (isinstance(error, CudaError) and error.sticky) or "CUDA error" in str(error):
                journal.finish(record)
                return LOST
        record["seconds"] = round(time.perf_counter() - started, 3)
        journal.finish(record)
        if (every := plan.get("progress")) and number % every == 0:
            spent = time.perf_counter() - begin
            print(
                f"{plan['mode']} {number}/{len(plan['shapes'])} {text} {_brief(record)} {spent:.1f} s",
                flush=True,
            )
    return 0


def _brief(record: dict[str, Any]) -> str:
    if "error" in record:
        return record["error"]
    if "lt_autotune" in record:
        names = ("ours", "lt_autotune", "lt_heuristic", "cublas", "torch")
        times = " ".join(f"{name} {record[name]:.2f}" for name in names if record.get(name))
        return f"{times} us, speed-up {record.get('speedup', float('nan')):.3f}, null {record['null']:.3f}"
    ours = record.get("ours_us")
    text = f"AutoTuning {record['baseline_us']:.2f}"
    return text + (
        f", {record['ours']} {ours:.2f} us" if ours else f" us, {record.get('why_not', 'none right')}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
