"""Reads PTX: the version, one entry with its directives, its statements, loads, stores and loops.

Everything is a place in the text, so that a change touches no other byte. Syntax after the PTX ISA, sections
"PTX Syntax", "Directives", "ld", "ld.global.nc", "st" and "cp.async". What is not understood is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sassafras.core import SassafrasError

#: qualifiers of weak accesses that a rewrite may change; others keep an access out of the space
LOAD_OPERATORS = ("ca", "cg", "cs")
STORE_OPERATORS = ("wb", "cg", "cs", "wt")
EVICTIONS = tuple(
    f"L1::{p}" for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")
)
PREFETCHES = ("L2::64B", "L2::128B", "L2::256B")
HINT = "L2::cache_hint"
_BYTES = {f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"", re.DOTALL)
_STATEMENT = re.compile(
    r"\s*(?:(?P<line>\.(?:loc|file)\b[^\n;]*(?=\n|$))|(?P<brace>[{}])|(?P<label>[$\w%]+)\s*:(?!:)"
    r"|(?P<code>(?P<guard>@!?\s*[%$\w]+\s+)?(?P<opcode>[.\w][\w.:]*)(?P<operands>[^;]*);))"
)
#: registers, with or without ``%``, and other names
_REGISTER = re.compile(r"(?<![\w$%.:])[%a-zA-Z_$][\w$]*")
_ENDS_BLOCK = ("bra", "brx", "call", "ret", "exit", "trap")
#: instructions behind which a line fetched into the L1 ahead of them is as good as before, ...
_ORDERS_NOTHING = re.compile(
    "abs|addc?|and|bfe|bfi|bfind|bmsk|brev|clz|cnot|copysign|cos|createpolicy|cvta?|div|dp[24]a|ex2|fma|fns"
    "|isspacep|lg2|lop3|mad(24|c)?|max|min|mov|mul(24)?|neg|not|or|popc|prmt|rcp|rem|rsqrt|sad|selp|setp?"
    "|sh[flr]|shfl|sin|slct|sqrt|subc?|szext|tanh|testp|vote|xor"
)
#: ... and weak loads and stores by what follows ``ld`` and ``st``
_WEAK = ("weak", "global", "shared", "shared::cta", "local", "const", "param")
#: instructions through which addresses are followed
_FOLLOWED = ("add", "sub", "mad", "mov", "cvta", "selp")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of the body from `start` to `end`: ``code``, ``directive``, ``label``, ``brace`` or
    ``line``. `opcode` is also a label's name; `depth` counts the scopes open inside the body."""

    kind: str
    start: int
    end: int
    opcode: str
    opcode_at: int
    guard: str
    operands: str
    depth: int

    @property
    def targets(self) -> set[str]:
        """Registers of its first operand, which it may write."""
        first = re.match(r"\s*(?:\{[^}]*\}|[^,])*", self.operands)
        return _registers(first[0] if first else "")

    @property
    def base(self) -> str:
        """The opcode without qualifiers."""
        return self.opcode.split(".")[0]

    @property
    def orders_nothing(self) -> bool:
        """It surely makes no write of another block or kernel visible."""
        weak = self.base in ("ld", "st") and self.opcode.split(".")[1:2] in ([kind] for kind in _WEAK)
        return weak or _ORDERS_NOTHING.fullmatch(self.base) is not None


@dataclass(frozen=True, slots=True)
class Access:
    """A weak load, store or asynchronous copy of global memory whose qualifiers are all known.

    Attributes:
        number: its number among the entry's accesses.
        at: index of its statement.
        kind: ``ld``, ``st`` or ``cp.async``.
        head, tail: opcode in front of the cache qualifiers and behind them.
        width: bytes.
        address: text between the brackets of the global address.
        operator, nc, eviction, hint, prefetch: its qualifiers; empty for none.
    """

    number: int
    at: int
    kind: str
    head: str
    tail: str
    width: int
    address: str
    operator: str = ""
    nc: str = ""
    eviction: str = ""
    hint: str = ""
    prefetch: str = ""

    def opcode(self, changed: Mapping[str, str]) -> str:
        """The opcode with changed qualifiers, in the order of the ISA's grammar."""
        order = ("operator", "nc", "eviction", "hint", "prefetch")
        words = [changed.get(name, getattr(self, name)) for name in order]
        if self.kind == "cp.async":
            return ".".join(filter(None, (self.kind, words[0], self.head, *words[3:])))
        return ".".join(filter(None, (self.head, *words, self.tail)))


