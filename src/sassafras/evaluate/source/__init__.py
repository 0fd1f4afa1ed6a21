"""Source text as a candidate: scanned, built in confinement, scanned again, and judged like any other.

```python
from sassafras.evaluate import Source, SourceEvaluator

evaluator = SourceEvaluator(device, workload, case, baseline)
outcome = evaluator.evaluate(Source("cuda", text, entry="softmax", threads=256))
outcome.verdict  # correct, compile_error, cheated, timed_out, out_of_resources, wrong_result, ...
outcome.detail  # the compiler's message, the refused symbol, the first differing element
```

No code of a candidate ever runs in this process. CUDA C++ is only compiled (it has no host side that could
run); Triton source is Python, and is executed to PTX by a confined process that cannot start another, open a
socket, or read a user's files; ptxas then runs confined too. What reaches the GPU is a cubin, launched by our
own worker with our own arguments: streams, graphs, timers and libraries are out of its reach.

| module | what it is |
|---|---|
| `text` | `Source`: the text and how it is launched |
| `declared` | launch facts that a source declares of itself, bounded |
| `building` | `build`: from text to kernel, or to the verdict why there is none |
| `child` | what runs inside the confined builder process |
| `evaluator` | `SourceEvaluator`: build, then the path of every other candidate |
"""

from __future__ import annotations

from .building import Built, build
from .evaluator import SourceEvaluator
from .text import Source

__all__ = ["Built", "Source", "SourceEvaluator", "build"]
