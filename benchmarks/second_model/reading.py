"""Instructions as the second model sees them: read from nvdisasm's listing by a reader of its own.

The listing's liveness columns (``-plr``) say which registers an instruction reads and writes. Its operand
text says in which operand each of them stands, so that an expression keeps its meaning under other register
names. What the columns are known to miss is added here: P2R and R2P (the predicates of their mask), LDGSTS
(its predicate is an input), convergence barriers, CALL and RET (the columns add up the callee), and R254 in
kernels of 255 registers. An instruction whose text names a register that the columns do not know raises
`Unread`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from itertools import pairwise

from sassafras.sass.cubin import Cubin
from sassafras.sass.disassembly import Refused, printed
from sassafras.sass.tools import find_all

#: where each register file begins in the model's own numbering
FILES = {"R": 0, "P": 256, "UR": 264, "UP": 520, "B": 528}
REGISTERS = 544
CONTROL_BITS = ((1 << 23) - 1) << 41
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*$")
_REGISTER = re.compile(r"(?<![\w.])(UR|UP|R|P|B)(\d+)(?!\w)((?:\.\w+)*)")
PREDICATE = re.compile(r"^!?U?P(\d|T)$")
_LABEL = re.compile(r"`\(([^)]+)\)")


class Unread(ValueError):
    """The model cannot read this code; it says nothing about it."""


@dataclass(slots=True)
class Use:
    """A register in an operand: its number, the slot's name (as in the measured latencies), its operand."""

    register: int
    slot: str
    token: int


@dataclass(slots=True)
class Op:
    """One instruction.

    Attributes:
        what: the text with ``#`` for every register: opcode, modifiers, signs, immediates.
        base, mods: the opcode, taken apart.
        guard: the guard's register or -1; `negated`; `never` for ``@!PT``.
        reads, writes: in the order of the text.
        targets: labels that the text names, as instruction numbers.
        address: of the first one: registers, constant offset, bytes, number of the operand; None without.
        low, high: the encoding, `high` without control bits.
    """

    what: str
    base: str
    mods: tuple[str, ...]
    guard: int
    negated: bool
    never: bool
    reads: list[Use]
    writes: list[Use]
    targets: tuple[int, ...]
    operands: tuple[str, ...]
    low: int
    high: int
    address: tuple[tuple[int, ...], int, int, int] | None = None


@dataclass(slots=True)
class Listing:
    """A kernel: its operations in order, upper words with control bits, where its code stands in the file."""

    name: str
    ops: list[Op]
    control: list[int]
    offset: int
    functions: list[int] = field(default_factory=list)
    indirect: dict[int, tuple[int, ...]] = field(default_factory=dict)


def listing(data: bytes, name: str) -> Listing:
    """Read one kernel of a cubin.

    Raises:
        Unread: nvdisasm or this reader cannot.
        SassafrasError: it is no cubin.
    """
    cubin = Cubin.parse(data)
    entry = cubin.entries[name]
    output = _printed(_spared(cubin), cubin.abi_version >= 8)
    lines, labels = _section(output, name)
    count = entry.text.size // 16
    words = struct.unpack(f"<{2 * count}Q", entry.text.data)
    ops, control = [], []
    for n in range(count):
        low, high = words[2 * n], words[2 * n + 1]
        text, reads, writes = lines[n] if n < len(lines) else ("NOP", frozenset(), frozenset())
        if n >= len(lines) and low & 0xFFF != 0x918:
            raise Unread(f"nothing printed for the instruction at {16 * n:#x}")
        ops.append(_op(text, set(reads), set(writes), low, high & ~CONTROL_BITS, labels))
        control.append(high)
    functions = sorted({at for label, at in labels.items() if not label.startswith(".") and 0 < at < count})
    return Listing(name, ops, control, entry.text.offset, functions, _indirect(entry.info))


