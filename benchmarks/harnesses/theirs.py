"""The checks of other benchmarks, unchanged, on a candidate that is a PyTorch module.

Their packages come from a folder of checkouts. Packages' own ``__init__`` files are passed over: they import
clients of language models and the like. What is missing of those is replaced by names that do nothing.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import Case, Said

#: KernelBench's own test of its adversarial samples asks for five sets of inputs; fewer timed calls
TRIALS, CALLS = 5, 10
#: where all runs
DEVICE = "cuda:0"
#: what robust-kbench's run_kernel.py allows
ROBUST_TOLERANCE = 1e-3


def _bare(name: str, place: Path) -> None:
    """A package without its ``__init__``. Raises SystemExit: it is not there."""
    if not place.is_dir():
        raise SystemExit(f"error: {place} is no folder; see evaluators.py --help")
    module = types.ModuleType(name)
    module.__path__ = [str(place)]
    sys.modules[name] = module


def _absent(*names: str) -> None:
    """Names that do nothing, for packages that are not installed and that no check uses."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            module.__getattr__ = _nothing  # type: ignore[method-assign]
            sys.modules[name] = module


def _nothing(name: str) -> Callable[..., None]:
    if name.startswith("__"):  # torch and inspect ask every module for its ``__file__``
        raise AttributeError(name)
    return lambda *a, **k: None


def _made(case: Case) -> tuple[dict[str, Any], Any]:
    """The problem's names, and the candidate's module on the GPU."""
    names: dict[str, Any] = {"__name__": "problem"}
    exec(compile(case.problem, "problem.py", "exec"), names)
    return names, _candidate(case).ModelNew().to(DEVICE)


def _candidate(case: Case) -> Any:
    """The candidate as a module of a file: Triton reads its kernels' source."""
    path = Path("candidate.py").resolve()
    path.write_text(case.candidate, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


def kernelbench(folder: Path) -> Callable[[Case], Said]:
    """`eval_kernel_against_ref`, and what it flags as an excessive speed-up."""
    _absent("dotenv", "openai", "litellm", "requests")
    _bare("kernelbench", folder / "KernelBench" / "src" / "kernelbench")
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]

    def judge(case: Case) -> Said:
        found = eval_kernel_against_ref(
            case.problem,
            case.candidate,
            num_correct_trials=TRIALS,
            num_perf_trials=CALLS,
            measure_performance=True,
            backend="triton" if "triton.jit" in case.candidate else "cuda",
        )
        if found is None:
            return Said(False, None, "no result")
        flagged = bool(found.metadata.get("excessive_speedup"))
        ratio = found.ref_runtime / found.runtime if found.correctness and found.runtime > 0 else None
        words = {k: str(v) for k, v in found.metadata.items() if "issue" in k or "error" in k}
        text = "excessive speed-up" if flagged else str(words or "correct")
        return Said(bool(found.correctness) and not flagged, ratio, text)

    return judge


def kernelbench_static(folder: Path) -> Callable[[Case], Said]:
    """`validate_kernel_static`: KernelBench's check of the text, by itself."""
    _absent("dotenv", "openai", "litellm", "requests")
    _bare("kernelbench", folder / "KernelBench" / "src" / "kernelbench")
    from kernelbench.kernel_static_checker import validate_kernel_static  # type: ignore[import-not-found]

    def judge(case: Case) -> Said:
        # no backend: that PyTorch calculates is no cheat in these problems
        valid, errors, _ = validate_kernel_static(case.candidate, backend="", precision="fp32")
        return Said(valid, None, "; ".join(errors) or "valid")

    return judge


