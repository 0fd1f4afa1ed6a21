"""cuBLASLt as a member of the portfolio: a tuned algorithm, called by the compiled launcher."""

from __future__ import annotations

import ctypes
from typing import Any

from sassafras.cuda.cublas import CublasError, CublasLt, LtAlgorithm, LtProblem, find_library

from ..problem.shape import Shape
from .driver import Driver
from .problem import DTYPES, Problem


class LtMember:
    """A handle a device, and descriptors for as long as plans use them. Raises ToolMissing (no library)."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        library = find_library("libcublasLt")
        version = library.cublasLtGetVersion
        version.restype, version.argtypes = ctypes.c_size_t, ()
        #: cublasLtGetVersion
        self.version = int(version())
        #: of cublasLtMatmul
        self.matmul_address = int(ctypes.cast(library.cublasLtMatmul, ctypes.c_void_p).value or 0)
        self._handles: dict[int, CublasLt] = {}
        self._problems: dict[tuple[int, Shape, str, str], LtProblem] = {}

    def add(self, launcher: Any, problem: Problem, tuned: dict[str, Any]) -> bool:
        """Put the plan into the launcher; False when launcher or library will not have it."""
        algorithm = LtAlgorithm.from_json(tuned)
        if not hasattr(launcher, "add_lt") or algorithm.layout != problem.layout:
            return False
        ordinal, shape = problem.device, problem.shape
        context = self._driver.context(ordinal)
        with self._driver.current(context):
            if ordinal not in self._handles:
                # stream and workspace are the launcher's business, call by call
                self._handles[ordinal] = CublasLt(0, 0, 1 << 40)
            lt = self._handles[ordinal]
            where = (ordinal, shape, problem.layout, DTYPES[problem.dtype])
            if where not in self._problems:
                self._problems[where] = lt.problem(*where[1:])
            made = self._problems[where]
            try:
                lt.check(made, algorithm)
            except CublasError:
                return False
        handles = (made.operation, made.first, made.second, made.out)
        launcher.add_lt(
            problem,
            context,
            lt.handle,
            *(int(h.value or 0) for h in handles),
            algorithm.blob,
            algorithm.workspace,
        )
        return True
