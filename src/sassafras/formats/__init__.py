"""Problems and solutions in the formats of public benchmarks, as workloads of Python functions.

| module | what it is |
|---|---|
| `problem` | `Problem`: a workload whose baseline and candidates are Python functions |
| `kernelbench` | `Model`, `get_inputs`, `get_init_inputs`; solutions are classes `ModelNew` |
| `flashinfer` | Definition, Workload and Solution of flashinfer-bench; traces |

A problem is trusted as a workload file is: reading it executes its reference in this process. A solution is
text until a confined process runs it (`sassafras.evaluate.host`). Neither benchmark's package is needed.
"""

from __future__ import annotations

from .load import load, read_solution
from .problem import Problem

__all__ = ["Problem", "load", "read_solution"]