@dataclass(frozen=True)
class Entry:
    """A PTX module as text, and the places of one entry of it. Made by `Entry.read`.

    Attributes:
        text: the module; `plain`: with comments and strings blanked, of the same length.
        name: of the entry.
        directives: places of the performance directives between parameters and body, by name.
        body: places of the first byte behind ``{``, and of ``}``.
        version: of the PTX ISA, and its place in the text.
    """

    text: str = field(repr=False)
    plain: str = field(repr=False)
    name: str
    directives: dict[str, tuple[int, int]]
    body: tuple[int, int]
    version: tuple[int, int]
    version_at: tuple[int, int]

    @classmethod
    def read(cls, text: str, name: str) -> Entry:
        """Find an entry.

        Raises:
            SassafrasError: the text is no PTX, or has no such entry with a body.
        """
        plain = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
        version = re.search(r"^\s*\.version\s+((\d+)\.(\d+))", plain, re.MULTILINE)
        head = rf"\.entry\s+{re.escape(name)}(?![\w$])\s*(?:\([^)]*\))?"
        found = re.search(head + r"([^{;]*(?:\.pragma\b[^{;]*;[^{;]*)*)\{", plain)
        if version is None or found is None:
            what = (
                "this is no PTX: it has no .version" if version is None else f"no entry {name!r} in the PTX"
            )
            raise SassafrasError(what, where=name)
        directives = {
            m[1]: (found.start(1) + m.start(), found.start(1) + m.end())
            for m in re.finditer(r"\.(\w+)(?:\s+\d\w*(?:\s*,\s*\d\w*)*)?", found[1])
        }
        depth, at = 1, found.end()
        for brace in re.finditer(r"[{}]", plain[at:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                body = at, at + brace.start()
                return cls(
                    text, plain, name, directives, body, (int(version[2]), int(version[3])), version.span(1)
                )
        raise SassafrasError("the entry's body has no end", where=name)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The body in order."""
        found, at, depth = [], self.body[0], 0
        while (m := _STATEMENT.match(self.plain, at, self.body[1])) is not None:
            at, kind = m.end(), next(k for k in ("line", "brace", "label", "code") if m[k] is not None)
            depth -= m["brace"] == "}"
            opcode, start = m["opcode"] or m[kind], m.start(kind)
            shown = "directive" if m["opcode"] and opcode.startswith(".") else kind
            rest = (max(m.start("opcode"), start), (m["guard"] or "").strip(), m["operands"] or "", depth)
            found.append(Statement(shown, start, at, opcode, *rest))
            depth += m["brace"] == "{"
        if self.plain[at : self.body[1]].strip():
            line = self.plain[:at].count("\n") + 1
            raise SassafrasError(f"line {line} of the PTX is not understood", where=self.name)
        return tuple(found)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Accesses that rewrites may qualify."""
        found: list[Access] = []
        for at, s in enumerate(self.statements):
            if s.kind == "code" and (made := _access(len(found), at, s)) is not None:
                found.append(made)
        return tuple(found)

    @cached_property
    def targets(self) -> frozenset[str]:
        """Labels that branches name (others are those of line tables)."""
        branches = (s for s in self.statements if s.base in ("bra", "brx") or s.opcode == ".branchtargets")
        named = {word for s in branches for word in re.findall(r"[$%\w]+", s.operands)}
        return frozenset(s.opcode for s in self.statements if s.kind == "label" and s.opcode in named)

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """Statements that are labels of loop headers: targets of a branch further down."""
        places = {s.opcode: n for n, s in enumerate(self.statements) if s.kind == "label"}
        ends = [
            (n, places.get(s.operands.strip(), n)) for n, s in enumerate(self.statements) if s.base == "bra"
        ]
        return tuple(sorted({header for n, header in ends if header < n}))

    @cached_property
    def roots(self) -> dict[str, set[str]]:
        """64-bit parameters whose value may be in a register: where its addresses may point.

        A closure over all statements in any order; it groups accesses and decides no legality.
        """
        held: dict[str, set[str]] = {}
        code = [s for s in self.statements if s.kind == "code"]
        for s in code:
            if s.opcode.startswith("ld.param") and s.opcode.endswith("64"):
                for register in s.targets:
                    held.setdefault(register, set()).update(re.findall(r"\[\s*([\w$]+)", s.operands))
        moves = [(s.targets, _registers(s.operands) - s.targets) for s in code if s.base in _FOLLOWED]
        changed = True
        while changed:
            changed = False
            for into, out in moves:
                new = set[str]().union(*(held.get(r, ()) for r in out))
                for register in into:
                    changed |= not new <= held.get(register, set())
                    held.setdefault(register, set()).update(new)
        return held

    def points_to(self, access: Access) -> set[str]:
        """Parameters that an access's address may come from."""
        return set[str]().union(*(self.roots.get(r, ()) for r in _registers(access.address)))

    @property
    def bounded(self) -> bool:
        """The entry says how many threads a block has."""
        return bool({"maxntid", "reqntid"} & set(self.directives))

    def earliest(self, access: Access, *, ordered: bool = False) -> tuple[int, int] | None:
        """Where an access's address and guard are first known in its own basic block.

        Args:
            ordered: behind everything that may make other blocks' or kernels' writes visible.

        Returns:
            (place in the text behind a statement, number of instructions from there to the access), or None
            beside scopes of their own.
        """
        own = self.statements[access.at]
        needs, between = _registers(access.address) | _registers(own.guard), 0
        for s in reversed(self.statements[: access.at]) if not own.depth else ():
            if s.kind == "brace":
                return None
            known = s.kind == "code" and (s.targets & needs or s.base in _ENDS_BLOCK)
            known = known or (ordered and s.kind == "code" and not s.orders_nothing)
            if known or s.kind == "directive" or (s.kind == "label" and s.opcode in self.targets):
                return s.end, between
            between += s.kind == "code"
        return None if own.depth else (self.body[0], between)


def _registers(text: str) -> set[str]:
    return set(_REGISTER.findall(text))


def _access(number: int, at: int, s: Statement) -> Access | None:
    """The access that a statement is, if every qualifier is known and it is weak and of global memory."""
    parts, addresses = s.opcode.split("."), re.findall(r"\[([^\]]*)\]", s.operands)
    kind, copy = parts[0], parts[:2] == ["cp", "async"]
    if copy:
        sizes = re.findall(r"\]\s*,\s*(0x[0-9a-fA-F]+|\d+)", s.operands)
        if ".".join(parts[3:5]) not in ("shared.global", "shared::cta.global") or len(sizes) != 1:
            return None
        kind, head, tail, width = "cp.async", ".".join(parts[3:5]), "", int(sizes[0], 0)
        rest = [parts[2], *parts[5:]]
    elif kind in ("ld", "st") and parts[-1] in _BYTES:
        stem = parts[: 3 if parts[1] == "weak" else 2]
        vector = 1 if re.fullmatch("v[24]", parts[-2]) else 0
        rest = parts[len(stem) : len(parts) - 1 - vector]
        head, tail = ".".join(stem), ".".join(parts[len(parts) - 1 - vector :])
        width = _BYTES[parts[-1]] * (int(parts[-2][1]) if vector else 1)
        if stem[-1] != "global" or width > 16:
            return None  # volatile, relaxed, acquire, release, mmio, other state spaces
    else:
        return None
    known = {}
    for slot, values in (
        ("operator", STORE_OPERATORS if kind == "st" else LOAD_OPERATORS),
        ("nc", ("nc",) if kind == "ld" else ()),
        ("eviction", () if copy else EVICTIONS),
        ("hint", (HINT,)),
        ("prefetch", () if kind == "st" else PREFETCHES),
    ):
        known[slot] = rest.pop(0) if rest and rest[0] in values else ""
    if rest or len(addresses) != 1 + copy:
        return None
    return Access(number, at, kind, head, tail, width, addresses[-1], **known)
