"""`judge`: solutions in the formats of KernelBench and flashinfer-bench, judged as Python candidates."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, Literal

from sassafras import __version__
from sassafras.comparison.cubins import from_evaluation
from sassafras.core import DeviceError, Evaluation, Kernel, Verdict, WorkloadError
from sassafras.cuda.environment import available
from sassafras.evaluate.host import HostEvaluator, HostSource
from sassafras.formats import Problem, flashinfer, kernelbench, load, read_solution
from sassafras.jobs.opening import opened_store
from sassafras.llm.answer import read_answer, whole_source
from sassafras.report.listing import outcome_json
from sassafras.store import Store


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of one solution.

    Attributes:
        problem: what it solves.
        solution: its name.
        device: ``cpu`` or ``cuda``; figures are wall time, inputs and outputs copied included.
        outcomes: by case: the verdict, and of a correct one the figures beside the A/A control.
        run: number of each case's run in the store; empty without a store.
    """

    problem: Problem
    solution: str
    device: str
    outcomes: Mapping[str, Evaluation]
    run: Mapping[str, int]

    @property
    def verdict(self) -> Verdict:
        """``correct`` if it is in every case, else the first other verdict."""
        return next((o.verdict for o in self.outcomes.values() if not o.verdict.ok), Verdict.CORRECT)

    @property
    def reward(self) -> float:
        """0 unless it is correct in every case, else 1 and the mean over the cases of their gains.

        A gain is the binary logarithm of the low end of the speed-up's interval, where that lies above 1 and
        above the A/A control's interval; else 0.
        """
        if not self.verdict.ok:
            return 0.0
        found = self.outcomes.values()
        gains = [log2(o.interval.low) for o in found if o.interval and _decided(o) == "faster"]
        return 1.0 + sum(gains) / len(found)

    def summary(self) -> str:
        """A line a case: verdict, reason, and the speed-up beside the A/A control."""
        lines = []
        for case, found in self.outcomes.items():
            said = f"{found.verdict}{': ' if found.detail else ''}{found.detail}"
            if found.speedup is not None:
                said += f", {_decided(found)}: {found.speedup:.3f}x {found.interval}, null {found.null:.3f} "
                said += f"{found.null_interval}, wall time on {self.device}"
            lines.append(f"{self.solution} [{case}]: {said}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values, intervals as pairs."""
        return {
            "problem": self.problem.name,
            "format": self.problem.format,
            "solution": self.solution,
            "device": self.device,
            "verdict": str(self.verdict),
            "reward": self.reward,
            "tolerance": self.problem.workload.tolerance.rtol,
            "reference": self.problem.workload.meta["reference"],
            "cases": {case: self._case(case) for case in self.outcomes},
        }

    def _case(self, case: str) -> dict[str, Any]:
        found = outcome_json(self.outcomes[case])
        if error := found["facts"].get("error"):
            found["facts"] = {**found["facts"], "error": list(map(flashinfer.number, error))}
        for name in ("interval", "null_interval"):
            found[name] = found[name] and list(found[name].values())
        return {"decided": _decided(self.outcomes[case]), "run": self.run.get(case), **found}

    def theirs(self) -> list[dict[str, Any]]:
        """The result in the format of the problem: traces, or entries of eval_results.json."""
        facts = {case: self._case(case) for case in self.outcomes}
        machine = _machine(self.device)
        if self.problem.format == "flashinfer-bench":
            return flashinfer.traces(self.problem, self.solution, self.outcomes, facts, machine)
        return kernelbench.results(self.outcomes, {"sassafras": facts["inputs"], **machine})


class Judge:
    """Judges solutions of one problem, one at a time; another thread's call waits.

    ```python
    with Judge("problem.py") as judge:
        print(judge("solution.py").verdict, judge.reward(answer_of_a_model))
    ```

    Args:
        problem: a KernelBench problem (``.py``), the Definition of flashinfer-bench (``.json``), or a
            `Problem`.
        workloads: the Definition's workloads (``.jsonl``).
        case: only the workload with this uuid.
        device: ``cpu``, ``cuda``, or ``auto``: the GPU where there is one.
        tolerance: relative and absolute, instead of the format's own.
        rounds: interleaved rounds of fresh inputs that are timed.
        call_s: seconds that one call may take.
        store: path or `Store`; None for the default, False for none.

    Raises:
        SassafrasError: the problem cannot be read, or there is no such device.
    """

    def __init__(
        self,
        problem: str | Path | Problem,
        workloads: str | Path | None = None,
        *,
        case: str | None = None,
        device: str = "auto",
        tolerance: float | None = None,
        rounds: int = 8,
        call_s: float = 10.0,
        store: str | Path | Store | bool | None = None,
    ) -> None:
        self.device = _device(device)
        if not isinstance(problem, Problem):
            problem = load(problem, workloads, case=case, device=self.device, tolerance=tolerance)
        self.problem = problem
        self._turn = threading.Lock()
        self._store = store
        with opened_store(store):  # an error of it comes before long work
            self._evaluators = {
                each.name: HostEvaluator(
                    problem.workload,
                    each,
                    problem.baseline,
                    device=self.device,
                    rounds=rounds,
                    call_s=call_s,
                    draw=problem.draws[each.name],
                    control=True,
                )
                for each in problem.workload.cases
            }

    def __call__(self, solution: str | Path | HostSource) -> Judgement:
        """Judge a solution: its file, or what `sassafras.formats.read_solution` made of it.

        Raises:
            SassafrasError: the file is none of this problem, or the problem's own program cannot be run.
        """
        if not isinstance(solution, HostSource):
            solution = read_solution(self.problem, solution)
        outcomes: dict[str, Evaluation] = {}
        runs: dict[str, int] = {}
        for case, evaluator in self._evaluators.items():
            with self._turn, opened_store(self._store) as kept:  # of this thread: SQLite's rule
                begin = time.monotonic()
                outcomes[case] = evaluator.evaluate(solution)
                if len(self._evaluators) > 1:  # else each case would hold contexts on the GPU
                    evaluator.close()
                if kept is not None:
                    runs[case] = self._run(kept, case)
                    recipe = {**solution.recipe, **solution.setup()}
                    kept.append(runs[case], recipe, outcomes[case], time.monotonic() - begin)
        return Judgement(self.problem, str(solution.recipe.get("name", "")), self.device, outcomes, runs)

    def reward(self, completion: str | list[Mapping[str, Any]]) -> float:
        """The `Judgement.reward` of a model's answer; 0 where it is no solution.

        Args:
            completion: text with the solution in its longest code block, or messages, the last of which is.
        """
        text = completion if isinstance(completion, str) else str(completion[-1]["content"])
        answer = read_answer(text)
        try:
            solution = self.problem.solution(whole_source(answer) if answer.blocks else text, "the answer")
        except WorkloadError:
            return 0.0
        return self(solution).reward

    def _run(self, store: Store, case: str) -> int:
        """The run that holds all solutions of this problem's case on this device."""
        problem, machine = self.problem, _machine(self.device)
        what = {"workload": problem.name, "case": case, "device": machine["hardware"]}
        return store.begin_run(
            {**what, "format": problem.format, "problem": problem.digest, "sassafras": __version__},
            kernel=Kernel(problem.baseline.text.encode(), problem.baseline.entry, "python", 1),
            modelled=False,
            strategy="judge",
            seed=0,
            environment=machine,
            **what,
        )

    def close(self) -> None:
        """End the processes."""
        with ExitStack() as stack:
            for evaluator in self._evaluators.values():
                stack.callback(evaluator.close)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def judge(problem: str | Path | Problem, solution: str | Path | HostSource, **settings: Any) -> Judgement:
    """Judge one solution of a KernelBench or flashinfer-bench problem.

    Args:
        problem: as for `Judge`.
        solution: as for a call of `Judge`.
        settings: further arguments of `Judge`.

    Raises:
        SassafrasError: one of its subclasses; never for the solution's fault, which the verdict says.
    """
    with Judge(problem, **settings) as made:
        return made(solution)


def _decided(outcome: Evaluation) -> str:
    return from_evaluation(outcome, 0, 0).decided


def _device(name: str) -> Literal["cpu", "cuda"]:
    has, what = available()
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"there is no device {name!r}", hint="auto, cuda or cpu")
    if name == "cuda" and not has:
        raise DeviceError(what, hint="the device cpu judges what runs on a CPU")
    return "cuda" if has and name != "cpu" else "cpu"


def _machine(device: str) -> dict[str, Any]:
    """Hardware and versions of libraries, as flashinfer-bench names them."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU {platform.machine()}"
    libs = {"sassafras": __version__, "torch": torch.__version__}
    return {"hardware": name.replace(" ", "_"), "libs": libs}
