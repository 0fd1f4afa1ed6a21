"""What `PtxSpace` may change of one entry: axes, each with the choices that are legal for this kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sassafras.frontend.ptxas_options import CHOICES

from . import rewrites as rw
from .reader import Access, Entry

#: values that are tried
REGISTERS = (24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 168, 192, 224, 255)
BLOCKS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
FREQUENCIES = (1, 100)
#: bytes of shared memory of a multiprocessor (sm_90) and what each block takes beside its own
_SHARED, _RESERVED = 233472, 1024


@dataclass(frozen=True)
class Axis:
    """One thing that can be chosen. Choice 0 is the frontend's own.

    Attributes:
        name: unique in a space, for example ``access 3 cache``.
        kind: axes of a kind are drawn as often together as those of any other kind.
        choices: values of the option, or rewrites that each choice puts in.
        option: the field of `PtxasOptions` that it sets; empty for rewrites.
        slots: what it sets: `Rewrite.slot` of all its choices.
    """

    name: str
    kind: str
    choices: tuple[Any, ...]
    option: str = ""
    slots: frozenset[tuple[str, int]] = frozenset()


def option_axes(entry: Entry, tools: Sequence[str], threads: int, controls: Sequence[str]) -> list[Axis]:
    """Releases and options of ptxas; `tools` begins with the frontend's own.

    ptxas ignores ``--maxrregcount`` where the entry bounds its block.
    """
    most = 0 if entry.bounded or rw.redistributes(entry) else rw.registers_at_launch(threads)
    limits = tuple(n for n in CHOICES["max_registers"] if n <= most)
    values = {**CHOICES, "max_registers": limits, "controls": tuple(controls)}
    axes = [Axis("ptxas", "release", tuple(tools), "ptxas")]
    return axes + [Axis(name, "options", (None, *v), name) for name, v in values.items()]


def rewrite_axes(entry: Entry, threads: int, shared: int, newest: tuple[int, int]) -> list[Axis]:
    """Rewrites that are legal for an entry.

    Args:
        entry: the entry.
        threads, shared: threads and bytes of dynamic shared memory of a block.
        newest: the newest release of ptxas there is.
    """
    bound = () if entry.bounded else (rw.BlockSize("maxntid", threads),)
    most = min(2048 // threads, _SHARED // (shared + _RESERVED))
    residency: list[tuple[rw.Rewrite, ...]] = [(rw.Registers("maxnreg", n),) for n in REGISTERS]
    residency += [(*bound, rw.Registers("minnctapersm", n)) for n in BLOCKS if n <= most]
    found: list[tuple[str, str, Sequence[tuple[rw.Rewrite, ...]]]] = [
        ("entry name", "name", [(rw.EntryName(prefix),) for prefix in rw.PREFIXES]),
        ("block size", "residency", [(rw.BlockSize(d, threads),) for d in ("maxntid", "reqntid")]),
        ("residency", "residency", residency),
        ("spills", "spills", [(rw.SharedSpill(),)]),
        ("unroll", "loops", [(rw.NoUnroll(-1),)] if entry.loops else []),
    ]
    for at in entry.loops:
        often: list[tuple[rw.Rewrite, ...]] = [(rw.Frequency(at, n),) for n in FREQUENCIES]
        found += [
            (f"loop {at} unroll", "loops", [(rw.NoUnroll(at),)]),
            (f"loop {at} frequency", "loops", often),
        ]
    named = {f"access {access.number}": [access] for access in entry.accesses}
    for name, members in (*named.items(), *_groups(entry).items()):
        for kind in (rw.Cache, rw.PrefetchSize, rw.L2Policy, rw.Prefetch):
            values = [
                v for v in kind.values(entry, members[0]) if all(v in kind.values(entry, a) for a in members)
            ]
            every = [tuple(kind(a.number, v) for a in members) for v in values]
            found.append((f"{name} {kind.__name__}", "access" if name in named else "group", every))
    axes = []
    for name, what, choices in found:
        sure = what in ("access", "group")
        able = [choice for choice in choices if all(one.release(entry) <= newest for one in choice)]
        legal = [choice for choice in able if sure or not rw.refusal(entry, choice, threads)]
        slots = frozenset(one.slot for choice in legal for one in choice if one not in bound or what == name)
        axes.append(Axis(name, what, ((), *legal), slots=slots))
    return axes


def _groups(entry: Entry) -> dict[str, list[Access]]:
    """Accesses of one kind whose address comes from one parameter, by a name for them; two at least."""
    found: dict[str, list[Access]] = {}
    for access in entry.accesses:
        roots = entry.points_to(access)
        if len(roots) == 1:
            found.setdefault(f"{access.kind} of {min(roots)}", []).append(access)
    return {name: members for name, members in found.items() if len(members) > 1}
