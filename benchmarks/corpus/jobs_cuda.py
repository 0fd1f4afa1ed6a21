"""The CUDA part of the corpus: our own small kernels, and some device GEMMs from CUTLASS's headers."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_FLAGS: dict[str, list[str]] = {
    "O3": ["-O3"],
    "fast": ["-O3", "-use_fast_math"],
    "r32": ["-O3", "--maxrregcount=32"],
    "O1": ["-O3", "-Xptxas", "-O1"],
    "line": ["-O3", "-lineinfo", "-fmad=false"],
}
#: with assertions, the calls to print them keep ptxas from overlapping wgmma: code of its own kind
_CUTLASS_FLAGS: dict[str, list[str]] = {
    "O3": [],
    "ndebug": ["-DNDEBUG"],
    "bf16": ["-DNDEBUG", "-DUSE_BF16"],
}
_CUTLASS = "nvidia-cutlass==4.2.0.0"


def cuda_jobs() -> Iterator[dict[str, Any]]:
    """Every file of ``cuda/`` under several flags and architectures; plain -O3 on sm_90a and sm_80 first."""
    sources = sorted((_HERE / "cuda").glob("*.cu"))
    rounds = [
        (("sm_90a", "sm_80"), ("O3",)),
        (("sm_90a", "sm_80"), ("fast", "r32", "O1", "line")),
        (("sm_89", "sm_86"), ("O3", "fast")),
        (("sm_100a", "sm_120a"), ("O3",)),
    ]
    for arches, flags in rounds:
        for arch in arches:
            for source in sources:
                limit = re.search(r"^// arch >= sm_(\d+)", source.read_text(), re.MULTILINE)
                if limit and int(re.sub(r"\D", "", arch)) < int(limit[1]):
                    continue
                if "// arch == sm_90a" in source.read_text() and arch != "sm_90a":
                    continue
                for flag in flags:
                    if flag != "O3" and arch in ("sm_89", "sm_86") and source.stem[0] > "m":
                        continue
                    yield {
                        "kind": "cuda",
                        "name": f"cuda-{source.stem}-{flag}-{arch}",
                        "arch": arch,
                        "source": str(source),
                        "flags": _FLAGS[flag],
                        "include": [],
                    }


def cutlass_jobs(cache: Path) -> Iterator[dict[str, Any]]:
    """Device GEMMs: ``cutlass/*.cu``. The headers are downloaded to `cache`, never committed."""
    sources = sorted((_HERE / "cutlass").glob("*.cu"))
    if not sources:
        return
    include = _cutlass_headers(cache)
    for source in sources:
        text = source.read_text()
        for arch in re.findall(r"^// archs?: (.*)$", text, re.MULTILINE)[0].split():
            for flag, extra in _CUTLASS_FLAGS.items():
                if "-DUSE_BF16" in extra and "USE_BF16" not in text:
                    continue
                yield {
                    "kind": "cutlass",
                    "name": f"cutlass-{source.stem}-{flag}-{arch}",
                    "arch": arch,
                    "source": str(source),
                    "include": [str(include)],
                    "flags": ["-O3", "--expt-relaxed-constexpr", *extra],
                }


def run_nvcc(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one; raises RuntimeError with nvcc's message."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        output = Path(folder, "out.cubin")
        command = [
            "nvcc",
            "-cubin",
            f"-arch={job['arch']}",
            "-std=c++17",
            *job["flags"],
            *(f"-I{path}" for path in job["include"]),
            job["source"],
            "-o",
            str(output),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError((done.stderr or done.stdout).strip())
        return {"cubin": output.read_bytes(), "compiler": f"nvcc {_nvcc_version()}"}


@functools.lru_cache
def _nvcc_version() -> str:
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else "unknown"


def _cutlass_headers(cache: Path) -> Path:
    """The include folder of the CUTLASS wheel, unpacked under `cache`."""
    found = list(cache.rglob("cutlass/cutlass.h"))
    if not found:
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), _CUTLASS],
            check=True,
        )
        for wheel in cache.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(cache / "unpacked")
        found = list(cache.rglob("cutlass/cutlass.h"))
        if not found:
            raise RuntimeError(f"{_CUTLASS} carries no include/cutlass/cutlass.h")
    return found[0].parent.parent
