"""The process that runs new kernels for the first time: ``python -m sassafras.gemm.bench.bringup PLAN.json``.

Whoever starts it (`benchmarks/hgemm_bringup.py`, through `supervise`) kills it when a configuration hangs and
starts another for the rest: a hang or a crash costs one configuration. Every record is appended to a journal.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..build.arguments import Arguments
from ..build.cubins import cubin
from ..configs.registry import Config, Instance, parse
from ..configs.tma_wgmma import LAYOUTS
from ..problem.launch import SHARED_LIMIT
from ..problem.shape import Shape
from . import bringup_plan as plan
from .bringup_plan import BringupJob

#: statuses that a worker ends with: a configuration hung; its context is lost
HUNG, LOST = 9, 3


class BringupBench:
    """A GPU with what a launch needs."""

    def __init__(self, cache: Path | None) -> None:
        import torch

        from sassafras.cuda.driver import Gpu

        self.gpu = Gpu()
        self.cache = cache
        torch.cuda.set_device(0)
        self._stream = torch.cuda.ExternalStream(int(self.gpu.stream))
        torch.cuda.set_stream(self._stream)
        self._functions: dict[tuple[str, str], Any] = {}

    def function(self, instance: Instance, variant: str) -> Any:
        """The loaded kernel. Raises CudaError, CompileError."""
        from sassafras.cuda.driver import call

        key = (instance.name, variant)
        if key not in self._functions:
            data = cubin(instance, self.cache, plan.VARIANTS[variant])
            function = self.gpu.load(data, instance.name)
            which = self.gpu.driver.CUfunction_attribute
            limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(self.gpu.driver.cuFuncSetAttribute, function.handle, limit, SHARED_LIMIT)
            if getattr(instance, "all_shared", False):
                carveout = which.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
                call(self.gpu.driver.cuFuncSetAttribute, function.handle, carveout, 100)
            self._functions[key] = function
        return self._functions[key]

    def run(
        self, config: Config, variant: str, a: Any, b: Any, shape: Shape, launches: int = 2
    ) -> dict[str, Any]:
        """Launch on torch matrices (m, k) and (k, n); C of the first launch and what went wrong on the way.

        Exits the process with `HUNG` when the kernel does not end within ten seconds.
        """
        import torch

        dtype = torch.bfloat16 if getattr(config, "dtype", "fp16") == "bf16" else torch.float16
        a_mn, b_mn = LAYOUTS[config.layout]
        a_lies = (a.t() if a_mn else a).to(dtype).contiguous()
        b_lies = (b if b_mn else b.t()).to(dtype).contiguous()
        guard = 4096
        raw = torch.full((shape.m * shape.n + 2 * guard,), -1, dtype=torch.int16, device="cuda")
        launch = config.launch(shape)
        workspace = torch.full((launch.workspace_bytes // 4 + 4,), float("nan"), device="cuda")
        counters = torch.zeros(launch.counters + 1, dtype=torch.int32, device="cuda")
        first, second = (b_lies, a_lies) if config.swapped else (a_lies, b_lies)
        addresses = {
            "a": first.data_ptr(),
            "b": second.data_ptr(),
            "c": raw.data_ptr() + 2 * guard,
            "workspace": workspace.data_ptr(),
            "counters": counters.data_ptr(),
        }
        function = self.function(config.instance, variant)
        arguments = Arguments(config.instance.parameters, launch, addresses, self.gpu.driver)
        where = self.gpu.config(launch.grid, launch.threads, launch.shared_bytes, launch.cluster)
        behind: tuple[Any, ...] = ()
        if launch.then is not None:
            instance, then = launch.then.instance, launch.then.launch
            block = Arguments(instance.parameters, then, addresses, self.gpu.driver)
            how = self.gpu.config(
                then.grid, then.threads, then.shared_bytes, then.cluster, overlap=then.overlap
            )
            behind = (how, self.function(instance, variant), block)
        self.gpu.sync()
        notes, results = [], []
        for _ in range(launches):
            raw.fill_(-1)
            self.gpu.launch(where, function, arguments.address)
            if behind:
                self.gpu.launch(behind[0], behind[1], behind[2].address)
            if not self.gpu.wait(10.0):
                return {"hung": True, "notes": ["the kernel did not end within 10 s"]}
            results.append(raw[guard:-guard].clone())
        self.gpu.sync()
        if len(results) > 1 and not torch.equal(results[0], results[-1]):
            notes.append("two launches differ")
        if bool((raw[:guard] != -1).any()) or bool((raw[-guard:] != -1).any()):
            notes.append("wrote outside of C")
        if bool((counters != 0).any()):
            notes.append("counters were not reset")
        if variant == "watchdog" and (said := self._watchdog(function)):
            notes.append(said)
        c = results[0].view(dtype).view(shape.m, shape.n).double()
        return {"c": c, "notes": notes, "a": a_lies, "b": b_lies}

    def _watchdog(self, function: Any) -> str:
        """What the watchdog saw, "" when nothing; cleared for the next launch."""
        from sassafras.cuda.driver import call

        found = self.gpu.driver.cuModuleGetGlobal(function.module, b"sassafras_watchdog")
        if int(found[0]):
            return ""
        words = (ctypes.c_uint32 * 8)()
        self.gpu.read_back(ctypes.addressof(words), int(found[1]), 32)
        self.gpu.sync()
        call(self.gpu.driver.cuMemsetD8, found[1], 0, 32)
        if not words[0]:
            return ""
        what = plan.TAGS.get(words[1], f"tag {words[1]}")
        return (
            f"hang: {what}, barrier {words[2]:#x}, parity {words[3]}, block {words[4]}, thread {words[5]}, "
            f"rank {words[6]}"
        )


def check(bench: BringupBench, config: Config, variant: str, shape: Shape, seed: int) -> dict[str, Any]:
    """One configuration on one shape: random inputs against FP64, and probes when it is wrong."""
    import torch

    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    dtype = torch.bfloat16 if getattr(config, "dtype", "fp16") == "bf16" else torch.float16
    a, b = (
        torch.randn(*size, generator=generator, device="cuda").to(dtype)
        for size in ((shape.m, shape.k), (shape.k, shape.n))
    )
    outcome = bench.run(config, variant, a, b, shape)
    record: dict[str, Any] = {"shape": str(shape), "notes": outcome["notes"], "right": False}
    if outcome.get("hung"):
        return {**record, "hung": True}
    expected = a.double() @ b.double()
    error = float((outcome["c"] - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    record["rms"] = error
    limit = 2.0**-9 if dtype is torch.bfloat16 else 2.0**-12
    if error <= 1.2 * limit and not outcome["notes"]:
        return {**record, "right": True}
    rows, columns = config.tile[::-1] if config.swapped else config.tile
    record |= plan.diagnose(expected.cpu().numpy(), outcome["c"].cpu().numpy(), (rows, columns))
    if record["wrong"]:
        ones = torch.ones_like(a)
        again = bench.run(config, variant, ones, b, shape, 1)
        if again.get("hung"):
            return {**record, "hung": True}
        sums = ones.double() @ b.double()
        off = float((again["c"] - sums).abs().max() / sums.abs().max())
        record["pattern"] += f"; with A all ones: {'right' if off < 1e-2 else f'off by {off:.3g}'}"
        if shape.k <= 2048:
            import numpy as np

            small = Shape(shape.m, shape.n, min(64, shape.k))
            selects, counts = (torch.from_numpy(x).cuda() for x in plan.probe_k(small.m, small.n, small.k))
            if config.why_illegal(small) is None:
                again = bench.run(config, variant, selects, counts, small, 1)
                if not again.get("hung"):
                    got = np.asarray(again["c"].cpu().numpy())
                    record["pattern"] += f"; probe of k: {plan.read_probe(got, small.k) or 'right'}"
    return record


def main(path: str) -> int:
    """Work a plan off."""
    from sassafras.cuda.driver import CudaError

    plan_file = json.loads(Path(path).read_text())
    journal = Path(plan_file["journal"])
    bench = BringupBench(Path(plan_file["cache"]) if plan_file.get("cache") else None)
    for entry in plan_file["jobs"]:
        job = BringupJob(entry["config"], entry["variant"], tuple(entry["shapes"]))
        append(journal, {"begun": job.name})
        record: dict[str, Any] = {"job": job.name, "config": job.config, "variant": job.variant, "checks": []}
        status = 0
        started = time.perf_counter()
        for number, text in enumerate(job.shapes):
            try:
                found = check(bench, parse(job.config), job.variant, Shape.parse(text), 17 + number)
            except CudaError as error:
                found = {"shape": text, "right": False, "notes": [str(error)]}
                status = LOST if error.sticky else 0
            except Exception as error:
                found = {"shape": text, "right": False, "notes": [f"{type(error).__name__}: {error}"]}
            record["checks"].append(found)
            if found.get("hung"):
                status = HUNG
            if status or (not found["right"] and number >= 1):
                break  # two wrong shapes say enough
        record["right"] = all(c["right"] for c in record["checks"])
        record["seconds"] = round(time.perf_counter() - started, 3)
        append(journal, record)
        if status:
            os._exit(status)  # no clean-up: it would wait for the kernel
    return 0


def append(journal: Path, record: dict[str, Any]) -> None:
    """One line, on disk before anything else happens."""
    with journal.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def records(journal: Path) -> list[dict[str, Any]]:
    """Finished records, in order; a torn last line is dropped."""
    found = []
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [r for r in found if "begun" not in r]


def supervise(
    jobs: Sequence[BringupJob],
    journal: Path,
    *,
    cache: Path | None = None,
    patience: float = 60.0,
    deadline: float | None = None,
    command: Sequence[str] = (sys.executable, "-P", "-m", "sassafras.gemm.bench.bringup"),
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run jobs in worker processes until each has a record; resumes a journal.

    Args:
        patience: seconds without a new line in the journal after which a worker is killed.
        deadline: ``time.monotonic()`` after which nothing further is started.
        command: the worker; it gets the plan's path.

    Returns:
        One record a job that was run; those of killed or crashed workers say so.
    """
    journal.parent.mkdir(parents=True, exist_ok=True)
    stalls = 0
    while True:
        done = {r["job"] for r in records(journal)}
        left = [job for job in jobs if job.name not in done]
        if not left or stalls >= 3 or (deadline is not None and time.monotonic() > deadline):
            break
        path = journal.with_suffix(".plan.json")
        path.write_text(
            json.dumps(
                {
                    "jobs": [asdict(job) for job in left],
                    "journal": str(journal),
                    "cache": str(cache) if cache else None,
                }
            )
        )
        status = _watch([*command, str(path)], journal, patience, deadline)
        after = {r["job"] for r in records(journal)}
        begun = [json.loads(line)["begun"] for line in _lines(journal) if '"begun"' in line]
        lost = [job for job in left if job.name in begun and job.name not in after]
        for job in lost:
            why = "killed: no progress" if status is None else f"the process ended with status {status}"
            append(
                journal,
                {
                    "job": job.name,
                    "config": job.config,
                    "variant": job.variant,
                    "right": False,
                    "checks": [{"shape": job.shapes[0], "right": False, "notes": [why]}],
                },
            )
            say(f"{job.name}: {why}")
        stalls = 0 if lost or len(after) > len(done) else stalls + 1
        path.unlink(missing_ok=True)
    wanted = {job.name for job in jobs}
    return [r for r in records(journal) if r["job"] in wanted]