def flashinfer_bench(folder: Path) -> Callable[[Case], Said]:
    """The default evaluator, as the workers of both runners call it."""
    spec = importlib.util.find_spec("flashinfer")
    _bare("flashinfer", Path(spec.origin).parent if spec and spec.origin else folder / "flashinfer")
    _bare("flashinfer.jit", Path(sys.modules["flashinfer"].__path__[0]) / "jit")
    sys.path.insert(0, str(folder / "flashinfer-bench"))
    import torch
    from flashinfer_bench.bench.config import BenchmarkConfig  # type: ignore[import-not-found]
    from flashinfer_bench.bench.evaluators import resolve_evaluator  # type: ignore[import-not-found]
    from flashinfer_bench.compile import BuilderRegistry  # type: ignore[import-not-found]
    from flashinfer_bench.data import Definition, Solution, Workload  # type: ignore[import-not-found]

    def judge(case: Case) -> Said:
        names: dict[str, Any] = {"__name__": "problem"}
        exec(compile(case.problem, "problem.py", "exec"), names)
        given = names["get_inputs"]()
        output = names["Model"]().to(DEVICE)(*(tensor.to(DEVICE) for tensor in given))
        described = definition(case, given, output)
        definition_of = Definition.model_validate(described)
        workload = Workload.model_validate(
            {"axes": {}, "uuid": "one", "inputs": {name: {"type": "random"} for name in described["inputs"]}}
        )
        words = ", ".join(described["inputs"])
        calls = f"\n\nmade = ModelNew().to({DEVICE!r})\n\n\ndef main({words}):\n    return made({words})\n"
        language = "triton" if "triton.jit" in case.candidate else "python"
        spec = {"language": language, "target_hardware": ["cuda"], "entry_point": "main.py::main"}
        solution = Solution.model_validate(
            {
                "name": case.name,
                "definition": definition_of.name,
                "author": case.origin,
                "spec": {**spec, "destination_passing_style": False},
                "sources": [{"path": "main.py", "content": case.candidate + calls}],
            }
        )
        settings = BenchmarkConfig().resolve_eval_config(definition_of)
        evaluator = resolve_evaluator(definition_of)
        baseline = evaluator.build_baseline(definition_of, workload, settings, DEVICE)
        built = BuilderRegistry.get_instance().build(definition_of, solution)
        clones = [[v.clone() if torch.is_tensor(v) else v for v in trial] for trial in baseline.inputs]
        found = evaluator.evaluate(
            definition=definition_of,
            sol_runnable=built,
            inputs=clones,
            ref_outputs=baseline.outputs,
            ref_mean_latency_ms=baseline.mean_latency_ms,
            cfg=settings,
            log_path="log",
            device=DEVICE,
        )
        ratio = found.performance.speedup_factor if found.performance else None
        return Said(found.status.value == "PASSED", ratio, found.status.value)

    return judge


def definition(case: Case, inputs: Sequence[Any], output: Any) -> dict[str, Any]:
    """A KernelBench problem as a Definition of flashinfer-bench.

    Args:
        inputs, output: tensors of the problem, for their shapes and types.
    """
    axes: dict[str, Any] = {}

    def tensor(value: Any) -> dict[str, Any]:
        for size in value.shape:
            axes[f"n{size}"] = {"type": "const", "value": size}
        return {
            "shape": [f"n{size}" for size in value.shape],
            "dtype": str(value.dtype).removeprefix("torch."),
        }

    names = [f"in{index}" for index in range(len(inputs))]
    words = ", ".join(names)
    reference = (
        f"{case.problem}\n\nmade = Model().to({DEVICE!r})\n\n\ndef run({words}):\n    return made({words})\n"
    )
    return {
        "name": case.name,
        "op_type": "module",
        "inputs": {name: tensor(value) for name, value in zip(names, inputs, strict=True)},
        "outputs": {"out": tensor(output)},
        "axes": axes,
        "reference": reference,
    }


def robust_kbench(folder: Path) -> Callable[[Case], Said]:
    """`check_forward_correctness`, and both programs timed as its KernelBench mode does.

    robust-kbench itself takes CUDA files alone; here its functions get the candidate's module.
    """
    _bare("robust_kbench", folder / "robust-kbench" / "robust_kbench")
    import torch
    from robust_kbench.sandbox.correct_forward_fn import (  # type: ignore[import-not-found]
        check_forward_correctness,
    )
    from robust_kbench.sandbox.eval_forward_fn import (  # type: ignore[import-not-found]
        time_function_kernel_bench,
    )

    class Called(torch.nn.Module):
        def forward(self, *inputs: Any, fn: Any) -> Any:
            return fn(*inputs)

    def judge(case: Case) -> Said:
        names, candidate = _made(case)
        model = names["Model"]().to(DEVICE)
        found = check_forward_correctness(
            Called,
            model,
            candidate,
            names["get_inputs"],
            {},
            {},
            num_correct_trials=TRIALS,
            rtol=ROBUST_TOLERANCE,
            atol=ROBUST_TOLERANCE,
        )
        if not found.correct:
            return Said(False, None, f"{found.num_correct} of {TRIALS} correct")
        inputs = [tensor.to(DEVICE) for tensor in names["get_inputs"]()]
        with torch.no_grad():
            theirs, mine = (
                float(time_function_kernel_bench(each, *inputs, n_iter=CALLS).mean_time)
                for each in (model, candidate)
            )
        return Said(True, theirs / mine if mine > 0 else None, "correct")

    return judge


#: name -> makes the judge, in the process that judges
HARNESSES: dict[str, Callable[[Path], Callable[[Case], Said]]] = {
    "KernelBench": kernelbench,
    "KernelBench-static": kernelbench_static,
    "flashinfer-bench": flashinfer_bench,
    "robust-kbench": robust_kbench,
}
#: the folder of a checkout -> its address
SOURCES = {
    "KernelBench": "https://github.com/ScalingIntelligence/KernelBench",
    "flashinfer-bench": "https://github.com/flashinfer-ai/flashinfer-bench",
    "robust-kbench": "https://github.com/SakanaAI/robust-kbench",
}
