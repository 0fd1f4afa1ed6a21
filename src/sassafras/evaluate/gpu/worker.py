"""The worker process: owns the GPU, answers one request at a time, may die.

Started as ``python -m sassafras.evaluate.gpu.worker READ_FD WRITE_FD PARENT``, or forked by a fork server.
The protocol has descriptors of its own, so that whatever a library prints cannot garble it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.driver import Gpu
from sassafras.cuda.environment import probe
from sassafras.cuda.idle import Idle
from sassafras.cuda.worker_loop import Answer, Handler, serve

from .compare import Checker, checker_cubin, given_cubins
from .protocol import JudgeSettings, kernel_from_facts


class GpuWorker:
    """Dispatches requests to handlers; holds what is open."""

    def __init__(self) -> None:
        self._bench: Any = None
        self._idle: Any = None
        self._samplers: dict[str, Any] = {}
        self._workloads: dict[str, Any] = {}
        self.handlers: dict[str, Handler] = {
            "load": self._load,
            "open": self._open,
            "run": self._run,
            "measure": self._measure,
            "sample": self._sample,
            "idle": self._look,
        }

    def _ready(self) -> Any:
        if self._bench is None:
            raise DeviceError("the worker has no open workload", hint="open() first")
        return self._bench

    def _look(self, message: Answer, blobs: list[bytes]) -> Answer:
        """Longest jumps of the clock, one for each multiprocessor (see `idle`)."""
        if self._idle is None:
            _no_gpu_reason()
            import torch

            torch.zeros(1, device="cuda")  # makes this process's context
            gpu = Gpu()
            self._idle = Idle(gpu, Checker(gpu).cubin)
        return {"gaps_ns": self._idle.look()}

    def _loaded(self, source: str) -> Any:
        from sassafras.targets import load

        if source not in self._workloads:
            self._workloads[source] = load(source)
        return self._workloads[source]

    def _load(self, message: Answer, blobs: list[bytes]) -> Answer:
        """The workload's file, imported ahead of its opening; with ``all_but`` a case, also the context made
        and the other cases compiled (`KernelJudge` compares their code)."""
        workload = self._loaded(message["source"])
        if "all_but" in message:
            _no_gpu_reason()
            import torch

            torch.zeros(1, device="cuda")
            arch = probe(in_process=True)["arch"]
            for case in workload.cases:
                if case.name != message["all_but"]:
                    with contextlib.suppress(SassafrasError):  # the judge tries again, and notes it
                        workload.build(case, arch)
        return {}

    def _open(self, message: Answer, blobs: list[bytes]) -> Answer:
        _no_gpu_reason()
        from .judge import KernelJudge

        workload = self._loaded(message["source"])
        cold = message.get("cold")
        self._bench = None
        self._bench = KernelJudge(
            workload,
            workload.case(message["case"]),
            kernel_from_facts(message["baseline"], blobs[0]),
            JudgeSettings(**message["settings"]),
            kernel_from_facts(cold, blobs[1]) if cold else None,
        )
        return dict(self._bench.facts())

    def _run(self, message: Answer, blobs: list[bytes]) -> Answer:
        kernel = kernel_from_facts(message["kernel"], blobs[0])
        return dict(self._ready().run(kernel, pairs=message["pairs"], stop_above=message["stop_above"]))

    def _measure(self, message: Answer, blobs: list[bytes]) -> Answer:
        kernel = kernel_from_facts(message["kernel"], blobs[0])
        return dict(self._ready().measure(kernel, rounds=message["rounds"], cold_l2=message["cold_l2"]))

    def _sample(self, message: Answer, blobs: list[bytes]) -> Answer:
        from .random_tests import Sampler, launch_pair_us

        key = message["key"]
        if key not in self._samplers:
            kernel = kernel_from_facts(message["kernel"], blobs[0])
            pair_us = sum(launch_pair_us(self._ready(), kernel))
            for old in self._samplers.values():
                old.close()
            self._samplers = {key: Sampler(self._ready(), kernel, seed=message["seed"])}
            self._samplers[key].pair_us = pair_us
        sampler = self._samplers[key]
        answer = sampler.slice(message["slice_s"], message.get("most"))
        return {**answer, "pair_us": sampler.pair_us, "fixed": sampler.fixed, "kept": list(sampler.kept)}


def _no_gpu_reason() -> None:
    """Raise a DeviceError that says what is missing, before anything heavy is imported."""
    found = probe(in_process=True)
    if found.get("error"):
        raise DeviceError(found["error"], hint="use the timing model: --device model")
    try:
        import torch
    except ImportError as error:
        raise DeviceError(
            "torch is not installed", hint="in the checkout: pip install -e '.[gpu]'"
        ) from error
    if not torch.cuda.is_available():
        raise DeviceError(
            "torch cannot use the GPU",
            where=f"torch {torch.__version__}",
            hint="install a CUDA build of torch",
        )


def preload() -> None:
    """What a fork server does for its workers: imports, and the worker's own kernels, compiled for this GPU.

    CUDA that is initialised here would be unusable in every worker: a process of its own asks for the GPU's
    architecture, and runs NVRTC meanwhile.

    Raises:
        DeviceError: something that was imported has initialised CUDA; workers have to start by themselves.
    """
    to_read, to_write = os.pipe()
    if not (child := os.fork()):
        try:
            arch = probe(in_process=True)["arch"]
            with os.fdopen(to_write, "wb") as answer:
                answer.write(arch.encode() + b"\n" + checker_cubin(arch))
        finally:
            os._exit(0)  # an empty answer: each worker compiles for itself, and says what is wrong
    os.close(to_write)
    for module in ("torch", "triton", "sassafras.targets", f"{__package__}.judge"):
        with contextlib.suppress(ImportError):  # a worker says what is missing
            import_module(module)
    with os.fdopen(to_read, "rb") as answer:
        arch, _, cubin = answer.read().partition(b"\n")
    os.waitpid(child, 0)
    if cubin:
        given_cubins[arch.decode()] = cubin
    if _initialised():
        raise DeviceError("an imported package has initialised CUDA")


def _initialised() -> bool:
    """Whether the driver is loaded and initialised in this process; asks without initialising it."""
    if "/libcuda.so" not in Path("/proc/self/maps").read_text():
        return False
    not_initialised, count = 3, ctypes.c_int()
    return int(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))) != not_initialised


def main() -> int:
    """Serve the descriptors in ``sys.argv``; the exit status."""
    return serve(GpuWorker().handlers)


if __name__ == "__main__":
    sys.exit(main())
