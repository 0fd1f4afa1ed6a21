"""KernelBench: problems define `Model`, `get_inputs` and `get_init_inputs`; solutions define `ModelNew`.

Facts: ScalingIntelligence/KernelBench, src/kernelbench/eval.py. Weights are those of one seed that is set
before either class is made. Modules stay in the mode they are made in. Outputs in FP32 may differ by 1e-4,
narrower ones by 1e-2, absolutely and relatively. There the reference is the module itself, and convolutions
may use TF32; here it calculates in FP64 where it can, and TF32 is off.
"""

from __future__ import annotations

import ast
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sassafras.core import Evaluation, Verdict, WorkloadError
from sassafras.evaluate.host import HostSource

from .problem import Problem, digest_of, execute, located, workload_of

_NAMES = ("Model", "get_inputs", "get_init_inputs")
_ENTRY, _NARROW = "ModelNew", ("fp16", "bf16")


def problem(text: str, where: str, name: str, *, device: str, tolerance: float | None) -> Problem:
    """A problem from its text, which is executed.

    Args:
        text: the module.
        where: its file, for errors.
        name: to call it.
        device: where the reference runs.
        tolerance: instead of KernelBench's own.

    Raises:
        WorkloadError: it raised, lacks one of the three names, or cannot be judged.
    """
    found = execute(text, where)
    for needed in _NAMES:
        if not callable(found.get(needed)):
            kind = "class" if needed == "Model" else "function"
            raise WorkloadError(
                f"it defines no {kind} {needed!r}",
                where=where,
                hint="a KernelBench problem defines Model, get_inputs() and get_init_inputs()",
            )
    with located(where):
        given = found["get_init_inputs"]()
    init = _plain(given, where)
    seed, drawn = secrets.randbits(31), dict[str, list[bool]]()

    def made() -> Any:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return found["Model"](*init).to(device)

    def draw(number: int) -> dict[str, Any]:
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(number)
            inputs = found["get_inputs"]()
        if not isinstance(inputs, Sequence) or not any(torch.is_tensor(each) for each in inputs):
            raise WorkloadError("get_inputs() returns no list of tensors", where=where)
        kinds = [torch.is_tensor(each) for each in inputs]
        if kinds != drawn.setdefault("first", kinds):
            hint = "as many tensors and numbers each time, in one order"
            raise WorkloadError("get_inputs() returns other arguments each time", where=where, hint=hint)
        return {f"in{i}": each.cpu() if torch.is_tensor(each) else each for i, each in enumerate(inputs)}

    with located(where):
        model = made()
        workload = workload_of(
            name,
            {"inputs": draw},
            model,
            lambda: made().double(),
            outputs=None,
            tolerance=lambda dtype: (1e-2 if dtype in _NARROW else 1e-4) if tolerance is None else tolerance,
            device=device,
            where=where,
            meta={"format": "kernelbench", "weights_seed": seed},
        )
    common: dict[str, Any] = {"style": "position", "init": init, "seed": seed, "builds": True}

    def solution(candidate: str, called: str) -> HostSource:
        if _ENTRY not in candidate:
            raise WorkloadError(f"it defines no class {_ENTRY!r}", where=called, hint="solutions do")
        return HostSource(candidate, _ENTRY, recipe={"origin": "given", "name": called}, **common)

    baseline = HostSource(text, "Model", **common)
    return Problem("kernelbench", name, workload, baseline, {"inputs": draw}, digest_of(text), solution)


def results(outcomes: Mapping[str, Evaluation], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entries of KernelBench's eval_results.json, runtimes in ms; `facts` go into their metadata."""
    rows = []
    for outcome in outcomes.values():
        compiled = outcome.verdict not in (Verdict.COMPILE_ERROR, Verdict.UNSUPPORTED)
        issue = "correctness_issue" if outcome.verdict is Verdict.WRONG_RESULT else "runtime_error"
        issues = {} if outcome.verdict.ok else {issue if compiled else "compilation_error": outcome.detail}
        time_ms = outcome.time_us / 1000 if outcome.time_us else -1.0
        said = {"compiled": compiled, "correctness": outcome.verdict.ok, "metadata": {**issues, **facts}}
        rows.append({**said, "runtime": time_ms, "runtime_stats": {}})
    return rows


def _plain(given: Any, where: str) -> tuple[Any, ...]:
    """Constructor arguments that a text can carry to another process."""
    if not isinstance(given, list | tuple):
        raise WorkloadError("get_init_inputs() returns no list", where=where)
    for index, value in enumerate(given):
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            same = False
        if not same:
            raise WorkloadError(
                f"get_init_inputs() returns a {type(value).__name__} as argument {index}",
                where=where,
                hint="numbers, strings, None, and tuples, lists and dicts of them reach another process",
            )
    return tuple(given)