def _indirect(records: object) -> dict[int, tuple[int, ...]]:
    """Targets of BRX by the branch's number: EIATTR 0x34 (u32 branch, two u16, u32 count, targets)."""
    found: dict[int, tuple[int, ...]] = {}
    for record in records:  # type: ignore[attr-defined]
        if record.attribute != 0x34:
            continue
        words = struct.unpack(f"<{len(record.payload) // 4}I", record.payload)
        at = 0
        while at + 3 <= len(words):
            branch, _, count = words[at : at + 3]
            found[branch // 16] = tuple(t // 16 for t in words[at + 3 : at + 3 + count])
            at += 3 + count
    return found


def _spared(cubin: Cubin) -> bytes:
    """The cubin with register counts below 255, which nvdisasm's analysis cannot take."""
    data = bytearray(cubin.data)
    for slot in cubin.regcount_slots.values():
        if struct.unpack_from("<I", data, slot)[0] > 254:
            struct.pack_into("<I", data, slot, 254)
    return bytes(data)


def _printed(data: bytes, new: bool) -> str:
    tools = sorted(find_all("nvdisasm"), key=lambda tool: (tool.major >= 13) != new)
    try:
        return printed(data, tuple(tools))[1]
    except Refused:
        raise Unread("no nvdisasm prints live registers of this cubin") from None


Row = tuple[str, frozenset[int], frozenset[int]]


def _section(printed: str, name: str) -> tuple[list[Row], dict[str, int]]:
    """The rows of one kernel's section, and its labels as instruction numbers."""
    rows: list[Row] = []
    labels: dict[str, int] = {}
    inside, ruler = False, False
    head: list[str] = []
    columns: list[tuple[int, int]] = []
    for line in printed.splitlines():
        if line.startswith("\t.section\t") or line.startswith("//-"):
            inside = f".text.{name}" in re.split(r'[\s",]+', line)
            head, columns, ruler = [], [], False
            continue
        if not inside:
            continue
        code, _, tail = line.rpartition("// ")
        if not code.strip():
            if tail.startswith("+-") and not columns:
                if ruler and head:
                    columns = _columns(head)
                ruler = True
            elif tail.startswith("|") and ruler and not columns:
                head.append(tail)
            continue
        found = _LINE.match(code.rstrip())
        if found:
            if int(found[1], 16) != 16 * len(rows):
                raise Unread(f"the instruction at {16 * len(rows):#x} was not printed")
            marks = {register: tail[at] for at, register in columns if at < len(tail)}
            text = re.sub(r"\(\*.*?\*\)", "", found[2])
            rows.append((
                text.strip().rstrip(";").strip(),
                frozenset(r for r, mark in marks.items() if mark in "vx"),
                frozenset(r for r, mark in marks.items() if mark in "^x"),
            ))  # fmt: skip
        elif (label := code.strip()).endswith(":"):
            labels[label[:-1]] = len(rows)
    if not rows:
        raise Unread("nothing printed for this kernel")
    return rows, labels


def _columns(head: list[str]) -> list[tuple[int, int]]:
    """(place in the row, register) of the columns, from the header between two rulers."""
    bars = [n for n, char in enumerate(head[0]) if char == "|"]
    files = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
    found = []
    for left, right in pairwise(bars):
        base = FILES[files[head[0][left + 1 : right].strip()]]
        for at in range(left + 1, right):
            digits = [row[at] for row in head[1:] if at < len(row) and row[at].isdigit()]
            if digits and head[-1][at].isdigit():
                found.append((at, base + int("".join(digits))))
    return found


def _split(text: str) -> tuple[str, str, tuple[str, ...]]:
    guard = ""
    if text.startswith("@"):
        guard, _, text = text[1:].partition(" ")
    opcode, _, rest = text.strip().partition(" ")
    operands = re.split(r",(?![^\[(]*[\])])", rest) if rest.strip() else []
    return guard, opcode, tuple(" ".join(operand.split()) for operand in operands)


#: predicates before the first other operand that are written (1 where nothing is said)
_LEADING = dict.fromkeys("ISETP UISETP FSETP DSETP HSETP2 PLOP3 UPLOP3 PSETP UPSETP".split(), 2)  # noqa: SIM905
#: their leading operands are all read
_INPUTS_ALONE = (
    "BRA BRX BRXU JMP JMX EXIT CALL RET BAR BSYNC BREAK WARPSYNC LDGSTS STG ST STL STS STSM RED REDG R2P "
    "KILL BPT NOP YIELD NANOSLEEP DEPBAR MEMBAR CCTL UBLKCP UTMALDG UTMASTG UTMAREDG UTMAPF UBLKPF UBLKRED"
)
NO_OUTPUT = frozenset(_INPUTS_ALONE.split())
_BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def _width(base: str, mods: tuple[str, ...], position: int) -> int:
    """Registers that a plain operand spans as far as the opcode tells; the columns tell the rest."""
    size = 4 if "128" in mods else 2 if {"64", "F64", "U64", "S64"} & set(mods) else 1
    if base in ("IMAD", "UIMAD"):
        return (
            2 if (position == 3 and {"WIDE", "HI"} & set(mods)) or (position == 0 and "WIDE" in mods) else 1
        )
    if base in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "CALL", "RET"):
        return 2
    if base in ("LDG", "LD", "LDL", "LDS", "LDC", "ULDC"):
        return size if position == 0 else 1
    if base in ("STG", "ST", "STL", "STS", "RED", "REDG"):
        return size if position == 1 else 1
    if base in ("ATOM", "ATOMG", "ATOMS"):
        return size if position in (0, 2, 3) else 1
    if base == "UIADD3" and "64" in mods:
        return 2
    return 2 if base == "CS2R" and "32" not in mods else 1


