"""`sassafras doctor`: the GPU, driver, tools and packages found, and the tasks that they allow."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sassafras.core import Buffer, Case, SassafrasError, StoreError
from sassafras.core.errors import reason
from sassafras.cuda.environment import probe
from sassafras.frontend import cuda
from sassafras.gemm.build import ahead_of_time
from sassafras.gemm.matmul.driver import Driver
from sassafras.gemm.matmul.loading import calibrated_path
from sassafras.gemm.select import gpus
from sassafras.jobs.opening import DEFAULT_ARCH
from sassafras.sass import Program, tools
from sassafras.store import Store, default_path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what.
        found: whether it is here and usable.
        version: its version and place, or why it is not usable.
        needed_for: what it is needed for.
    """

    name: str
    found: bool
    version: str
    needed_for: str


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that Sassafras can do when all that it needs is here.

    Attributes:
        name: what.
        ready: whether all is here.
        missing: what is not.
        hint: how to get it.
    """

    name: str
    ready: bool
    missing: tuple[str, ...]
    hint: str


#: distribution -> what it is needed for
_PACKAGES = {
    "numpy": "everything",
    "numba": "the timing model",
    "pyelftools": "cubins",
    "triton": "Triton kernels; its wheel also brings ptxas and nvdisasm",
    "torch": "measuring: inputs and references",
    "cuda-core": "measuring: the driver",
    "cuda-bindings": "measuring: the driver",
}
_TRIAL = "nvcc and nvdisasm together"
_TOOLS = {
    "nvdisasm": "reading native code",
    "ptxas": "assembling with another compiler version",
    "nvcc": "CUDA source",
}


def diagnose() -> list[Finding]:
    """Look for everything; never raises for something that is missing."""
    release = sys.version_info
    findings = [
        Finding(
            "Python", release >= (3, 11), f"{platform.python_version()} on {platform.system()}", "everything"
        )
    ]
    findings += [*_gpu(), _tables(), *_schedules()]
    findings += [_tool(name, why) for name, why in _TOOLS.items()]
    findings += [_package(name, why) for name, why in _PACKAGES.items()]
    if any(f.name == "nvcc" and f.found for f in findings):
        findings.append(_cuda_trial())
    findings.append(_store())
    return findings


def abilities(findings: Sequence[Finding]) -> list[Ability]:
    """What can be done; the first is the main job on the timing model."""
    here = {f.name for f in findings if f.found}
    modelled = ["Python", "numpy", "numba", "pyelftools", "nvdisasm"]
    measured = [*modelled, "driver", "GPU", "torch", "cuda-core", "cuda-bindings"]
    rows = [
        ("optimize on the timing model", modelled, "in the checkout: pip install -e ."),
        (
            "optimize on the GPU (measured)",
            measured,
            "in the checkout: pip install -e '.[gpu]' on a machine with an NVIDIA GPU",
        ),
        ("Triton kernels", [*modelled, "triton"], "pip install triton (Linux)"),
        (
            "CUDA source",
            [*modelled, "nvcc", _TRIAL],
            "in the checkout: pip install -e '.[cuda-source]', or a CUDA toolkit whose "
            "nvdisasm is at least as new as its nvcc",
        ),
    ]
    able = []
    for name, needs, hint in rows:
        missing = tuple(need for need in needs if need not in here)
        able.append(Ability(name, not missing, missing, hint))
    return able


def _package(name: str, why: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name), why)
    except metadata.PackageNotFoundError:
        return Finding(name, False, "", why)


def _tool(name: str, why: str) -> Finding:
    found = tools.find_all(name)
    return Finding(name, bool(found), ", ".join(f"{tool.version} ({tool.origin})" for tool in found), why)


def _tables() -> Finding:
    """Which GPU's tables `sassafras.matmul` uses here."""
    name, why = "GEMM tables", "sassafras.matmul"
    known = f"measured on {gpus.measured()}"
    found = probe()
    if "error" in found:
        return Finding(name, True, known, why)
    gpu = str(found["gpu"])
    if not str(found["arch"]).startswith("sm_90"):
        return Finding(name, False, f"{known}; torch serves {gpu}", why)
    if gpus.tables_of(gpu) == gpu:
        return Finding(name, True, f"its own; {known}", why)
    try:
        facts = Driver().hardware(0)
    except SassafrasError:
        facts = None
    calibrated = facts is not None and calibrated_path(facts).is_file()
    how = "corrected by a calibration" if calibrated else "sassafras tune --calibrate corrects them"
    near = gpus.tables_of(gpu, facts)
    return Finding(name, True, f"those of the nearest measured GPU, {near} ({how}); {known}", why)


def _schedules() -> list[Finding]:
    """Which compiled kernels have a tuned schedule; nothing where there is none for this GPU."""
    said = ahead_of_time.scheduled(str(probe().get("gpu")))
    return [Finding("GEMM schedules", True, said, "sassafras.matmul")] if said else []


def _gpu() -> list[Finding]:
    found, why = probe(), "measuring"
    if "error" in found:
        return [Finding(name, False, found["error"], why) for name in ("driver", "GPU")]
    count = f"{found['count']} x " if found["count"] > 1 else ""
    return [
        Finding("driver", True, f"CUDA {found['driver_cuda']}", why),
        Finding("GPU", True, f"{count}{found['gpu']} ({found['arch']})", why),
    ]


def _cuda_trial() -> Finding:
    """Compile a kernel with nvcc and read it with nvdisasm: the two may be of releases that do not fit."""
    why = "CUDA source"
    try:
        with tempfile.TemporaryDirectory(prefix="sassafras-") as folder:
            source = Path(folder) / "trial.cu"
            source.write_text("__global__ void trial(float *y) { y[threadIdx.x] = 1.0f; }\n")
            case = Case("trial", (1, 1, 1), {"y": Buffer("fp32", (32,), "out")})
            kernel = cuda.workload(source, [case], threads=32).build(case, DEFAULT_ARCH)
        read = Program.parse(kernel.cubin)
    except SassafrasError as error:
        return Finding(_TRIAL, False, " ".join(str(error).split())[:300], why)
    except OSError as error:
        return Finding(_TRIAL, False, reason(error), why)
    return Finding(
        _TRIAL, True, f"a kernel of nvcc's, {len(read.function(kernel.name))} instructions read", why
    )


def _store() -> Finding:
    why = "keeping what was found"
    try:
        path = default_path()
        if not path.exists():
            return Finding("store", True, f"{path} (not created yet)", why)
        with Store.open(path, readonly=True) as store:
            runs, winners = len(store.runs()), len(store.winners())
    except (StoreError, OSError) as error:
        return Finding("store", False, reason(error), why)
    return Finding("store", True, f"{path}: {runs} runs, {winners} tuned kernels", why)
