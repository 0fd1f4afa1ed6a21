"""Rewrites of PTX, one small typed change each, and the writer that puts several into one text.

None of them changes a result: they name registers, residency, loops and caches, which the PTX ISA calls
limits or performance hints ("Performance-Tuning Directives", "Cache Operators", "Cache Eviction Priority
Hints", "Descriptions of .pragma Strings"), and none reorders floating-point sums. Results are compared on
the device bit by bit all the same.

Left out: ``.nc``, which needs proof that nothing writes there; ``.lu`` and ``.cv``, which are no mere hints;
prefetches of later iterations, whose addresses may lie outside of the buffer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sassafras.core import SassafrasError

from .reader import EVICTIONS, HINT, LOAD_OPERATORS, PREFETCHES, STORE_OPERATORS, Access, Entry

#: (start, end, order among changes of one place, text)
Edit = tuple[int, int, int, str]
#: of entries' names: ptxas 12.8 and 13.0 write other code for some kernels with "cutlass" in their name
#: (known from Triton's pull request 7298); the second is a control
PREFIXES = ("cutlass_", "k_")
#: instructions that must stand between a prefetch and its access
PREFETCH_AHEAD = 8
POLICIES = ("evict_first", "evict_last", "evict_unchanged")
PREFETCH_LEVELS = ("L1", "L2", "L2::evict_last")
_POLICY = "%sassafras_policy"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One change of one entry.

    Attributes:
        needs: least version of the PTX ISA; a smaller ``.version`` is raised, which alone changes nothing.
    """

    needs: ClassVar[tuple[int, int]] = (0, 0)

    @property
    def slot(self) -> tuple[str, int]:
        """What it changes: of two rewrites of one slot only one can be."""
        return type(self).__name__, getattr(self, "access", getattr(self, "at", 0))

    def release(self, entry: Entry) -> tuple[int, int]:
        """The first release of ptxas that compiles it into code that runs."""
        return (13, 0) if self.needs >= (9, 0) else (0, 0)

    def refusal(self, entry: Entry, threads: int) -> str:
        """Why it must not be applied to an entry launched with so many threads a block; "" for nothing."""
        raise NotImplementedError

    def edits(self, entry: Entry) -> Sequence[Edit]:
        """The change as places in the text, but for `qualifiers`."""
        return ()

    def qualifiers(self) -> Mapping[str, str]:
        """Qualifiers to set on the access that `slot` numbers."""
        return {}

    def describe(self) -> str:
        """``Registers(maxnreg, 64)``."""
        return f"{type(self).__name__}({', '.join(str(v) for v in dataclasses.astuple(self))})"

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` reads it."""
        return {"rewrite": type(self).__name__, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class EntryName(Rewrite):
    """Another name while ptxas looks; `names.restore` takes it back, for launches and deployment."""

    prefix: str

    def refusal(self, entry: Entry, threads: int) -> str:
        if not re.fullmatch(r"[A-Za-z]\w*", self.prefix):
            return f"{self.prefix!r} begins no identifier"
        return "the name is in the PTX already" if self.prefix + entry.name in entry.plain else ""

    def edits(self, entry: Entry) -> Sequence[Edit]:
        own = re.compile(rf"(?P<made>\.entry\s+)?(?<![\w$%.])(?P<name>{re.escape(entry.name)})(?![\w$])")
        found = [m for m in own.finditer(entry.plain) if m["made"] or not _begins(entry.plain, m.start())]
        return [(*m.span("name"), 0, self.prefix + entry.name) for m in found]


@dataclass(frozen=True, slots=True)
class Registers(Rewrite):
    """``.maxnreg``: the compiler spills instead of using more. Or ``.minnctapersm``: so few that these blocks
    fit on a multiprocessor; the ISA asks for ``.maxntid`` or ``.reqntid`` beside it, and ignores it above the
    threads of a multiprocessor. The first one wins over the second."""

    directive: str
    count: int

    def refusal(self, entry: Entry, threads: int) -> str:
        if self.directive == "maxnreg":
            most = registers_at_launch(threads)
            if not 16 <= self.count <= most:
                return f"a block of {threads} threads has 16 to {most} registers a thread"
        elif self.directive != "minnctapersm" or self.count < 1 or self.count * threads > 2048:
            return f"a multiprocessor holds 2048 threads, not {self.count} blocks of {threads}"
        elif not entry.bounded:
            return ".minnctapersm is ignored without .maxntid or .reqntid"
        elif "maxnreg" in entry.directives:
            return ".maxnreg of the source wins over .minnctapersm"
        return redistributes(entry)

    def edits(self, entry: Entry) -> Sequence[Edit]:
        return [_directive(entry, self.directive, f".{self.directive} {self.count}")]


@dataclass(frozen=True, slots=True)
class BlockSize(Rewrite):
    """``.maxntid`` or ``.reqntid`` with the launch's own threads, of which a deployed kernel is sure."""

    directive: str
    threads: int

    def refusal(self, entry: Entry, threads: int) -> str:
        if self.directive not in ("maxntid", "reqntid") or self.threads != threads:
            return f"the launch has {threads} threads, and maxntid and reqntid say so"
        return ".maxntid and .reqntid exclude each other, and one is there" if entry.bounded else ""

    def edits(self, entry: Entry) -> Sequence[Edit]:
        return [_directive(entry, self.directive, f".{self.directive} {self.threads}, 1, 1")]


@dataclass(frozen=True, slots=True)
class SharedSpill(Rewrite):
    """``.pragma "enable_smem_spilling"``: spills go to shared memory first. The ISA excludes dynamic shared
    memory and redistributed registers; without spills it does nothing."""

    needs: ClassVar[tuple[int, int]] = (9, 0)

    def refusal(self, entry: Entry, threads: int) -> str:
        dynamic = re.search(r"\.extern\s+\.shared\b", entry.plain)
        return "spills and dynamic shared memory exclude each other" if dynamic else redistributes(entry)

    def edits(self, entry: Entry) -> Sequence[Edit]:
        return [(entry.body[0], entry.body[0], 0, '\n\t.pragma "enable_smem_spilling";')]


@dataclass(frozen=True, slots=True)
class NoUnroll(Rewrite):
    """``.pragma "nounroll"`` for the loop whose header is the label at statement `at`; -1: for the entry."""

    at: int
    pragma: ClassVar[str] = "nounroll"

    def refusal(self, entry: Entry, threads: int) -> str:
        everywhere = self.at == -1 and type(self) is NoUnroll
        return "" if everywhere or self.at in entry.loops else "this is no header of a loop"

    def edits(self, entry: Entry) -> Sequence[Edit]:
        place = entry.body[0] - 1 if self.at < 0 else entry.statements[self.at].end
        words = f"{self.pragma} {getattr(self, 'count', '')}".strip()
        return [(place, place, 1, f'\n\t.pragma "{words}";\n')]


@dataclass(frozen=True, slots=True)
class Frequency(NoUnroll):
    """``.pragma "frequency n"``: how often a thread runs a loop's header, a hint to the optimiser."""

    count: int
    pragma: ClassVar[str] = "frequency"
    needs: ClassVar[tuple[int, int]] = (9, 0)


@dataclass(frozen=True, slots=True)
class OfAccess(Rewrite):
    """Something said of one access."""

    needs: ClassVar[tuple[int, int]] = (7, 4)
    access: int
    value: str

    def refusal(self, entry: Entry, threads: int) -> str:
        if not 0 <= self.access < len(entry.accesses):
            return "there is no such access that may be changed"
        fits = self.value in self.values(entry, entry.accesses[self.access])
        return "" if fits else f"{self.value} does not go with this access"

    @classmethod
    def values(cls, entry: Entry, access: Access) -> tuple[str, ...]:
        """What may be said of an access, but not what it says already."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Cache(OfAccess):
    """A cache operator (``ca``, ``cg``, ``cs``, ``wb``, ``wt``) or an eviction priority (``L1::evict_last``).
    Both are hints that leave the memory model alone; they exclude each other.

    An operator that the source wrote stays: a program may rely on it. `cp.async` takes operators only, and
    ``cg`` only for 16 bytes. L2's priorities by qualifier need sm_100; see `L2Policy`.
    """

    @classmethod
    def values(cls, entry: Entry, access: Access) -> tuple[str, ...]:
        if access.kind == "cp.async":
            return tuple(v for v in ("ca", "cg") if access.width == 16 and v != access.operator)
        if access.operator:
            return ()
        operators = LOAD_OPERATORS if access.kind == "ld" else STORE_OPERATORS
        return tuple(v for v in (*operators, *EVICTIONS[1:]) if v != access.eviction)

    def qualifiers(self) -> Mapping[str, str]:
        priority = self.value in EVICTIONS
        return {"operator": "" if priority else self.value, "eviction": self.value if priority else ""}


@dataclass(frozen=True, slots=True)
class PrefetchSize(OfAccess):
    """``.L2::64B`` to ``.L2::256B`` of a load or copy: a hint to fetch more into the L2 ("ld")."""

    @classmethod
    def values(cls, entry: Entry, access: Access) -> tuple[str, ...]:
        return () if access.kind == "st" else tuple(v for v in PREFETCHES if v != access.prefetch)

    def qualifiers(self) -> Mapping[str, str]:
        return {"prefetch": self.value}


@dataclass(frozen=True, slots=True)
class L2Policy(OfAccess):
    """``.L2::cache_hint`` with a policy of ``createpolicy.fractional`` for the whole access.

    Before 13.4 ptxas gives most copies with one registers that nothing writes (`sass.undefined`).
    """

    def release(self, entry: Entry) -> tuple[int, int]:
        return (13, 4) if entry.accesses[self.access].kind == "cp.async" else (0, 0)

    @classmethod
    def values(cls, entry: Entry, access: Access) -> tuple[str, ...]:
        return () if access.hint or _POLICY in entry.plain else POLICIES

    def edits(self, entry: Entry) -> Sequence[Edit]:
        end = entry.statements[entry.accesses[self.access].at].end - 1
        register, at = f"{_POLICY}_{self.value}", entry.body[0]
        made = f"\n\t.reg .b64 {register};\n\tcreatepolicy.fractional.L2::{self.value}.b64 {register}, 1.0;"
        return [(at, at, 3, made), (end, end, 0, f", {register}")]

    def qualifiers(self) -> Mapping[str, str]:
        return {"hint": HINT}


@dataclass(frozen=True, slots=True)
class Prefetch(OfAccess):
    """``prefetch.global`` of a load's own address under its own guard, as early in its block as both are
    known. The load follows in the same block, so that the address is one that the kernel reads. (Not of
    copies, which may be told to read no byte.) Into the L1, which other blocks' writes do not reach, only
    behind what makes such writes visible."""

    @classmethod
    def values(cls, entry: Entry, access: Access) -> tuple[str, ...]:
        if access.kind != "ld":
            return ()
        early = ((level, entry.earliest(access, ordered=level == "L1")) for level in PREFETCH_LEVELS)
        return tuple(level for level, found in early if found is not None and found[1] >= PREFETCH_AHEAD)

    def edits(self, entry: Entry) -> Sequence[Edit]:
        access = entry.accesses[self.access]
        early = entry.earliest(access, ordered=self.value == "L1")
        assert early is not None
        words = (
            entry.statements[access.at].guard,
            f"prefetch.global.{self.value} [{access.address.strip()}];",
        )
        return [(early[0], early[0], 4, "\n\t" + " ".join(filter(None, words)))]


KINDS: Mapping[str, type[Rewrite]] = {
    kind.__name__: kind
    for kind in (
        EntryName, Registers, BlockSize, SharedSpill, NoUnroll, Frequency, Cache, PrefetchSize, L2Policy,
        Prefetch,
    )
}  # fmt: skip


def from_json(data: Mapping[str, Any]) -> Rewrite:
    """The reverse of `Rewrite.to_json`.

    Raises:
        SassafrasError: it describes no rewrite.
    """
    try:
        fields = dict(data)
        made = KINDS[fields.pop("rewrite")](**fields)
        if any(type(getattr(made, f.name)).__name__ != f.type for f in dataclasses.fields(made)):
            raise TypeError("a field is of another type")
    except (KeyError, TypeError, ValueError) as error:
        raise SassafrasError(f"{data!r:.80} is no rewrite of PTX: {error}") from None
    return made


def write(entry: Entry, rewrites: Iterable[Rewrite], threads: int) -> str:
    """The PTX with these changes; without any the text itself, byte for byte.

    Raises:
        SassafrasError: one of them is not legal here, or two change the same.
    """
    chosen, edits, accesses = list(rewrites), set[Edit](), dict[int, dict[str, str]]()
    if len({one.slot for one in chosen}) < len(chosen):
        raise SassafrasError("two rewrites change the same", where=entry.name)
    bound = any(isinstance(one, BlockSize) for one in chosen)  # what .minnctapersm needs
    there = dataclasses.replace(entry, directives={**entry.directives, "maxntid": (0, 0)}) if bound else entry
    for one in chosen:
        if why := one.refusal(there if isinstance(one, Registers) else entry, threads):
            raise SassafrasError(f"{one.describe()} is not legal here: {why}", where=entry.name)
        edits.update(one.edits(entry))
        if changed := one.qualifiers():
            accesses.setdefault(one.slot[1], {}).update(changed)
    for number, changed in accesses.items():
        statement = entry.statements[entry.accesses[number].at]
        start = statement.opcode_at
        edits.add((start, start + len(statement.opcode), 0, entry.accesses[number].opcode(changed)))
    needs = max((one.needs for one in chosen), default=(0, 0))
    if needs > entry.version:
        edits.add((*entry.version_at, 0, f"{needs[0]}.{needs[1]}"))
    made, at = list[str](), 0
    for start, end, _, new in sorted(edits):
        if start < at:
            raise SassafrasError("two rewrites change the same text", where=entry.name)
        made += [entry.text[at:start], new]
        at = end
    return "".join((*made, entry.text[at:]))


def refusal(entry: Entry, rewrites: Iterable[Rewrite], threads: int) -> str:
    """Why `write` refuses them; empty where it does not."""
    try:
        write(entry, rewrites, threads)
    except SassafrasError as error:
        return str(error)
    return ""


def registers_at_launch(threads: int) -> int:
    """The most registers a thread of a block of this size can have (65,536 a block, steps of 8, 255)."""
    return min(255, 65536 // max(32, threads) // 8 * 8)


def redistributes(entry: Entry) -> str:
    """Why registers must stay as they are; empty where they need not."""
    found = re.search(r"\bsetmaxnreg\b", entry.plain)  # also in a function that it calls
    return "the kernel redistributes its registers (setmaxnreg)" if found else ""


def _begins(plain: str, at: int) -> bool:
    """A statement begins here, with or without a guard: what stands here is an opcode, if no label."""
    before = re.compile(r"(?:^|[;:}\n]|[^=\s]\s*\{)[ \t]*(?:@\s*!?\s*[%$\w]+\s+)?$")
    return before.search(plain[max(0, at - 200) : at]) is not None


def _directive(entry: Entry, name: str, text: str) -> Edit:
    """Replace a performance directive of the entry, or add it in front of the body."""
    if name in entry.directives:
        return (*entry.directives[name], 0, text)
    at = entry.body[0] - 1
    return at, at, 0, f"{text}\n"
