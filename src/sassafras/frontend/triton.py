"""Triton kernels as workloads, compiled for a named architecture with no GPU and no torch.

The compiled variant is the one that the user's call would select: argument types and specialisation
(16-byte pointer alignment, divisibility of integers by 16, integers equal to 1, 32 or 64 bits) come from
Triton's own argument binder, fed with stand-ins for the tensors, not from a copy of its rules.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sassafras.core import (
    Buffer,
    Case,
    CompileError,
    Kernel,
    Tolerance,
    ToolMissing,
    UnsupportedArch,
    Workload,
)
from sassafras.core import WorkloadError as _WorkloadError
from sassafras.core.errors import reason
from sassafras.core.workload import Reference

from ._globals import changed
from ._ptxas import assemble, ptxas_version
from .captured.values import plain

#: architecture names that users may write -> compute capability that Triton is asked for.
#: Triton appends the "a" from 9.0 on by itself (seen in 3.6.0: `sm_arch_from_capability`).
ARCHES: Mapping[str, int] = {
    "sm_80": 80,
    "sm_86": 86,
    "sm_89": 89,
    "sm_90": 90,
    "sm_90a": 90,
    "sm_100": 100,
    "sm_100a": 100,
    "sm_120": 120,
    "sm_120a": 120,
}

#: launch options of Triton that a plain cuLaunchKernel cannot express
_REFUSED_OPTIONS = ("launch_cooperative_grid", "launch_pdl")


class _Pointer:
    """What Triton's binder needs to know of a tensor: its data type and its address modulo 16."""

    def __init__(self, buffer: Buffer) -> None:
        self.dtype = {"i1": "bool"}.get(buffer.dtype, buffer.dtype)
        self.shape = buffer.shape

    def data_ptr(self) -> int:
        """An aligned address: torch and the evaluator allocate at multiples of at least 256 bytes."""
        return 0

    def numel(self) -> int:
        """Elements, for user heuristics that ask."""
        return math.prod(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """Row-major strides, for user heuristics that ask."""
        strides = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(max(1, len(self.shape))))
        return strides if dim is None else strides[dim]


