"""What runs inside a confined build process: ``python -m sassafras.evaluate.source.child KIND SCRATCH ...``.

``triton``: executes candidate.py as a module, compiles its kernel to PTX, writes kernel.ptx and kernel.json.
ptxas does not run here, so that before the first line of the candidate this process gives up the right to
start others. ``nvrtc``: compiles kernel.cu where there is no nvcc.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def build_triton(scratch: Path) -> int:
    """See the module; 0, or 1 with the reason on standard error."""
    import importlib.util

    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.compiler import make_backend
    from triton.runtime import cache

    from sassafras.core import Case, SassafrasError
    from sassafras.evaluate.sandbox.confine import restrict_calls
    from sassafras.frontend import triton as frontend
    from sassafras.frontend._ptxas import ptxas_version

    request = json.loads((scratch / "request.json").read_text())
    arch = request["arch"]
    target = frontend._target(frontend.ARCHES[arch])
    make_backend(target).hash()  # asks ptxas for its version, now, while that is still possible
    ptxas_version(frontend.bundled_ptxas(frontend.ARCHES[arch]))
    frontend.leave_torch_out()
    CUDABackend.make_cubin = lambda *_, **__: b""  # ours, outside, assembles
    # Triton hashes itself for 0.4 s, to tell apart what other releases left in a cache; this one is empty
    cache.triton_key = lambda: ""
    restrict_calls(processes=False)

    spec = importlib.util.spec_from_file_location("candidate", scratch / "candidate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        function = _entry(module, request["entry"])
        given = request["case"]
        case = Case(
            given["name"],
            tuple(given["grid"]),
            {n: _argument(a) for n, a in given["args"].items()},
            given["constants"],
            given["options"],
        )
        workload = frontend.workload(function, [case])
        builder = workload.build
        kernel = builder(workload.cases[0], arch)
        ptx = builder.ptx(workload.cases[0], arch)  # type: ignore[attr-defined]
    except SassafrasError as error:
        print(error, file=sys.stderr)
        return 1
    except BaseException as error:  # whatever a candidate raises
        import traceback

        traceback.print_exc(limit=-4)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    # the wishes of the author; everything else about the launch is found out outside (see `launching`)
    said = {
        "parameters": kernel.parameters,
        "shared_bytes": kernel.shared_bytes,
        "scratch_bytes": kernel.scratch_bytes,
    }
    (scratch / "kernel.ptx").write_text(ptx)
    (scratch / "kernel.json").write_text(json.dumps(said))
    return 0


def _entry(module: Any, name: str | None) -> Any:
    from sassafras.core import CompileError

    if name is not None:
        if not hasattr(module, name):
            raise CompileError(f"the source defines no {name!r}")
        return getattr(module, name)
    kernels = [
        value
        for value in vars(module).values()
        if type(value).__name__ in ("JITFunction", "Autotuner", "Heuristics")
    ]
    if len(kernels) != 1:
        raise CompileError(f"the source defines {len(kernels)} @triton.jit functions; name the entry")
    return kernels[0]


def _argument(value: Any) -> Any:
    from sassafras.core import Buffer

    if isinstance(value, dict):
        return Buffer(value["dtype"], tuple(value["shape"]), value["role"])
    return value


def build_nvrtc(scratch: Path, arch: str, flags: list[str]) -> int:
    """See the module; 0, or 1 with the compiler's log on standard error."""
    from sassafras.core import SassafrasError
    from sassafras.cuda.compile import with_nvrtc

    includes = [f"-I{path}" for path in cuda_headers()]
    try:
        text = (scratch / "kernel.cu").read_text()
        data, _ = with_nvrtc(text, [f"--gpu-architecture={arch}", *includes, *flags], where="kernel.cu")
    except SassafrasError as error:
        print(error, file=sys.stderr)
        return 1
    (scratch / "kernel.cubin").write_bytes(data)
    return 0


def cuda_headers() -> list[Path]:
    """Folders with cuda_fp16.h and friends: of pip's wheels, or of a toolkit."""
    import importlib.util
    import os

    found: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        found += sorted(path.parent for path in Path(place).glob("*/include/cuda_fp16.h"))
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and Path(root, "include", "cuda_fp16.h").is_file():
            found.append(Path(root, "include"))
    return found[:1]


if __name__ == "__main__":
    kind, folder, *rest = sys.argv[1:]
    status = build_triton(Path(folder)) if kind == "triton" else build_nvrtc(Path(folder), rest[0], rest[1:])
    sys.exit(status)
