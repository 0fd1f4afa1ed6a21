"""What a worker does for an open workload: judge candidates quickly, and measure a frozen one thoroughly."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from sassafras.core import Case, DeviceError, Kernel, SassafrasError, Verdict, Workload
from sassafras.cuda.driver import CudaError, Gpu, KernelFunction
from sassafras.cuda.timing import Stopwatch, interleaved, launches_a_block, with_one_checked

from .case_on_gpu import CaseOnGpu, Failure, Plan
from .cold_launch import POISONS, launch_cold
from .compare import Checker, arch_of
from .protocol import JudgeSettings
from .replay_check import ReplayCheck

#: GPU memory that a process has beside its tensors: context, modules
_CONTEXT_BYTES = 700 << 20
#: microseconds of a block of a frozen candidate
FROZEN_BLOCK_US = 500.0


class KernelJudge:
    """A workload case on this process's GPU, with its baseline.

    Args:
        workload, case, baseline: as given to `CudaDevice.open`.
        settings: how candidates are checked.
        cold: a candidate to launch before the baseline was ever launched in this process.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        baseline: Kernel,
        settings: JudgeSettings,
        cold: Kernel | None = None,
    ) -> None:
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")  # torch and we share the primary context; let torch make it
        self.gpu = Gpu()
        self.checker = Checker(self.gpu)
        self.checker.reset()
        self.stopwatch = Stopwatch(self.gpu)
        self.baseline = baseline
        self.notes: list[str] = []
        self.cold_failure: str | None = None
        self._cold = cold
        self._bitwise, base_seed = settings.bitwise, settings.base_seed
        self._rng = random.Random(base_seed)
        self._replay: ReplayCheck | None = None
        self.headline = self._scene(workload, case)
        cold_left = None if cold is None else launch_cold(self.headline, cold, base_seed, settings.hang_s)

        self.function = self.gpu.load_kernel(baseline)
        for index in range(max(1, settings.seeds)):
            self._add_image(self.headline, base_seed + index, POISONS[index % len(POISONS)])
        if self.headline.exact:
            self._add_image(self.headline, base_seed + 1000, POISONS[0], special=True)
        for index, fills in enumerate(() if settings.bitwise else workload.exact):
            self._add_image(self.headline, base_seed + 2000 + index, POISONS[0], fills=fills)
        self.scenes = [self.headline]
        self._add_cases(workload, case, base_seed, settings.cases)
        if not self.headline.exact and settings.bitwise:
            self.notes.append("the baseline differs from itself: outputs are compared with the tolerance")
        if cold_left is not None:
            self._judge_cold(cold_left)

        self.plan = self.headline.plan(baseline, self.function)
        self.launch_us = self._estimate()
        self.launches = launches_a_block(self.launch_us)
        self.headline.prepare_block(self.plan, self.function, self.launches)
        self.graph = self.headline.graph(self.plan, self.function, self.launches)

    # -- preparing ----------------------------------------------------------------------------------------

    def _judge_cold(self, left: Any) -> None:
        scene = self.headline
        self.gpu.copy(int(scene.live.data_ptr()), int(left.data_ptr()), scene.layout.nbytes)
        scene.compare(scene.images[0], "cold first launch")
        failures = self._collect()
        self.cold_failure = failures[0].detail if failures else None

    def _scene(self, workload: Workload, case: Case) -> CaseOnGpu:
        return CaseOnGpu(
            self.gpu,
            self.checker,
            case,
            workload.reference,
            workload.tolerance,
            bitwise=self._bitwise,
            peer=workload.peer,
        )

    def _add_image(self, scene: CaseOnGpu, seed: int, poison: int, **how: Any) -> None:
        scene.add_image(self.baseline, self.function, seed=seed, poison=poison, **how)

    def _add_cases(self, workload: Workload, case: Case, seed: int, known: Sequence[str] | None) -> None:
        """Make scenes of the other cases that select the same variant."""
        names = self._same_variant(workload, case) if known is None else known
        for other in workload.cases:
            if other.name == case.name or other.name not in names:
                continue
            scene = self._scene(workload, other)
            self._add_image(scene, seed + 1, POISONS[0])
            if scene.exact:
                self._add_image(scene, seed + 1001, POISONS[1], special=True)
            self.scenes.append(scene)

    def _same_variant(self, workload: Workload, case: Case) -> list[str]:
        """Names of the cases that compile to the code that `case` compiles to, and launch it alike."""
        if workload.meta.get("launches") == "by case":
            return [case.name]
        arch = arch_of(self.gpu.capability)
        try:
            headline = workload.build(case, arch).digest
            return [other.name for other in workload.cases if workload.build(other, arch).digest == headline]
        except SassafrasError as error:
            self.notes.append(f"the other cases were not checked: {error}")
            return []

    def _estimate(self) -> float:
        """GPU microseconds of a baseline launch, after a short warm-up."""
        graph = self.headline.graph(self.plan, self.function, 20)

        def replay() -> None:
            self.gpu.replay(graph)

        try:
            self.stopwatch.one(replay)
            return min(self.stopwatch.one(replay) for _ in range(5)) / 20
        finally:
            self.gpu.discard(graph)

    def facts(self) -> dict[str, Any]:
        """What `open` answers."""
        import torch

        free, _ = torch.cuda.mem_get_info()
        return {
            "bytes_free": free,
            "bytes_taken": _CONTEXT_BYTES + torch.cuda.max_memory_reserved(),
            "gpu": self.gpu.name,
            "arch": arch_of(self.gpu.capability),
            "launch_us": self.launch_us,
            "launches_a_block": self.launches,
            "exact": self.headline.exact,
            "idempotent": self.headline.idempotent,
            "cases": [scene.case.name for scene in self.scenes],
            "images": sum(len(scene.images) for scene in self.scenes),
            "arena_bytes": self.headline.layout.nbytes,
            "notes": self.notes,
        }

    # -- judging one candidate ----------------------------------------------------------------------------

    def run(self, kernel: Kernel, *, pairs: int = 12, stop_above: float = 1.05) -> dict[str, Any]:
        """Check, time interleaved with the baseline, check inside and after timing.

        Args:
            pairs: most pairs of blocks to time (fewer for long kernels).
            stop_above: relative runtime above which timing stops after the first pairs.

        Returns: ``verdict``, ``detail``, ``baseline_us`` and ``candidate_us`` (a launch, per pair),
            ``samples``, ``stopped`` (timing was cut short), ``sticky`` (this process is lost).
        """
        function: KernelFunction | None = None
        graph: Any = None
        self.headline.errors = None
        try:
            function = self.gpu.load_kernel(kernel)
            plans = [scene.plan(kernel, function) for scene in self.scenes]
            samples = self._enqueue_checks(function, plans, "before timing")
            if failures := self._collect():
                return self._wrong(failures, samples)
            graph = self.headline.graph(plans[0], function, self.launches)
            base, mine, stopped, timed = self._time(graph, pairs, stop_above)
            self.headline.check_launch(self.headline.images[0], plans[0], function, "after timing")
            samples += timed + 1
            if failures := self._collect():
                return self._wrong(failures, samples)
            measured = {
                "errors": self.headline.errors,
                "samples": samples,
                "stopped": stopped,
                "baseline_us": base,
                "candidate_us": mine,
            }
            return self._unless_remembered(plans[0], function, measured)
        except DeviceError as error:
            return self._refused(error)
        finally:
            self._release(graph, function)

    def _refused(self, error: DeviceError) -> dict[str, Any]:
        """The answer for an error: a driver's verdict, or ``unsupported`` for a mismatch of parameters."""
        if not error.sticky:
            self.gpu.sync()
            self.checker.reset()
            for scene in self.scenes:
                scene.forget()
        verdict = error.verdict or Verdict.UNSUPPORTED
        return {"verdict": str(verdict), "detail": str(error), "sticky": error.sticky, "samples": 0}

    def _release(self, graph: Any, function: KernelFunction | None) -> None:
        try:
            if graph is not None:
                self.gpu.discard(graph)
            if function is not None:
                self.gpu.unload(function)
        except CudaError as error:
            if not error.sticky:
                raise  # a sticky error was reported already where it arose

    def _enqueue_checks(self, function: KernelFunction, plans: list[Plan], label: str) -> int:
        count = 0
        for scene, plan in zip(self.scenes, plans, strict=True):
            for image in scene.images:
                scene.check_launch(image, plan, function, label)
                count += 1
        return count

    def _collect(self) -> list[Failure]:
        failures = [Failure(kind, detail) for kind, detail in self.checker.failures()]
        for scene in self.scenes:
            failures += scene.tolerance_failures()
        return failures

    def _wrong(self, failures: list[Failure], samples: int) -> dict[str, Any]:
        """A wrong result; also makes sure that the candidate has not damaged what we compare with."""
        return {
            "verdict": str(Verdict.WRONG_RESULT),
            "detail": failures[0].detail
            + (f"; {len(failures) - 1} more checks failed" if failures[1:] else ""),
            "kinds": sorted({failure.kind for failure in failures}),
            "samples": samples,
            "sticky": False,
            "restart": not self.healthy(),
        }

    def healthy(self) -> bool:
        """True when the baseline still gives what it gave at open, on every image."""
        plans = [scene.plan(self.baseline, self.function) for scene in self.scenes]
        self._enqueue_checks(self.function, plans, "baseline again")
        return not self._collect()

    def _time(self, graph: Any, pairs: int, stop_above: float) -> tuple[list[float], list[float], bool, int]:
        """Times of baseline and candidate, whether they were cut short, and launches checked meanwhile."""
        block = self.launches * self.launch_us
        rounds = int(min(pairs, max(4, 2600.0 // (2 * block))))
        first = min(rounds, 4)
        base, mine = self._rounds(graph, first)
        ratio = statistics.median(m / b for m, b in zip(mine, base, strict=True)) if base else 1.0
        if ratio > stop_above or rounds <= first:
            return base, mine, ratio > stop_above, 1
        more_base, more_mine = self._rounds(graph, rounds - first)
        return base + more_base, mine + more_mine, False, 2

    def _rounds(self, graph: Any, rounds: int) -> tuple[list[float], list[float]]:
        """Time rounds of baseline and candidate; one more of the candidate's is checked, not counted."""
        scene, image = self.headline, self.headline.images[0]
        order, marked, pairs = with_one_checked(rounds, self._rng)

        def before(index: int) -> None:
            if index == marked:
                scene.restore(image)

        def after(index: int) -> None:
            if index == marked:
                scene.compare(image, "inside timing", block=True)

        times = self.stopwatch.blocks([self.graph, graph], order, before=before, after=after)
        if scene.idempotent and scene.exact:
            scene.compare(image, "left by timed launches")
        return (
            [times[base] / self.launches for base, _ in pairs],
            [times[mine] / self.launches for _, mine in pairs],
        )

    # -- measuring a frozen candidate ---------------------------------------------------------------------

    def measure(self, kernel: Kernel, *, rounds: int = 100, cold_l2: bool = True) -> dict[str, Any]:
        """Candidate, baseline and identity rewrite, interleaved in longer blocks; all checks around it.

        Returns: as `run`, with ``null_us`` and, for ``cold_l2``, ``cold_baseline_us``, ``cold_candidate_us``.
        """
        function = identity = None
        graphs: list[Any] = []
        try:
            if self.cold_failure and self._cold is not None and kernel.cubin == self._cold.cubin:
                return {
                    "verdict": str(Verdict.WRONG_RESULT),
                    "detail": self.cold_failure,
                    "sticky": False,
                    "samples": 1,
                }
            function = self.gpu.load_kernel(kernel)
            identity = self.gpu.load_kernel(self.baseline)
            plans = [scene.plan(kernel, function) for scene in self.scenes]
            samples = self._enqueue_checks(function, plans, "before timing")
            if failures := self._collect():
                return self._wrong(failures, samples)
            launches = launches_a_block(self.launch_us, FROZEN_BLOCK_US)
            scene = self.headline
            for plan, code in ((self.plan, self.function), (plans[0], function), (self.plan, identity)):
                graphs.append(scene.graph(plan, code, launches))
            rounds = int(min(rounds, max(12, 1.5e6 // (3 * launches * self.launch_us))))
            order = interleaved(3, rounds)
            times = self.stopwatch.blocks(graphs, order)
            columns: dict[int, list[float]] = {0: [], 1: [], 2: []}
            for which, time in zip(order, times, strict=True):
                columns[which].append(time / launches)
            # rounds as `run` times them, for their checks inside timing
            graphs.append(scene.graph(plans[0], function, self.launches))
            self._rounds(graphs[-1], 4)
            samples += 1 + self._enqueue_checks(function, plans, "after timing")
            if failures := self._collect():
                return self._wrong(failures, samples)
            measured: dict[str, Any] = {
                "samples": samples,
                "baseline_us": columns[0],
                "candidate_us": columns[1],
                "null_us": columns[2],
                "notes": self.notes,
                "cases": [s.case.name for s in self.scenes],
            }
            answer = self._unless_remembered(plans[0], function, measured)
            if cold_l2 and answer["verdict"] == Verdict.CORRECT:
                answer |= self._cold_l2(plans[0], function)
            return answer
        except DeviceError as error:
            return self._refused(error)
        finally:
            for graph in graphs:
                self._release(graph, None)
            self._release(None, function)
            self._release(None, identity)

    def _unless_remembered(
        self, plan: Plan, function: KernelFunction, measured: dict[str, Any]
    ) -> dict[str, Any]:
        """The answer with what was measured, or for one that is faster with inputs that it has seen."""
        problem, facts = "", dict[str, Any]()
        # schedules have their original's instructions; other programs might remember results
        if not self._bitwise:
            self._replay = self._replay or ReplayCheck(self)
            problem, facts = self._replay.judge(plan, function, statistics.median(measured["candidate_us"]))
            self.headline.restore(self.headline.images[0])
        if problem:
            measured, verdict = {"samples": measured["samples"]}, Verdict.CHEATED
        else:
            verdict = Verdict.CORRECT
        return {**facts, "verdict": str(verdict), "detail": problem, "sticky": False, **measured}

    def _cold_l2(self, plan: Plan, function: KernelFunction, rounds: int = 12) -> dict[str, Any]:
        """Single launches after the L2 was evicted by reading; includes a launch's own overhead."""
        contestants = [(self.plan, self.function), (plan, function)]
        columns: list[list[float]] = [[], []]
        for which in interleaved(2, rounds):
            code_plan, code = contestants[which]
            self.headline.restore(self.headline.images[0])
            self.checker.flush_l2()

            def once(p: Plan = code_plan, f: KernelFunction = code) -> None:
                self.headline.launch(p, f)

            columns[which].append(self.stopwatch.one(once))
        return {"cold_baseline_us": columns[0], "cold_candidate_us": columns[1]}