def _lines(journal: Path) -> list[str]:
    return (
        [line for line in journal.read_text().splitlines() if line.endswith("}")] if journal.exists() else []
    )


def _watch(command: list[str], journal: Path, patience: float, deadline: float | None) -> int | None:
    """The worker's status, or None when it was killed."""
    root = str(Path(__file__).resolve().parents[3])
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": root + (os.pathsep + inherited if inherited else "")}
    process = subprocess.Popen(command, env=environment)
    size, since = -1, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if journal.exists() and journal.stat().st_size != size:
                size, since = journal.stat().st_size, now
            if now - since > patience or (deadline is not None and now > deadline):
                process.kill()
                process.wait(30)
                return None
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode


def line(record: dict[str, Any]) -> str:
    """One line about a record, for the screen."""
    if record["right"]:
        worst = max((c.get("rms", 0.0) for c in record["checks"]), default=0.0)
        return f"ok    {record['job']}: {len(record['checks'])} shapes, RMS {worst:.2e}"
    bad = next(c for c in record["checks"] if not c["right"])
    passed = sum(c["right"] for c in record["checks"])
    said = "; ".join([*bad.get("notes", []), bad.get("pattern", "")]).strip("; ")
    wrong = f", {bad['wrong']:.1%} wrong" if bad.get("wrong") is not None else ""
    return f"WRONG {record['job']}: {passed} shapes right, then {bad['shape']}{wrong}: {said}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
