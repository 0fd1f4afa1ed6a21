"""What the tools do: thin calls of the public verbs, each in a worker process of its own.

The signature without `Call` is the tool's schema, its docstring the description that a client reads.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sassafras.api.audit import audit as audit_program
from sassafras.api.compare import compare as compare_two
from sassafras.api.doctor import abilities, diagnose
from sassafras.api.evaluate import MOST_CUBIN
from sassafras.api.evaluate import evaluate as evaluate_one
from sassafras.api.judge import Judge
from sassafras.api.optimize import optimize as search
from sassafras.api.validate import prove
from sassafras.core import SassafrasError
from sassafras.core.errors import reason
from sassafras.evaluate.scan import scan_cubin
from sassafras.formats import read_solution
from sassafras.report.explain import explain as explained
from sassafras.report.listing import listing
from sassafras.sass import Program
from sassafras.search import Progress
from sassafras.store import Store

Device = Literal["cuda", "model"]
#: targets that name no file
_BUILT_IN = ("suite:", "gemm:", "gemm-source:", "run:")
#: seconds between two reports of a search's progress
_APART = 0.25


@dataclass
class Call:
    """What a tool may use.

    Attributes:
        root: the folder in which files of the caller lie, resolved.
        store: path of the store, None for the default.
        tell: called with ``message`` and, where known, ``progress`` and ``total`` (seconds).
    """

    root: Path
    store: str | None
    tell: Callable[..., None]
    _last: float = 0.0

    def stage(self, text: str) -> None:
        """Another part of the work begins."""
        self.tell(message=text)

    def progress(self, event: Progress) -> None:
        """A new outcome of a search."""
        if (now := time.monotonic()) - self._last >= _APART:
            self._last = now
            total = None if event.left is None else event.elapsed + event.left
            self.tell(message=f"{event.evaluations} evaluations", progress=event.elapsed, total=total)

    def path(self, text: str) -> Path:
        """A file of the caller. Raises SassafrasError: it lies outside of `root`."""
        try:
            place = (self.root / text).resolve()
            place.exists()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a loop of links
            raise SassafrasError(f"this is no path: {reason(error)}", where=ascii(text[:200])) from error
        if not place.is_relative_to(self.root):
            raise SassafrasError(
                "outside of the server's folder", where=text[:200], hint="sassafras mcp --root"
            )
        return place

    def target(self, text: str) -> str:
        """A workload as `sassafras.load` reads it, its file within `root`."""
        if text.startswith(_BUILT_IN):
            return text
        file, mark, rest = re.fullmatch(r"(.*?\.(?:py|json))(:)(.*)|(.*)", text, re.S).group(1, 2, 3)  # type: ignore[union-attr]
        return f"{self.path(file or text)}{mark or ''}{rest or ''}"

    def cubin(self, text: str) -> bytes:
        """A file within `root`, or by its digest one of the store. Raises SassafrasError."""
        if re.fullmatch(r"[0-9a-f]{64}", text):
            with Store.open(self.store, readonly=True) as store:
                return store.cubin(text)
        place = self.path(text)
        if not place.is_file() or place.stat().st_size > MOST_CUBIN:
            raise SassafrasError("no such cubin", where=text[:200], hint="a file, or a digest of the store")
        return place.read_bytes()


def _judged(call: Call, target: str, source: str | None, cubin: str | None, **more: Any) -> dict[str, Any]:
    code = None if cubin is None else call.cubin(cubin)
    found = evaluate_one(call.target(target), source, cubin=code, store=call.store, stage=call.stage, **more)
    return found.to_json()


def doctor(call: Call) -> dict[str, Any]:
    """List the GPU, driver, tools and packages found here, and the tasks that they allow."""
    findings = diagnose()
    able = abilities(findings)
    return {"findings": [asdict(one) for one in findings], "abilities": [asdict(one) for one in able]}


def baseline(call: Call, workload: str, case: str | None = None, device: Device = "cuda") -> dict[str, Any]:
    """Compile a workload's own kernel and measure it against itself (the A/A control).

    Returns the task in words: source, launch, arguments, tolerance, bound (`brief`).
    `workload`: suite:NAME[/CASE], gemm:MxNxK, file.py[:attribute] or file.toml.
    `device`: cuda, or model for the timing model, which runs nothing and measures nothing.
    """
    return _judged(call, workload, None, None, case=case, device=device)


def evaluate(
    call: Call,
    workload: str,
    source: str | None = None,
    cubin: str | None = None,
    case: str | None = None,
    device: Device = "cuda",
) -> dict[str, Any]:
    """Judge a candidate: verdict, reason, speed-up with its interval, and the A/A control (`null`).

    `source`: a whole CUDA C++ or Triton source with the entry and parameters of the baseline. It is built in
    a sandbox and compared with the reference. `cubin`: a file, or a sha256 digest of the store; a schedule of
    the baseline, which the validator proves first. Only `decided` = "faster" is a gain.
    On device model nothing runs: no output is checked, and the figures are modelled.
    """
    if (source is None) == (cubin is None):
        raise SassafrasError("one candidate is needed", hint="give source or cubin")
    return _judged(call, workload, source, cubin, case=case, device=device)


def judge(
    call: Call,
    problem: str,
    solution: str | None = None,
    file: str | None = None,
    workloads: str | None = None,
    case: str | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Judge a solution of a KernelBench problem or a flashinfer-bench Definition, as `sassafras judge` does.

    `problem`: a file, .py with Model or .json. `solution`: the whole text of a module with ModelNew, or of a
    Solution's JSON; `file`: a file with it instead. `workloads`: the Definition's .jsonl. Each case has a
    verdict, the reason, and the speed-up of wall time with its interval beside the A/A control (`null`);
    `reward` is 0 unless all are correct. `theirs`: the result in the problem's own format.
    """
    if (solution is None) == (file is None):
        raise SassafrasError("one solution is needed", hint="give solution or file")
    rows = None if workloads is None else call.path(workloads)
    call.stage("reading the problem")
    with Judge(
        call.path(problem), rows, case=case, device=device, tolerance=tolerance, store=call.store
    ) as made:
        if file is not None:
            source = read_solution(made.problem, call.path(file))
        else:
            source = made.problem.solution(str(solution), "the solution")
        call.stage("judging the solution beside the problem's own program")
        found = made(source)
    return {**found.to_json(), "theirs": found.theirs()}


