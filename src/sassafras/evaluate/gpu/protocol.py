"""What travels to a worker: how it judges, and a kernel's launch facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sassafras.core import Kernel
from sassafras.cuda.ahead import GPU_WORKER

#: the module that a GPU's worker process runs
WORKER = GPU_WORKER
#: what of a kernel's ``meta`` belongs to its launch: a grid instead of the case's, values of further
#: parameters, tensor maps (`tensor_maps`), and whether it may start before the launch ahead has ended
LAUNCH_FACTS = ("grid", "scalars", "tensor_maps", "overlap")


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a worker checks candidates.

    Attributes:
        seeds: input sets of the headline case; the other cases of the same variant get one each.
        base_seed: first seed of the inputs.
        bitwise: candidates must leave the baseline's bytes; False: results within the tolerance.
        hang_s: seconds that a cold first launch may take.
        cases: names of the cases that compile to the headline's variant; None: found by compiling them.
    """

    seeds: int = 2
    base_seed: int = 0
    bitwise: bool = True
    hang_s: float = 5.0
    cases: Sequence[str] | None = None


def kernel_facts(kernel: Kernel) -> dict[str, Any]:
    """A kernel's launch facts as JSON (its cubin travels as a blob).

    Of its ``meta`` only `LAUNCH_FACTS` go along: a candidate that was not compiled from the baseline's source
    may cut the work differently.
    """
    launch = {key: kernel.meta[key] for key in LAUNCH_FACTS if kernel.meta.get(key) is not None}
    return {"name": kernel.name, "arch": kernel.arch, **kernel.launch_facts(), "launch": launch}


def launch_key(kernel: Kernel) -> str:
    """What else than its code decides how a kernel runs: everything that travels to a worker."""
    return json.dumps(kernel_facts(kernel), sort_keys=True, default=str)


def kernel_from_facts(facts: Mapping[str, Any], cubin: bytes) -> Kernel:
    """The inverse of `kernel_facts`; the rest of ``meta`` stays behind."""
    return Kernel.launched_as(facts, cubin, facts["name"], facts["arch"], dict(facts.get("launch", {})))
