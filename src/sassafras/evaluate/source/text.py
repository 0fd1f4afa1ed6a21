"""`Source`: a kernel as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Language = Literal["cuda", "triton"]


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel as text, and how it is launched.

    Attributes:
        language: ``cuda`` (CUDA C++ device code) or ``triton`` (a Python module with a `@triton.jit`
            function).
        text: the whole source.
        entry: kernel name; may be left out where the source defines one kernel.
        threads: threads a block (CUDA only; Triton's follow from num_warps).
        shared_bytes: dynamic shared memory a block (CUDA only).
        cluster: cluster shape (CUDA only; ``__cluster_dims__`` in the source wins).
        grid: blocks to launch, None for the case's own. Arguments are always the case's.
        parameters: names of the kernel's parameters in order (CUDA only): arguments of the case and
            `tensor_maps`; None for all of the case's arguments, in its order.
        tensor_maps: what each tensor map describes (`core.tensor_map.TensorMap.to_json`), by parameter.
        scalars: values of further integer parameters, or other values for the case's integers, by name.
        flags: further compiler flags; only ``-D``, ``-O``, ``--use_fast_math``, ``--maxrregcount``, ``-std``
            and ``--fmad`` are taken.
        constants: macros (CUDA) or `tl.constexpr` values (Triton), on top of the case's.
        options: Triton's num_warps, num_stages, num_ctas, maxnreg, on top of the case's.
        recipe: provenance to record: model, prompt, parent, tokens. JSON-able.
    """

    language: Language
    text: str = field(repr=False)
    entry: str | None = None
    threads: int = 256
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    grid: tuple[int, int, int] | None = None
    parameters: tuple[str, ...] | None = None
    tensor_maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Everything that decides what it becomes, as JSON; `recipe` is not part of that."""
        return {name: value for name, value in asdict(self).items() if name != "recipe"}

    @property
    def key(self) -> str:
        """`describe` as text: two sources with the same key become the same kernel."""
        return json.dumps(self.describe(), sort_keys=True, default=str)

    @property
    def launch(self) -> dict[str, Any]:
        """What a worker needs to launch it otherwise than its case says, as far as that is given."""
        facts: dict[str, Any] = {}
        if self.grid is not None:
            facts["grid"] = list(self.grid)
        if self.scalars:
            facts["scalars"] = dict(self.scalars)
        if self.tensor_maps:
            facts["tensor_maps"] = {name: dict(described) for name, described in self.tensor_maps.items()}
        return facts
