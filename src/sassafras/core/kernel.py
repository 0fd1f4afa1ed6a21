"""A kernel: native code, an entry point, and the facts needed to launch it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Kernel:
    """A cubin and how to launch one entry of it.

    Attributes:
        cubin: the ELF file, bytes as they are loaded by the driver.
        name: mangled entry name, as in the cubin's symbol table.
        arch: architecture, for example ``"sm_90a"`` or ``"sm_90"``.
        threads: threads a block (CTA), x only; Triton: 32 * num_warps.
        shared_bytes: dynamic shared memory a block, in bytes.
        cluster: thread-block cluster shape; (1, 1, 1) for none.
        hidden_args: pointer arguments that the compiler appended after the user's (Triton's scratch
            buffers), passed as null unless ``scratch_bytes`` says otherwise.
        scratch_bytes: bytes of global scratch a block needs (0: the pointer is null).
        parameters: (argument name, type) of each of the user's parameters that the code takes, in order,
            for example ``("x_ptr", "*fp16"), ("n", "i32")``; None: all of the case's arguments. Triton
            drops integers equal to 1, and picks i32 or i64 by value.
        meta: provenance, JSON-able: compiler and versions, options, specialisation, source hash.
    """

    cubin: bytes = field(repr=False)
    name: str
    arch: str
    threads: int
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    hidden_args: int = 0
    scratch_bytes: int = 0
    parameters: tuple[tuple[str, str], ...] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of the cubin, hexadecimal: the key of every store and cache."""
        return hashlib.sha256(self.cubin).hexdigest()

    def with_cubin(self, cubin: bytes) -> Kernel:
        """The same launch facts around other code (a candidate schedule)."""
        return replace(self, cubin=cubin)

    def launch_facts(self) -> dict[str, Any]:
        """What must match before one cubin may stand in for another, as JSON."""
        return {
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
            "cluster": list(self.cluster),
            "hidden_args": self.hidden_args,
            "scratch_bytes": self.scratch_bytes,
            "parameters": None if self.parameters is None else [list(pair) for pair in self.parameters],
        }

    @classmethod
    def launched_as(
        cls, facts: Mapping[str, Any], cubin: bytes, name: str, arch: str, meta: Mapping[str, Any]
    ) -> Kernel:
        """A kernel of these `launch_facts`. Raises KeyError, TypeError or ValueError where they are none."""
        x, y, z = facts["cluster"]
        pairs = facts["parameters"]
        return cls(
            cubin,
            name,
            arch,
            facts["threads"],
            facts["shared_bytes"],
            (x, y, z),
            facts["hidden_args"],
            facts["scratch_bytes"],
            None if pairs is None else tuple((parameter, kind) for parameter, kind in pairs),
            meta,
        )
