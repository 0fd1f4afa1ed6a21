"""The confined process of a Python candidate: ``python -m sassafras.evaluate.host.child READ WRITE MEMORY``.

Nothing that happens here is believed. It maps memory that the judge made, calls the candidate on the inputs
found there, copies what it returns to the place for outputs, and answers. Clock, inputs, expected outputs and
comparison are the judge's, in another process: patching a timer or `torch` here changes nothing there.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from typing import Any


def main(read_fd: int, write_fd: int, memory_fd: int) -> int:
    """Serve ``calls`` until the judge closes the pipe."""
    import numpy as np
    import torch

    from sassafras.evaluate.sandbox.confine import restrict_calls

    source = os.fdopen(read_fd, "r")
    setup = json.loads(source.readline())
    memory = mmap.mmap(memory_fd, setup["bytes"])
    torch.set_num_threads(1)
    on_gpu = setup["device"] == "cuda"
    if on_gpu:
        torch.zeros(1, device="cuda")
        if limit := setup.get("gpu_fraction"):
            torch.cuda.set_per_process_memory_fraction(limit)
    restrict_calls(processes=False, cuda=on_gpu)

    def tensors(rows: list[dict[str, Any]]) -> dict[str, Any]:
        made = {}
        for row in rows:
            flat = np.frombuffer(memory, np.uint8, row["bytes"], row["offset"])
            made[row["name"]] = torch.from_numpy(flat).view(getattr(torch, row["dtype"])).view(row["shape"])
        return made

    slots = [(tensors(slot["inputs"]), tensors(slot["outputs"])) for slot in setup["slots"]]
    on_device = [
        {name: t.to("cuda") for name, t in inputs.items()} if on_gpu else inputs for inputs, _ in slots
    ]
    names = [row["name"] for row in setup["slots"][0]["outputs"]]

    def answer(message: dict[str, Any]) -> None:
        os.write(write_fd, (json.dumps(message) + "\n").encode())

    try:
        namespace: dict[str, Any] = {"__name__": "candidate"}
        exec(compile(setup["text"], "candidate.py", "exec"), namespace)
        function = namespace[setup["entry"]]
    except BaseException as error:
        answer({"error": f"{type(error).__name__}: {error}", "kind": _kind(error), "loading": True})
        return 0
    answer({"ready": True})
    for line in source:
        request = json.loads(line)
        try:
            given, (host, outputs) = on_device[request["slot"]], slots[request["slot"]]
            if on_gpu:
                for name, tensor in host.items():
                    given[name].copy_(tensor)
            returned = function(**given, **setup["scalars"])
            if not isinstance(returned, dict):
                returned = dict(
                    zip(names, returned if isinstance(returned, tuple) else (returned,), strict=True)
                )
            for name, tensor in outputs.items():
                tensor.copy_(returned[name])
            if on_gpu:
                torch.cuda.synchronize()
            answer({"done": request["id"]})
        except BaseException as error:
            answer({"error": f"{type(error).__name__}: {error}", "kind": _kind(error)})
    return 0


def _kind(error: BaseException) -> str:
    """``refused`` for what the fences refused, ``memory`` for want of it, else ``raised``."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PermissionError):
            return "refused"
        if isinstance(seen, MemoryError) or "out of memory" in str(seen).lower():
            return "memory"
        seen = seen.__cause__ or seen.__context__
    return "raised"


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