@dataclass(slots=True)
class _Token:
    register: int
    slot: str
    width: int
    output: bool


def _tokens(base: str, mods: tuple[str, ...], operands: tuple[str, ...], written: set[int]) -> list[_Token]:
    tokens: list[_Token] = []
    position = run = leading = 0
    for text in operands:
        if PREDICATE.match(text):
            first = position == 0 and leading < _LEADING.get(base, 1)
            after = position == 1 and run < (1 if base in ("VOTE", "VOTEU") else 2)
            output = (first or after) and base not in NO_OUTPUT
            for prefix, number, _ in _REGISTER.findall(text):
                tokens.append(_Token(FILES[prefix] + int(number), f"{position}p{run}", 1, output))
            run, leading = run + 1, leading + (position == 0)
            continue
        for found in _REGISTER.finditer(text):
            register = FILES[found[1]] + int(found[2])
            before, behind = text[: found.start()], text[found.end() :]
            inside = before.count("[") > before.count("]")
            if not inside:
                output = position == 0 and register in written and base not in NO_OUTPUT
                width = max(_width(base, mods, position), 2 if ".64" in found[3] else 1)
                tokens.append(_Token(register, str(position), width, output))
            elif "[" in behind or before.endswith("desc["):
                tokens.append(_Token(register, f"{position}d", 2, False))
            else:
                part = "u" if found[1] == "UR" else "a"
                tokens.append(_Token(register, f"{position}{part}", 2 if ".64" in found[3] else 1, False))
        position, run = position + 1, 0
    return tokens


