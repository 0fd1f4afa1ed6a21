"""cuBLAS and cuBLASLt through ctypes: the very libraries that torch loaded.

Matrices are row-major here. cuBLAS is column-major, so C = A * B is asked for as C^T = B^T * A^T: cuBLAS's
first operand is our B. A layout's first letter says how B lies (n: k x n, t: n x k), the second how A does
(n: m x k, t: k x m). FP16 in and out (of cuBLASLt also BF16), FP32 compute and scale type, alpha 1, beta 0.
(cuBLAS documentation, "cublasGemmEx", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic".)
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterable
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sassafras.core import DeviceError, SassafrasError, ToolMissing

#: cudaDataType, cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t, cublasMath_t
_R_16F, _R_32F, _COMPUTE_32F = 2, 0, 68
_KINDS = {"fp16": _R_16F, "bf16": 14}
_OP_N, _OP_T, GEMM_DEFAULT = 0, 1, -1
#: of cublasGemmEx: it times its algorithms at a first call, and keeps the fastest in the handle
GEMM_AUTOTUNE = 999
_MATH_DEFAULT, _MATH_NO_REDUCED_PRECISION = 0, 16
_DESC_TRANSA, _DESC_TRANSB, _PREF_MAX_WORKSPACE, _PREF_REDUCTIONS = 3, 4, 1, 3
#: cublasStatus_t
_STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}
#: workspace sizes whose heuristic lists are united (bytes)
WORKSPACES = (0, 4 << 20, 32 << 20, 128 << 20)
#: the size that NVIDIA recommends for Hopper, used for cublasGemmEx and the plain heuristic
RECOMMENDED_WORKSPACE = 32 << 20
#: what is given to an algorithm that asks for no more than this, or nothing is (`both_ways`)
ROOM = 256


class Extents(Protocol):
    """A problem: C is m x n, the sums have k terms."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...