@dataclasses.dataclass(frozen=True)
class TritonBuilder:
    """Compiles one `@triton.jit` function for a case and an architecture.

    Attributes:
        kernel: the jitted function, unwrapped from autotune and heuristics decorators.
        heuristics: constants computed from the arguments, as `@triton.heuristics` does: name -> function.
        label: the workload's name, for error messages.
    """

    kernel: Any
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    label: str

    def __call__(self, case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        """Compile the variant that `case` selects.

        Args:
            case: arguments, constants and options.
            arch: one of `ARCHES`; ``sm_90`` and ``sm_90a`` are the same to Triton, which emits sm_90a.
            ptxas: another ptxas to assemble the same PTX with (same flags); None: Triton's own.

        Raises:
            UnsupportedArch: not an architecture of `ARCHES`.
            WorkloadError: arguments do not fit the kernel, or need a launch that we cannot make.
            CompileError: Triton or ptxas refused the source.
        """
        import triton

        where = self._where(case)
        (signature, constexprs, attrs, options, parameters), compiled = self._compiled(case, arch)
        metadata, ptx, cubin = compiled.metadata, compiled.asm["ptx"], compiled.asm["cubin"]
        actual = _ptx_target(ptx, where)
        tool = bundled_ptxas(ARCHES[arch])
        if ptxas is not None:
            tool = str(ptxas)
            cubin = assemble(ptx, actual, tool, flags=_ptxas_flags(options), where=where)
        if getattr(metadata, "profile_scratch_size", 0):
            raise _WorkloadError("the kernel uses Triton's profiling scratch memory", where=where)
        names = [name for name, _ in parameters]
        return Kernel(
            cubin=cubin,
            name=metadata.name,
            arch=actual,
            threads=32 * metadata.num_warps,
            shared_bytes=metadata.shared,
            cluster=(getattr(metadata, "num_ctas", 1), 1, 1),
            hidden_args=_ptx_parameters(ptx, metadata.name, where) - len(names),
            scratch_bytes=getattr(metadata, "global_scratch_size", 0) or 0,
            parameters=tuple(parameters),
            meta={
                "compiler": "triton",
                "triton": str(triton.__version__),
                "ptxas": ptxas_version(tool),
                "signature": {k: v for k, v in signature.items() if v != "constexpr"},
                "aligned_or_divisible_by_16": [
                    self.kernel.arg_names[path[0]] for path, attr in attrs.items() if attr and len(path) == 1
                ],
                "constants": {self.kernel.arg_names[path[0]]: plain(v) for path, v in constexprs.items()},
                "options": {k: plain(v) for k, v in sorted(case.options.items())},
                "num_warps": metadata.num_warps,
                "num_stages": getattr(metadata, "num_stages", None),
                "source_hash": self.kernel.cache_key,
                "ptx_hash": hashlib.sha256(ptx.encode()).hexdigest(),
            },
        )

    def ptx(self, case: Case, arch: str) -> str:
        """The PTX of the variant that `case` selects. Raises as `__call__` does."""
        return str(self._compiled(case, arch)[1].asm["ptx"])

    def ttir(self, case: Case, arch: str) -> str:
        """Its first intermediate form. Raises as `__call__` does."""
        return str(self._compiled(case, arch)[1].asm["ttir"])

    def _compiled(self, case: Case, arch: str) -> tuple[Any, Any]:
        """What `_bind` returns, and Triton's compiled kernel."""
        if arch not in ARCHES:
            raise UnsupportedArch(f"unknown architecture {arch!r}", hint="one of " + ", ".join(ARCHES))
        where, target = self._where(case), _target(ARCHES[arch])
        bound = self._bind(case, target, where)
        if problem := changed(self.kernel):
            hint = "define the kernel again, or make it a tl.constexpr parameter"
            raise _WorkloadError(problem, where=where, hint=hint)
        return bound, _compile(self.kernel, *bound[:4], target, where)

    def _where(self, case: Case) -> str:
        return f"{self.label}, case {case.name}"

    def ptxas_flags(self, case: Case, arch: str) -> tuple[str, ...]:
        """The flags that Triton gives its own ptxas for this case."""
        return tuple(_ptxas_flags(self._bind(case, _target(ARCHES[arch]), self._where(case))[3]))

    def own_ptxas(self, arch: str) -> str:
        """The program that Triton assembles with."""
        return bundled_ptxas(ARCHES[arch])

    def _bind(
        self, case: Case, target: Any, where: str
    ) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any], Any, list[tuple[str, str]]]:
        """Signature, constants, attributes, options and passed parameters, as Triton's JIT derives them."""
        from triton import knobs
        from triton.compiler.compiler import make_backend
        from triton.runtime.jit import create_function_from_signature

        fn = self.kernel
        if not hasattr(fn, "_pack_args"):
            raise _WorkloadError(
                "the kernel was decorated under TRITON_INTERPRET=1 and cannot be compiled",
                where=where,
                hint="unset TRITON_INTERPRET",
            )
        backend = make_backend(target)
        values = _values(case, self.heuristics, where)
        kwargs: dict[str, Any] = dict(case.options)
        for refused in _REFUSED_OPTIONS:
            if kwargs.get(refused):
                raise _WorkloadError(f"option {refused!r} needs a launch that is not supported", where=where)
        kwargs.setdefault("debug", fn.debug or knobs.runtime.debug)
        kwargs["instrumentation_mode"] = knobs.compilation.instrumentation_mode
        binder = create_function_from_signature(fn.signature, fn.params, backend)
        try:
            bound, specialization, rest = binder(**values, **kwargs)
            options, signature, constexprs, attrs = fn._pack_args(
                backend, dict(rest), bound, specialization, None
            )
        except (TypeError, KeyError, ValueError, AssertionError) as error:
            raise _WorkloadError(f"arguments do not fit the kernel: {error}", where=where) from error
        parameters: list[tuple[str, str]] = []
        for name, kind in signature.items():
            if isinstance(kind, tuple) or str(kind).startswith(("tensordesc", "nvTmaDesc")):
                raise _WorkloadError(
                    f"argument {name!r} is a tuple or a tensor descriptor, which is not supported",
                    where=where,
                    hint="pass pointers and make descriptors in the kernel, or use tl.load and tl.store",
                )
            if kind != "constexpr":
                parameters.append((name, str(kind)))
        return signature, constexprs, attrs, options, parameters