def _op(
    text: str, reads: set[int], writes: set[int], low: int, high: int, labels: dict[str, int]
) -> Op:  # fmt: skip
    guard, opcode, operands = _split(text.replace(".reuse", ""))
    base, *rest = opcode.split(".")
    mods = tuple(rest)
    predicate = _REGISTER.search(guard)
    guarded = FILES[predicate[1]] + int(predicate[2]) if predicate else -1
    bank: list[int] = []
    if base in ("P2R", "R2P", "UP2UR", "UR2UP"):
        bank = [(520 if base[0] == "U" else 256) + n for n in range(7) if int(operands[-1], 16) >> n & 1]
        (writes if base in ("R2P", "UR2UP") else reads).update(bank)
    elif base == "LDGSTS":
        inputs = {r for r in writes if FILES["P"] <= r < FILES["UR"]}
        writes, reads = writes - inputs, reads | inputs
    tokens = _tokens(base, mods, operands, writes)
    barriers = {t.register for t in tokens if t.register >= FILES["B"]}
    if base in ("CALL", "RET"):
        reads, writes = {t.register + k for t in tokens for k in range(t.width)}, set()
    if barriers:
        reads |= barriers
        if base in ("BSSY", "BMOV", "BREAK"):
            writes |= barriers
    for token in tokens:
        if token.register not in reads | writes:
            if token.register != 254:
                raise Unread(f"{text}: its live registers are not printed")
            (writes if token.output or token.slot == "0" else reads).add(254)
            token.output = token.slot == "0"
    made = [_placed(registers, [t for t in tokens if t.output is side], tokens, text, guarded, bank)
            for side, registers in ((False, reads), (True, writes))]  # fmt: skip
    if guarded >= 0:
        made[0].insert(0, Use(guarded, "G", -1))
    targets = tuple(labels[name] for name in _LABEL.findall(text) if name in labels)
    what = _REGISTER.sub(lambda m: "#" + m[3], " ".join((opcode, ",".join(operands))))
    if targets or _LABEL.search(text):
        what = _LABEL.sub("`", what)
    return Op(
        what, base, mods, guarded, guard.startswith("!"), guard in ("!PT", "!UPT"), made[0], made[1], targets,
        operands, low, high, _address(mods, operands),
    )  # fmt: skip


def _placed(
    registers: set[int], mine: list[_Token], tokens: list[_Token], text: str, guard: int, bank: list[int]
) -> list[Use]:
    """Which operand holds which of these registers: those it is known to span, then the nearest below."""
    found: list[Use] = []
    left = set(registers)
    order = {id(token): n for n, token in enumerate(tokens)}
    spans = [
        [token.register + k for k in range(token.width) if token.register + k in registers] for token in mine
    ]
    for span in spans:
        left -= set(span)
    if guard in left and not any(guard in span for span in spans):
        left.discard(guard)
    for register in sorted(left):
        if register in bank:
            found.append(Use(register, "1" if "P2R" in text else "0", -1))
            continue
        file = max(base for base in FILES.values() if base <= register)
        below = [n for n, token in enumerate(mine) if file <= token.register < register]
        if not below or file in (FILES["P"], FILES["UP"]):
            other = [t for t in tokens if t.register <= register and t.register >= file]
            if not other:
                found.append(Use(register, "?", -1))
                continue
            spans_of = max(other, key=lambda t: t.register)
            found.append(
                Use(register, f"{spans_of.slot}+{register - spans_of.register}", order[id(spans_of)])
            )
            continue
        nearest = max(below, key=lambda n: mine[n].register)
        spans[nearest].append(register)
    for token, span in zip(mine, spans, strict=True):
        for register in sorted(span):
            far = register - token.register
            found.append(Use(register, token.slot + (f"+{far}" if far else ""), order[id(token)]))
    found.sort(key=lambda use: use.token)
    return found


def _address(
    mods: tuple[str, ...], operands: tuple[str, ...]
) -> tuple[tuple[int, ...], int, int, int] | None:
    """(registers, offset, bytes, number) of the first operand in brackets."""
    for number, text in enumerate(operands):
        if "[" not in text or text.startswith(("c[", "cx[", "gdesc[", "-c[")):
            continue
        offset = 0
        if found := re.search(r"(?:\+|\[)(-?)0x([0-9a-f]+)\]$", text):
            offset = int(found[2], 16) * (-1 if found[1] else 1)
        registers = tuple(FILES[m[1]] + int(m[2]) for m in _REGISTER.finditer(text))
        return registers, offset, next((_BYTES[m] for m in mods if m in _BYTES), 4), number
    return None