class _Algo(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _HeuristicResult(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class CublasError(DeviceError):
    """A cuBLAS call returned an error status."""

    def __init__(self, call: str, status: int) -> None:
        self.status = status
        super().__init__(f"{call}: CUBLAS_STATUS_{_STATUS.get(status, 'unknown')} ({status})")


@dataclass(frozen=True, slots=True)
class LtAlgorithm:
    """An algorithm that cuBLASLt proposed; the blob is valid for one library version only.

    Attributes:
        layout: ``nn``, ``tn``, ``nt`` or ``tt``.
        blob: the 64 opaque bytes.
        workspace: bytes that a call is given: what the algorithm asks for, but see `both_ways`.
    """

    layout: str
    blob: bytes
    workspace: int

    def to_json(self) -> dict[str, Any]:
        """For a result file."""
        return {"layout": self.layout, "blob": self.blob.hex(), "workspace": self.workspace}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LtAlgorithm:
        """The reverse of `to_json`. Raises SassafrasError when it is none: a table that was damaged."""
        try:
            found = cls(str(value["layout"]), bytes.fromhex(value["blob"]), int(value["workspace"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SassafrasError(f"not a cuBLASLt algorithm: {error!r}", where=str(value)[:80]) from error
        if not re.fullmatch("[nt][nt]", found.layout) or len(found.blob) != 64 or found.workspace < 0:
            raise SassafrasError("not a cuBLASLt algorithm", where=str(value)[:80])
        return found


def both_ways(found: Iterable[LtAlgorithm]) -> list[LtAlgorithm]:
    """Each algorithm once; one that asks for nothing, or for a few bytes, with no workspace and with `ROOM`.

    Seen in captured graphs (cuBLASLt 13.1, H200, 2026-11-22): without workspace the very same 64 bytes run
    a kernel with ``ssched`` in its name; with 4 bytes or more its twin without, behind a memset of them.
    Some 2 us a call lie between, for the one or the other: a candidate is an algorithm and what it is given.
    """
    ways: dict[tuple[bytes, int], LtAlgorithm] = {}
    for algorithm in found:
        for given in (0, ROOM) if algorithm.workspace <= ROOM else (algorithm.workspace,):
            ways.setdefault((algorithm.blob, given), replace(algorithm, workspace=given))
    return list(ways.values())


def find_library(stem: str) -> ctypes.CDLL:
    """The copy that this process has loaded (torch's), else one of nvidia's wheels or of the path."""
    maps = Path("/proc/self/maps")
    if maps.exists() and (found := re.search(rf"(/\S*/{stem}\.so[.\d]*)$", maps.read_text(), re.MULTILINE)):
        return ctypes.CDLL(found[1])
    spec = importlib.util.find_spec("nvidia")
    places = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    files = [str(f) for p in places for f in sorted(p.glob(f"*/lib/{stem}.so.*"), reverse=True)]
    for name in [*files, f"{stem}.so.13", f"{stem}.so.12", f"{stem}.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ToolMissing(f"{stem} was not found", hint="install a CUDA build of torch")


def _declare(library: ctypes.CDLL, name: str, *types: Any) -> Any:
    function = getattr(library, name)
    function.argtypes = types
    function.restype = c_int

    def checked(*args: Any) -> None:
        if status := function(*args):
            raise CublasError(name, status)

    return checked


class Cublas:
    """cublasGemmEx on one stream.

    Args:
        stream: CUstream handle as an integer.
        workspace, workspace_bytes: device memory, set before any capture.
        reduced_precision: allow FP16 split-k reductions (cuBLAS's default); False for the accuracy reference.
    """

    def __init__(
        self, stream: int, workspace: int, workspace_bytes: int, *, reduced_precision: bool = True
    ) -> None:
        library = find_library("libcublas")
        pointer, number = c_void_p, c_int
        self._handle = c_void_p()
        _declare(library, "cublasCreate_v2", POINTER(c_void_p))(byref(self._handle))
        _declare(library, "cublasSetStream_v2", pointer, pointer)(self._handle, stream)
        # cublasSetStream resets the workspace, so this comes after it
        _declare(library, "cublasSetWorkspace_v2", pointer, pointer, c_size_t)(
            self._handle, workspace, workspace_bytes
        )
        mode = _MATH_DEFAULT if reduced_precision else _MATH_NO_REDUCED_PRECISION
        _declare(library, "cublasSetMathMode", pointer, number)(self._handle, mode)
        # handle, transposes and sizes, alpha, then B and A with type and stride, beta, C alike, two kinds
        p, i = pointer, number
        self._gemm = _declare(library, "cublasGemmEx", p, *[i] * 5, p, p, i, i, p, i, i, p, p, i, i, i, i)
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def enqueue(
        self,
        shape: Extents,
        layout: str,
        a: int,
        b: int,
        c: int,
        dtype: str = "fp16",
        algorithm: int = GEMM_DEFAULT,
    ) -> None:
        """C = A * B by addresses, all of one type (``fp16``, ``bf16``). Raises CublasError."""
        kind = _KINDS[dtype]
        b_t, a_t = (letter == "t" for letter in layout)
        self._gemm(
            self._handle,
            _OP_T if b_t else _OP_N,
            _OP_T if a_t else _OP_N,
            shape.n,
            shape.m,
            shape.k,
            byref(self._one),
            b,
            kind,
            shape.k if b_t else shape.n,
            a,
            kind,
            shape.m if a_t else shape.k,
            byref(self._zero),
            c,
            kind,
            shape.n,
            _COMPUTE_32F,
            algorithm,
        )


class LtProblem:
    """Descriptors of one shape and layout; keep it as long as it is used."""

    def __init__(self, lt: CublasLt, shape: Extents, layout: str, dtype: str = "fp16") -> None:
        self.shape, self.layout = shape, layout
        self._lt, self._kind = lt, _KINDS[dtype]
        b_t, a_t = (letter == "t" for letter in layout)
        self.operation = c_void_p()
        lt.desc_create(byref(self.operation), _COMPUTE_32F, _R_32F)
        for attribute, transposed in ((_DESC_TRANSA, b_t), (_DESC_TRANSB, a_t)):
            lt.desc_set(self.operation, attribute, byref(c_int(_OP_T if transposed else _OP_N)), 4)
        m, n, k = shape.m, shape.n, shape.k
        self.first = self._matrix(*((k, n, k) if b_t else (n, k, n)))
        self.second = self._matrix(*((m, k, m) if a_t else (k, m, k)))
        self.out = self._matrix(n, m, n)
        #: of the operation and of its matrices, C as input and as output
        self.descriptors = (self.operation, self.first, self.second, self.out, self.out)

    def _matrix(self, rows: int, columns: int, leading: int) -> c_void_p:
        made = c_void_p()
        self._lt.layout_create(byref(made), self._kind, rows, columns, leading)
        return made

    def close(self) -> None:
        """Free the descriptors."""
        for made in (self.first, self.second, self.out):
            self._lt.layout_destroy(made)
        self._lt.desc_destroy(self.operation)


class CublasLt:
    """cublasLtMatmul with chosen algorithms on one stream."""

    def __init__(self, stream: int, workspace: int, workspace_bytes: int) -> None:
        library = find_library("libcublasLt")
        self._stream, self._workspace, self.workspace_bytes = stream, workspace, workspace_bytes
        p = c_void_p
        version = library.cublasLtGetVersion
        version.restype, version.argtypes = c_size_t, ()
        self.version = int(version())
        self.desc_create = _declare(library, "cublasLtMatmulDescCreate", POINTER(p), c_int, c_int)
        self.desc_set = _declare(library, "cublasLtMatmulDescSetAttribute", p, c_int, p, c_size_t)
        self.desc_destroy = _declare(library, "cublasLtMatmulDescDestroy", p)
        self.layout_create = _declare(
            library, "cublasLtMatrixLayoutCreate", POINTER(p), c_int, c_uint64, c_uint64, c_int64
        )
        self.layout_destroy = _declare(library, "cublasLtMatrixLayoutDestroy", p)
        self._pref_create = _declare(library, "cublasLtMatmulPreferenceCreate", POINTER(p))
        self._pref_set = _declare(library, "cublasLtMatmulPreferenceSetAttribute", p, c_int, p, c_size_t)
        self._pref_destroy = _declare(library, "cublasLtMatmulPreferenceDestroy", p)
        tried = POINTER(_HeuristicResult)
        self._heuristic = _declare(
            library, "cublasLtMatmulAlgoGetHeuristic", *[p] * 7, c_int, tried, POINTER(c_int)
        )
        self._check = _declare(library, "cublasLtMatmulAlgoCheck", *[p] * 6, POINTER(_Algo), tried)
        self._matmul = _declare(library, "cublasLtMatmul", *[p] * 12, POINTER(_Algo), p, c_size_t, p)
        self._handle = c_void_p()
        _declare(library, "cublasLtCreate", POINTER(p))(byref(self._handle))
        self._one, self._zero = c_float(1.0), c_float(0.0)

    @property
    def handle(self) -> int:
        """The library's handle, as a number."""
        return int(self._handle.value or 0)

    def problem(self, shape: Extents, layout: str, dtype: str = "fp16") -> LtProblem:
        """Descriptors for a shape of ``fp16`` or ``bf16`` matrices. Raises CublasError."""
        return LtProblem(self, shape, layout, dtype)

    def heuristics(
        self, problem: LtProblem, workspace: int, count: int = 64, *, split: bool = True
    ) -> list[LtAlgorithm]:
        """cuBLASLt's candidates, its favourite first; empty when it has none. Raises CublasError.

        Args:
            workspace: bytes that a candidate may ask for.
            split: also those that split k and reduce (the mask of reduction schemes).
        """
        preference = c_void_p()
        self._pref_create(byref(preference))
        try:
            limit = c_uint64(workspace)
            self._pref_set(preference, _PREF_MAX_WORKSPACE, byref(limit), 8)
            if not split:
                self._pref_set(preference, _PREF_REDUCTIONS, byref(c_uint32(0)), 4)
            results, found = (_HeuristicResult * count)(), c_int()
            try:
                self._heuristic(self._handle, *problem.descriptors, preference, count, results, byref(found))
            except CublasError as error:
                if error.status == 15:  # NOT_SUPPORTED: no algorithm within this workspace
                    return []
                raise
            return [
                LtAlgorithm(problem.layout, bytes(r.algo), int(r.workspace))
                for r in results[: found.value]
                if r.state == 0
            ]
        finally:
            self._pref_destroy(preference)

    def candidates(self, problem: LtProblem) -> list[LtAlgorithm]:
        """The union of the lists over `WORKSPACES`, `both_ways`, in order of first appearance."""
        fitting = [workspace for workspace in WORKSPACES if workspace <= self.workspace_bytes]
        return both_ways(a for workspace in fitting for a in self.heuristics(problem, workspace))

    def check(self, problem: LtProblem, algorithm: LtAlgorithm) -> int:
        """Bytes of workspace that it asks for. Raises CublasError when this library will not run the
        algorithm for this problem."""
        algo, result = _algo(algorithm), _HeuristicResult()
        self._check(self._handle, *problem.descriptors, byref(algo), byref(result))
        # not what the algorithm is given: who asks for 4 bytes runs without them, too (`both_ways`)
        if result.workspace > self.workspace_bytes:
            raise CublasError("cublasLtMatmulAlgoCheck (workspace)", 7)
        return int(result.workspace)

    def bind(self, problem: LtProblem, algorithm: LtAlgorithm, a: int, b: int, c: int) -> Any:
        """A function of no arguments that enqueues one call, given the workspace that the algorithm names.

        Raises:
            CublasError: here, it wants more than there is; from the function, cuBLASLt would not run it.
        """
        if algorithm.workspace > self.workspace_bytes:
            raise CublasError(f"cublasLtMatmul with {algorithm.workspace} bytes of workspace", 7)
        algo = _algo(algorithm)
        workspace = self._workspace if algorithm.workspace else None

        def enqueue() -> None:
            self._matmul(
                self._handle,
                problem.operation,
                byref(self._one),
                b,
                problem.first,
                a,
                problem.second,
                byref(self._zero),
                c,
                problem.out,
                c,
                problem.out,
                byref(algo),
                workspace,
                algorithm.workspace,
                self._stream,
            )

        return enqueue


def _algo(algorithm: LtAlgorithm) -> _Algo:
    return _Algo.from_buffer_copy(algorithm.blob)