def workload(
    kernel: Any,
    cases: Sequence[Case],
    *,
    reference: Reference | None = None,
    tolerance: Tolerance | None = None,
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Workload:
    """A workload from a `@triton.jit` function.

    Args:
        kernel: the decorated function. `@triton.heuristics` is honoured. Of `@triton.autotune` each case
            names the configuration it wants in `constants` and `options`; one that names none becomes a case
            for each configuration, ``512x4096-BLOCK256-w4``.
        cases: shapes; the first is the headline. `Case.args` hold the run-time arguments (buffers, ints,
            floats), `Case.constants` the `tl.constexpr` ones (and pointers that are None), `Case.options`
            num_warps, num_stages, maxnreg and so on. `Case.grid` is the grid of the Triton launch, or
            a function of the arguments and constants, as ``kernel[grid]`` takes it; with
            num_ctas > 1 the returned workload's cases carry blocks, num_ctas times as many along x.
        reference: expected outputs in higher precision, by argument name.
        tolerance: how far an output may be from the reference.
        name: defaults to the function's name.
        meta: provenance to keep with the workload, JSON-able.

    Raises:
        WorkloadError: `kernel` is no Triton function, or a case names unknown or lacks needed arguments.
        ToolMissing: triton is not installed.
    """
    fn, heuristics, configurations = _unwrap(kernel)
    label = name or fn.__name__
    known = list(fn.arg_names)
    every = [one for case in cases for one in _configured(case, configurations)]
    fitted = tuple(_fit(case, fn, known, heuristics, label) for case in every)
    return Workload(
        name=label,
        cases=fitted,
        build=TritonBuilder(fn, heuristics, label),
        reference=reference,
        tolerance=tolerance or Tolerance(),
        meta={"frontend": "triton", **(meta or {})},
    )


def _unwrap(kernel: Any) -> tuple[Any, dict[str, Callable[[Mapping[str, Any]], Any]], list[Any]]:
    """The jitted function inside autotune and heuristics decorators, the heuristics' functions, and the
    autotuner's configurations."""
    try:
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        raise ToolMissing("triton is not installed", hint="pip install triton") from error
    heuristics: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    configurations: list[Any] = []
    fn = kernel
    while isinstance(fn, Autotuner | Heuristics):
        configurations += getattr(fn, "configs", [])
        if isinstance(fn, Heuristics):
            heuristics.update(fn.values)
        fn = fn.fn
    if type(fn).__name__ == "GluonJITFunction":
        raise _WorkloadError(
            "a Gluon kernel cannot be described in a workload file",
            where=fn.__name__,
            hint="record a call of it: sassafras.workload_of(lambda: kernel[grid](...))",
        )
    if not isinstance(fn, JITFunction | InterpretedFunction):
        raise _WorkloadError(
            f"expected a @triton.jit function, got {type(kernel).__name__}",
            where=getattr(kernel, "__name__", None),
            hint="decorate the kernel with @triton.jit",
        )
    return fn, heuristics, configurations


def _configured(case: Case, configurations: Sequence[Any]) -> list[Case]:
    """The case itself, or where it leaves the autotuner's constants open, one for each configuration."""
    named = {name for one in configurations for name in one.kwargs}
    if not configurations or case.options or named & {*case.args, *case.constants}:
        return [case]
    made: dict[str, Case] = {}
    for number, one in enumerate(configurations):
        options = {k: v for k, v in one.all_kwargs().items() if k not in one.kwargs and v is not None}
        short = [f"{k}{v}" for k, v in one.kwargs.items()] + [f"w{one.num_warps}", f"s{one.num_stages}"]
        name = "-".join([case.name, *short])
        name = f"{name}-{number}" if name in made else name
        constants = {**case.constants, **one.kwargs}
        made[name] = dataclasses.replace(case, name=name, constants=constants, options=options)
    return list(made.values())


def _fit(case: Case, fn: Any, known: list[str], heuristics: Mapping[str, Any], label: str) -> Case:
    """The case with its arguments in the kernel's order and its grid in blocks."""
    where = f"{label}, case {case.name}"
    given = {**case.args, **case.constants}
    if unknown := [n for n in given if n not in known]:
        raise _WorkloadError(
            f"{fn.__name__} has no parameter {unknown[0]!r}", where=where, hint="it has " + ", ".join(known)
        )
    if both := sorted(set(case.args) & set(case.constants)):
        raise _WorkloadError(f"{both[0]!r} is given both in args and in constants", where=where)
    described = getattr(fn, "params", ())  # of a jitted function, not of an interpreted one
    defaults = {p.name for p in described if p.has_default}
    if missing := [n for n in known if n not in {*given, *heuristics, *defaults}]:
        raise _WorkloadError(f"no value for parameter {missing[0]!r}", where=where, hint="add it to the case")
    for p in described:
        if p.is_constexpr and p.name in case.args:
            raise _WorkloadError(f"{p.name!r} is a tl.constexpr: give it in constants", where=where)
        if not p.is_constexpr and p.name in case.constants and case.constants[p.name] is not None:
            raise _WorkloadError(f"{p.name!r} is no tl.constexpr: give it in args", where=where)
    if callable(case.grid):
        case = case.with_grid({**_values(case, heuristics, where), **case.options})
    for name in {"num_warps", "num_stages", "num_ctas", "maxnreg"} & set(case.options):
        if not isinstance(number := case.options[name], int) or number < 0:
            raise _WorkloadError(f"{name} is a whole number, not {number!r}", where=where)
    ctas = int(case.options.get("num_ctas", 1))
    x, y, z = case.grid
    return dataclasses.replace(
        case, args={n: case.args[n] for n in known if n in case.args}, grid=(x * ctas, y, z)
    )


def _values(case: Case, heuristics: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parameters as Triton's binder and heuristics see them."""
    values = {n: _Pointer(a) if isinstance(a, Buffer) else a for n, a in case.args.items()}
    values |= case.constants
    for name, heuristic in heuristics.items():
        try:
            values[name] = heuristic({**values, **case.options})
        except Exception as error:
            raise _WorkloadError(f"heuristic {name!r} failed: {error!r}", where=where) from error
    return values


def leave_torch_out() -> None:
    """Keep Triton from importing torch in this process, which takes over a second: 3.6 does so when it first
    looks at an argument. For processes that launch nothing themselves; torch can be imported later."""
    if "torch" not in sys.modules and importlib.util.find_spec("triton"):
        try:
            from triton.runtime.jit import mangle_type
        except ImportError:  # another version: torch is imported as ever
            return
        sys.modules["torch"] = None  # type: ignore[assignment]  # (an import of it fails)
        try:
            mangle_type(1)
        except Exception:  # Triton 3.8, which imports it never, takes None for it
            return
        finally:
            del sys.modules["torch"]


def _target(capability: int) -> Any:
    try:
        from triton.backends.compiler import GPUTarget
    except ImportError as error:
        raise ToolMissing("triton is not installed", hint="pip install triton") from error
    return GPUTarget("cuda", capability, 32)


def _compile(
    fn: Any, signature: Any, constexprs: Any, attrs: Any, options: Any, target: Any, where: str
) -> Any:
    import triton

    source = triton.compiler.ASTSource(fn=fn, signature=signature, constexprs=constexprs, attrs=attrs)
    try:
        compiled = triton.compile(source, target=target, options=dict(options.__dict__))
    except OSError as error:
        cache = triton.knobs.cache.dir
        raise CompileError(
            f"Triton's cache cannot be written: {reason(error)}",
            where=str(cache),
            hint="TRITON_CACHE_DIR names its folder",
        ) from error
    except Exception as error:  # Triton raises many types, some of them RuntimeError from MLIR
        text = str(error).strip() or repr(error)
        file = fn.fn.__code__.co_filename
        if not file.isascii() and ("non-ASCII" in text or "set_loc()" in text):
            raise CompileError(
                f"ptxas does not read the path of the kernel's source: {file!a} is not ASCII",
                where=where,
                hint="rename the file or its folder, or set TRITON_DISABLE_LINE_INFO=1",
            ) from error
        lines = [line.strip() for line in text.splitlines()]
        if "^" in lines[:-1]:  # the place, the source down to the line at fault, the fault
            mark = len(lines) - 1 - lines[::-1].index("^")
            text = f"{lines[0]} {lines[mark - 1]}: {' '.join(lines[mark + 1 :])}"
        hint = "make tensor descriptors in the kernel" if "has no attribute 'load'" in text else None
        text = " ".join(text.split())[:600]
        raise CompileError(f"Triton refused the kernel: {text}", where=where, hint=hint) from error
    if "tt.print" in compiled.asm["ttir"]:
        raise _WorkloadError(
            "the kernel prints (tl.device_print): its time would be that of printing",
            where=where,
            hint="remove it for the search",
        )
    return compiled


def _ptxas_flags(options: Any) -> list[str]:
    """The flags of Triton's own ptxas call (3.6.0, `make_cubin`), so that only the program differs."""
    from triton import knobs

    slow, no_lines = knobs.nvidia.disable_ptxas_opt, knobs.compilation.disable_line_info
    flags = ["-lineinfo", "-suppress-debug-info"] if no_lines else ["-g" if slow else "-lineinfo"]
    flags += [] if options.enable_fp_fusion else ["--fmad=false"]
    extra = getattr(options, "ptx_options", None)
    return flags + (["--opt-level", "0"] if slow else []) + (extra.split(" ") if extra else [])


def bundled_ptxas(capability: int) -> str:
    """The ptxas that Triton uses for this compute capability (times ten)."""
    from triton.backends.nvidia.compiler import get_ptxas

    return str(Path(get_ptxas(capability).path))


def _ptx_target(ptx: str, where: str) -> str:
    """The architecture that the PTX names."""
    found = re.search(r"^\.target\s+(sm_\d+[a-z]?)", ptx, re.MULTILINE)
    if not found:
        raise CompileError("the PTX names no .target", where=where)
    return found[1]


def _ptx_parameters(ptx: str, name: str, where: str) -> int:
    """How many parameters the entry takes, Triton's hidden scratch pointers included."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)", ptx, re.DOTALL)
    if not found:
        raise CompileError(f"the PTX has no entry {name!r}", where=where)
    return found[1].count(".param")
