"""The confined process of a Python candidate: ``python -P .../host/child.py READ WRITE MEMORY``.

Run by its path: by its name the judge's packages around it would be imported first. Nothing that happens here
is believed. It maps memory that the judge made, calls the candidate on the inputs found there, copies what it
returns to the place for outputs, and answers. Clock, inputs, expected outputs and comparison are the judge's,
in another process: patching a timer or `torch` here changes nothing there.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: ends of names of sources that are built
NATIVE = (".cu", ".cpp", ".cc", ".cxx")


def preload() -> None:
    """Import what `main` needs; nothing else is done, since a template does it for many (`sandbox`)."""
    # a fifth of torch's import is collections that find nothing; what it made stays out of later ones
    gc.disable()
    import numpy.random  # noqa: F401
    import torch  # noqa: F401

    sys.path.insert(0, str(Path(__file__).parents[1] / "sandbox"))
    import confine  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    del sys.path[0]
    gc.freeze()
    gc.enable()


def main(read_fd: int, write_fd: int, memory_fd: int) -> int:
    """Serve ``calls`` until the judge closes the pipe."""
    preload()
    import numpy as np
    import torch
    from confine import restrict_calls  # type: ignore[import-not-found,unused-ignore]

    source = os.fdopen(read_fd, "r")
    setup = json.loads(source.readline())
    memory = mmap.mmap(memory_fd, setup["bytes"])
    torch.set_num_threads(1)
    on_gpu = setup["device"] == "cuda"
    if on_gpu:
        torch.zeros(1, device="cuda")
        if limit := setup.get("gpu_fraction"):
            torch.cuda.set_per_process_memory_fraction(limit)
    if not setup["builds"]:
        restrict_calls(processes=False, cuda=on_gpu)

    def tensors(rows: list[dict[str, Any]]) -> dict[str, Any]:
        made = {}
        for row in rows:
            flat = np.frombuffer(memory, np.uint8, row["bytes"], row["offset"])
            made[row["name"]] = torch.from_numpy(flat).view(getattr(torch, row["dtype"])).view(row["shape"])
        return made

    slots = [(tensors(slot["inputs"]), tensors(slot["outputs"])) for slot in setup["slots"]]

    def moved(some: dict[str, Any]) -> dict[str, Any]:
        return {name: t.to("cuda") for name, t in some.items()} if on_gpu else some

    into = setup["style"] == "destination"
    on_device = [(moved(inputs), moved(outputs) if into else {}) for inputs, outputs in slots]
    names = [row["name"] for row in setup["slots"][0]["outputs"]]

    def answer(message: dict[str, Any]) -> None:
        os.write(write_fd, (json.dumps(message) + "\n").encode())

    def call(slot: int) -> None:
        """Inputs from the slot's memory, outputs to it."""
        (host, outputs), (given, own) = slots[slot], on_device[slot]
        if on_gpu:
            for name, tensor in host.items():
                given[name].copy_(tensor)
        values = {**given, **setup["scalars"]}
        returned: Any
        if setup["style"] == "name":
            returned = function(**values)
        elif setup["style"] == "position":
            returned = function(*(values[name] for name in setup["order"]))
        else:
            if on_gpu:
                for tensor in own.values():
                    tensor.reshape(-1).view(torch.uint8).fill_(255)
            function(*(values[name] for name in setup["order"]), *own.values())
            returned = own
        if not isinstance(returned, dict):
            several = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
            if len(several) != len(names):
                raise _Wrong("shape", f"it returned {len(several)} outputs, not {len(names)}")
            returned = dict(zip(names, several, strict=True))
        for name, tensor in outputs.items():
            if returned[name] is tensor:
                continue
            if (got := returned[name]) is None:
                raise _Wrong("shape", f"it returned None for {name}, not a tensor")
            found = torch.from_dlpack(got) if hasattr(got, "__dlpack__") else torch.as_tensor(got)
            if found.shape != tensor.shape:
                raise _Wrong("shape", f"{name} has shape {tuple(found.shape)}, not {tuple(tensor.shape)}")
            if found.dtype != tensor.dtype and hasattr(got, "dtype"):
                raise _Wrong("dtype", f"{name} is {found.dtype}, not {tensor.dtype}")
            tensor.copy_(found)
        if on_gpu:
            torch.cuda.synchronize()

    loading = True
    function: Any
    try:
        with torch.no_grad():
            function = _load(setup)
            if setup["builds"]:
                call(-1)  # what is compiled on the first call
                for name, tensor in slots[-1][0].items():
                    bits = (t.reshape(-1).view(torch.uint8) for t in (tensor, on_device[-1][0][name].cpu()))
                    if on_gpu and not torch.equal(*bits):
                        raise _Wrong("input", f"it modified its input {name}")
                restrict_calls(processes=False, cuda=on_gpu)
            answer({"ready": True})
            loading = False
            for line in source:
                request = json.loads(line)
                call(request["slot"])
                answer({"done": request["id"]})
    except BaseException as error:
        said = str(error) if isinstance(error, _Wrong) else f"{type(error).__name__}: {error}"
        answer({"error": said, "kind": _kind(error), "loading": loading})
    return 0


class _Wrong(Exception):
    """A result that cannot be right: ``shape``, ``dtype`` or ``input`` (modified)."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


def _load(setup: dict[str, Any]) -> Any:
    """The candidate's function, or its class made with its arguments."""
    import torch

    folder = Path("candidate_files").resolve()
    for name, text in {**setup["files"], setup["path"]: setup["text"]}.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    if setup["builds"]:
        _ninja_one_by_one()
    path = Path(setup["path"])
    module: Any
    if path.suffix == ".py":
        sys.path.insert(0, str(folder.parent))
        module = importlib.import_module(".".join((folder.name, *path.with_suffix("").parts)))
    else:
        if setup["binding"] == "torch":
            from torch.utils.cpp_extension import load
        else:
            from tvm_ffi.cpp import load  # type: ignore[import-not-found,no-redef,unused-ignore]
        built = [str(folder / name) for name in (setup["path"], *setup["files"]) if name.endswith(NATIVE)]
        module = load("candidate", sources=built, extra_include_paths=[str(folder)])
    function = getattr(module, setup["entry"])
    if setup["init"] is None:
        return function
    # both calculate in FP32 where they say so: TF32 would be another problem's precision
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(setup["seed"])
    return function(*ast.literal_eval(setup["init"])).to(setup["device"])


def _ninja_one_by_one() -> None:
    """Builds by ninja run command by command.

    ninja puts each into a process group of its own, which the fences refuse: SIGSTOP would not reach it.
    """
    run = subprocess.run

    def listed(*given: Any, **options: Any) -> Any:
        command = options.pop("args", None) or given[0]
        if isinstance(command, list) and command[:1] == ["ninja"] and "--version" not in command:
            command = ["/bin/sh", "-c", "ninja -t commands > .commands && exec /bin/sh -e .commands"]
        return run(command, *given[1:], **options)

    subprocess.run = listed  # type: ignore[assignment]


def _kind(error: BaseException) -> str:
    """``refused`` for what the fences refused, ``memory`` for want of it, `_Wrong.kind`, else ``raised``."""
    if isinstance(error, _Wrong):
        return error.kind
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