def profile(
    call: Call, workload: str, source: str | None = None, cubin: str | None = None, case: str | None = None
) -> dict[str, Any]:
    """Judge a candidate (by default the baseline) on the GPU and return ncu's metrics of it (`metrics`).

    Metrics: duration, DRAM and L2 traffic, tensor and occupancy percentages, the largest stall reasons. Where
    ncu is missing or may not read the counters, `metrics` says "unavailable" and why.
    """
    return _judged(call, workload, source, cubin, case=case, device="cuda", metrics=True)


def compare(
    call: Call, workload: str, a: str, b: str, case: str | None = None, tolerance: bool = False
) -> dict[str, Any]:
    """Measure two cubins of a workload against each other in fresh processes on the GPU.

    `a` (the baseline), `b`: files, or sha256 digests of the store. `decided` says faster only beyond the A/A
    control. `tolerance`: compare outputs within the workload's tolerance instead of bit by bit.
    """
    both = [call.cubin(one) for one in (a, b)]
    for name, code in zip((a, b), both, strict=True):
        for function in Program.parse(code).functions:
            if (finding := scan_cubin(code, function)[0]) is not None:
                raise SassafrasError(f"refused before it ran: {finding}", where=name)
    call.stage("measuring in fresh processes")
    return compare_two(*both, workload=call.target(workload), case=case, bitwise=not tolerance).to_json()


def explain(
    call: Call,
    workload: str,
    tuned: str | None = None,
    case: str | None = None,
    device: Device = "cuda",
    limit: int = 600,
) -> dict[str, Any]:
    """Explain how much each move of a tuned schedule gained, and why.

    `workload`: a workload (its best stored kernel is explained), or run:N of the store. `tuned`: a file or a
    sha256 digest of the store to explain instead. `limit`: schedules evaluated at most.
    """
    target, code = call.target(workload), None if tuned is None else call.cubin(tuned)
    common: Any = {"store": call.store, "stage": call.stage}
    return explained(target, tuned=code, case=case, device=device, limit=limit, **common).to_json()


def validate(call: Call, original: str, candidate: str, kernel: str | None = None) -> dict[str, Any]:
    """Prove that a rescheduled cubin computes the same as the original with legal timing. Runs nothing.

    `original`, `candidate`: files, or sha256 digests of the store.
    """
    name, report = prove(call.cubin(original), call.cubin(candidate), kernel)
    return {"ok": report.ok, "kernel": name, "violations": [str(one) for one in report.violations]}


def audit(call: Call, path: str, kernel: str | None = None) -> dict[str, Any]:
    """Find hazards in compiled kernels from their code alone: missing waits, short stalls, misused barriers.

    `path`: a cubin, a program or library that holds cubins, or a folder of cubins. `kernel`: only kernels
    whose name contains this. Each finding has its instruction, what is wrong and the rule; `surplus` lists
    waits that protect nothing. Runs nothing.
    """
    return audit_program(call.path(path), kernel).to_json()


def optimize(
    call: Call,
    workload: str,
    case: str | None = None,
    device: Device = "cuda",
    budget: str = "60s",
    strategy: str = "guided",
    space: Literal["swaps", "control", "renaming", "blocks"] = "swaps",
    seed: int = 0,
) -> dict[str, Any]:
    """Search for a faster schedule of the baseline; prove, re-measure and store the winner.

    `budget`: for example 60s or 3000e (evaluations). The winner's code is in the store under
    `kernel.digest`. A cancelled search goes on where it stopped when it is asked for again.
    """
    how: Any = {"strategy": strategy, "space": space, "seed": seed, "budget": budget, "store": call.store}
    told: Any = {"progress": call.progress, "stage": call.stage}
    found = search(call.target(workload), case=case, device=device, **how, **told).to_json()
    return {name: value for name, value in found.items() if name not in ("environment", "recipe", "settings")}


def store_search(call: Call, text: str = "", most: int = 50) -> dict[str, Any]:
    """List stored kernels and runs whose workload, case, kernel, device or digest contains a text.

    Measured kernels and modelled ones are listed apart. `most`: rows of each list, the best or newest.
    """
    with Store.open(call.store, readonly=True) as store:
        found = listing(store)
        digests = {one.tuned[:16]: one.tuned for one in (*store.winners(), *store.modelled_winners())}
    found["runs"].reverse()
    for rows in found.values():
        for row in rows:
            row |= {"tuned": digests.get(row["tuned"])} if "tuned" in row else {}
        rows[:] = [row for row in rows if text.lower() in str(list(row.values())).lower()][: max(0, most)]
    return dict(found)


#: tool -> seconds that a call may take once it has its turn
TOOLS: dict[Callable[..., dict[str, Any]], float] = {
    **dict.fromkeys((doctor, validate, audit, store_search), 300.0),
    **dict.fromkeys((baseline, evaluate, compare, profile), 900.0),
    **dict.fromkeys((explain, judge, optimize), 3600.0),
}
