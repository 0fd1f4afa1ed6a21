"""What the second dependence model knows from measurements, on short kernels written out here."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from second_model import flow, kinds, raises
from second_model import kernel as module
from second_model.cached import slots
from second_model.kernel import Kernel
from second_model.latency import Latencies, latencies
from second_model.reading import Listing, _op

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FREE = {"stall": 1, "write": 7, "read": 7, "wait": 0, "reuse": 0}


def word(**fields: int) -> int:
    """An upper word of control bits."""
    f = FREE | fields
    return f["stall"] << 41 | f["write"] << 46 | f["read"] << 49 | f["wait"] << 52 | f["reuse"] << 58


def registers(text: str) -> set[int]:
    """Those that a text names: ``R4 P1 UR6``."""
    base = {"R": 0, "P": 256, "UR": 264}
    return {base[m[1]] + int(m[2]) for m in re.finditer(r"\b(UR|R|P)(\d+)", text)}


def kernel(*rows: tuple[str, str, str, dict[str, int]]) -> Kernel:
    """(text, registers read, registers written, control bits) of each instruction."""
    ops = [
        _op(text, registers(reads), registers(writes), n, 0, {}) for n, (text, reads, writes, _) in
        enumerate(rows)
    ]  # fmt: skip
    return Kernel(Listing("k", ops, [word(**row[3]) for row in rows], 0))


def hazard(made: Kernel, edits: dict[int, dict[str, int]], order: list[int] | None = None) -> int:
    """Hazards of the only block under other control bits, or in another order."""
    high = made.high.copy()
    for at, fields in edits.items():
        high[at] = word(**fields)
    places = made.order if order is None else np.array(order, np.int32)
    begins, _ = made.settle(places, high, 0)
    return made.block(places, high, 0, begins)[0][2]


EXIT = ("EXIT", "", "", {"stall": 5})


def test_a_pair_that_never_went_wrong_is_a_measured_one() -> None:
    table = latencies()
    assert table.need("raw", ("ULDC.64", "0+1"), ("IMAD", "2")) == (1, True)
    assert table.need("raw", ("UMOV", "0"), ("UMOV", "1")) == (1, True)
    assert table.need("raw", ("UIADD3", "0"), ("UMOV", "1"))[0] > 4


def test_a_result_is_there_when_it_is_there_for_all_readers_that_were_asked() -> None:
    """UMOV was asked with 63 operands and never needed more than 2 cycles; IMAD.HI was not among them."""
    table = latencies()
    pair = ("raw", ("UMOV", "0"), ("IMAD.HI", "2"))
    assert not table.measured(pair)
    assert table.need(*pair) == (2, False)
    # another reader of which no form was asked; a producer that was asked with few; addresses and predicates
    for first, second in (
        (("UMOV", "0"), ("DADD", "2")), (("VOTEU", "0"), ("IMAD.HI", "2")), (("UMOV", "0"), ("LDG", "1a")),
        (("UISETP", "0"), ("IMAD", "4p0")),
    ):  # fmt: skip
        assert not table.measured(("raw", first, second))
        assert table.need("raw", first, second)[0] > 2, (first, second)


def test_a_result_is_there_for_any_reader_behind_the_longest_distance_of_the_table() -> None:
    """No measured pair needs more than 15 cycles; a descriptor was not asked as a reader of ULDC."""
    table = latencies()
    pair = ("raw", ("ULDC", "0"), ("LDG", "1d"))
    assert not table.measured(pair)
    assert table.need(*pair) == (15, False)
    # a producer that was asked with few readers
    assert table.need("raw", ("S2UR", "0"), ("LDG", "1d"))[0] > 15


def test_a_call_through_a_register_goes_to_the_functions_not_to_its_label() -> None:
    """The label of ``CALL.REL R8 `(k)`` is the kernel itself, which nothing calls."""
    texts = ["CALL.REL.NOINC R8 `(k)", "EXIT", "CALL.REL.NOINC `(f)", "EXIT", "RET.REL.NODEC R20 `(k)"]
    ops = [_op(text, registers(text), set(), n, 0, {"k": 0, "f": 4}) for n, text in enumerate(texts)]
    made = flow.blocks(Listing("k", ops, [word()] * len(ops), 0, [4]))
    assert [(block.start, block.follow) for block in made] == [
        (0, [4]), (1, []), (2, [4]), (3, []), (4, [1, 3])
    ]  # fmt: skip


@pytest.mark.parametrize("second, hides", [("P3", True), ("!P3", False), ("P2", False)])
def test_a_write_under_the_same_guard_hides_an_earlier_one(second: str, hides: bool) -> None:
    """@P3 STS reads what @P3 LEA wrote: MOV is only to be there for LEA, not for STS 10 cycles behind it."""
    made = kernel(
        ("@P3 MOV R4, 0x400", "P3", "R4", {"stall": 12}),
        (f"@{second} LEA R4, R5, R4, 0x18", f"{second} R5 R4", "R4", {"stall": 6}),
        ("@P3 STS [R4], R6", "P3 R4 R6", "", {"read": 0, "stall": 2}),
        EXIT,
    )
    made.facts.raw[made.producers.index(("MOV", "0")), made.consumers.index(("STS", "0a"))] = 18

    def effects(stall: int) -> tuple[int, int, int]:
        high = made.high.copy()
        high[0] = word(stall=stall)
        return made.block(made.order, high, 0, made.settle(made.order, high, 0)[0])[0]

    assert (effects(4) == effects(12)) is hides
    assert effects(1) != effects(12)


def test_neighbours_of_an_address_are_not_its_base() -> None:
    """LDGSTS to [R21] from [R22]: two of them to different places of shared memory may change places."""
    made = kernel(
        ("LDGSTS.E.128 [R21+0x800], desc[UR4][R22.64]", "R21 UR4 UR5 R22 R23", "", {"read": 0}),
        ("LDGSTS.E.128 [R21], desc[UR4][R24.64]", "R21 UR4 UR5 R24 R25", "", {"read": 0}),
        ("LDGSTS.E.128 [R21+0x808], desc[UR4][R26.64]", "R21 UR4 UR5 R26 R27", "", {"read": 0}),
        EXIT,
    )
    assert sorted(
        made.registers[r] for r, flag in zip(made.facts.read_reg, made.facts.read_flag, strict=True) if flag
    ) == [21, 21, 21]

    def events(order: list[int]) -> int:
        return made.block(np.array(order, np.int32), made.high, 0, made.begins)[0][0]

    assert events([1, 0, 2, 3]) == events([0, 1, 2, 3])  # apart
    assert events([2, 1, 0, 3]) != events([0, 1, 2, 3])  # the first and the third overlap


def many(opcode: str, count: int, field: str) -> Kernel:
    reads, writes = ("R2", "R4") if field == "write" else ("R2 R4", "")
    text = f"{opcode} R4, [R2]" if field == "write" else f"{opcode} [R2], R4"
    return kernel(*[(text, reads, writes, {field: 1})] * count, EXIT)


def test_one_kind_may_raise_a_scoreboard_any_number_of_times() -> None:
    free = raises.free()
    assert ("LDS", False) in free
    assert ("STS", True) in free
    assert ("STG", True) not in free  # lost raises, where it misses
    lone = many("LDS", 80, "write")
    lone.learnt.raised[:] = 0  # as if the compiler's own code did not show it
    assert not hazard(lone, {})
    assert hazard(lone, {0: {"read": 1}})  # its operands are another kind
    assert not hazard(lone, {0: {"read": 1}, 39: {"write": 1, "stall": 2}, 40: {"write": 1, "wait": 2}})
    unasked = many("STG", 80, "read")
    unasked.learnt.raised[:] = 0
    assert hazard(unasked, {})


def test_paths_with_different_kinds_are_several() -> None:
    assert raises.either(3, 3) == raises.either(3, raises.NOBODY) == raises.either(raises.NOBODY, 3) == 3
    assert raises.either(3, 4) == raises.either(raises.SEVERAL, 4) == raises.SEVERAL
    assert raises.raiser_of(4, 0, 3) == 3
    assert raises.raiser_of(4, 1, 3) == raises.raiser_of(3, 1, raises.NOBODY) == raises.SEVERAL


@pytest.mark.parametrize(("base", "fence", "past"), [
    ("LDL", "BAR", True), ("LDC", "LDGDEPBAR", True), ("STS", "LDGDEPBAR", True), ("STS", "BAR", False),
    ("LDGSTS", "LDGDEPBAR", False), ("LDL", "USETMAXREG", False), ("UBLKCP", "BAR", False),
])  # fmt: skip
def test_which_operands_a_fence_has_to_do_with(base: str, fence: str, past: bool) -> None:
    assert kinds.reads_are_past(base, kinds.kind(base, (), False), fence) is past


@pytest.mark.parametrize(("base", "fence", "past"), [
    ("MUFU", "BAR", True), ("F2F", "MEMBAR", True), ("LDC", "BAR", True), ("LDS", "BAR", False),
    ("LDG", "BAR", False), ("SHFL", "WARPSYNC", False), ("MUFU", "USETMAXREG", False),
])  # fmt: skip
def test_which_results_a_fence_has_to_do_with(base: str, fence: str, past: bool) -> None:
    assert kinds.result_is_past(base, kinds.kind(base, (), False), fence) is past


def test_a_reciprocal_need_not_be_there_at_a_barrier() -> None:
    def made(text: str, reads: str) -> Kernel:
        return kernel(
            (text, reads, "R8", {"write": 2, "stall": 2}),
            ("MOV R9, R8", "R8", "R9", {"wait": 4, "stall": 5}), ("BAR.SYNC 0x0", "", "", {"stall": 6}),
            ("MOV R10, R8", "R8", "R10", {"wait": 4, "stall": 5}), EXIT,
        )  # fmt: skip

    behind = [1, 0, 2, 3, 4]  # the result is pending at the barrier, and waited for behind it
    for text, reads, wrong in (("MUFU.RCP R8, R3", "R3", False), ("LDS R8, [R3]", "R3", True)):
        one = made(text, reads)
        late = one.block(np.array(behind, np.int32), one.high[behind], 0, one.begins)[3]
        assert bool(late[1] == 6) is wrong


def test_a_load_from_local_memory_need_not_have_read_its_address_at_a_barrier() -> None:
    def made(store: bool) -> Kernel:
        rows = [
            ("STS [R1], R8" if store else "LDL R8, [R1]", "R1 R8" if store else "R1", "" if store else "R8",
             {"read": 2, "stall": 2} if store else {"write": 2, "read": 2, "stall": 2}),
            ("MOV R9, R10", "R10", "R9", {"wait": 4, "stall": 2}), ("BAR.SYNC 0x0", "", "", {"stall": 6}),
            EXIT,
        ]  # fmt: skip
        return kernel(*rows)

    late = {0: {"write": 2, "read": 3, "stall": 2}}
    assert not hazard(made(False), late)
    assert hazard(made(True), {0: {"read": 3, "stall": 2}})


def test_who_vouches_is_never_wrong_where_it_was_asked() -> None:
    """No pair of the tables lost anything on a GPU; what was added from there was asked."""
    rows = json.loads((BENCHMARKS / "results" / "scoreboards.json").read_text())["rows"]
    tables = {"results": kinds.IN_ORDER_RESULTS, "reads": kinds.IN_ORDER_READS}
    asked: dict[tuple[str, str, str], set[bool]] = {}
    for row in rows:
        if row["part"] != "all pairs" or row["question"] not in tables:
            continue
        first = row["first"].split()[0].partition(".")[0]
        for right, names in ((True, row["in order"]), (False, row["wrong"])):
            for name in names:
                key = (row["question"], first, name.split()[0].partition(".")[0])
                asked.setdefault(key, set()).add(right)
    known = {(q, a, b) for q, table in tables.items() for a, later in table.items() for b in later}
    for key in (
        ("results", "LDSM", "LDS"),
        ("reads", "LDGSTS", "LDG"),
        ("reads", "LDG", "LDGSTS"),
        ("reads", "STSM", "STG"),
        ("reads", "ATOMS", "ATOMS"),
        ("reads", "SHFL", "LDS"),
        ("reads", "LDG", "LDL"),
        ("reads", "LDGSTS", "LDL"),
        ("results", "ATOMS", "LDS"),
        ("results", "SHFL", "LDSM"),
        ("results", "LDS", "ATOMS"),
        ("reads", "STG", "LDSM"),
        ("reads", "STG", "STSM"),
        ("reads", "STS", "ATOMS"),
        ("reads", "STL", "LDSM"),
        ("reads", "LDSM", "STS"),
        ("reads", "STSM", "SHFL"),
        ("reads", "ATOMS", "STG"),
        ("reads", "LDS", "STSM"),
    ):
        assert key in known
        assert asked[key] == {True}
    assert not [key for key in known if False in asked.get(key, ())]


def test_what_returns_behind_a_read_may_overwrite_it() -> None:
    """A shuffle has read its operands when a later load from shared memory returns."""
    made = kernel(
        ("SHFL.IDX PT, R5, R16, R17, 0x1f", "R16 R17", "R5", {"read": 1, "write": 2, "stall": 4}),
        ("LDS R16, [R3]", "R3", "R16", {"wait": 2, "write": 3}),
        ("FADD R6, R16, R5", "R16 R5", "R6", {"wait": 0b1100, "stall": 5}),
        EXIT,
    )
    assert not hazard(made, {1: {"write": 3}})
    plain = kernel(
        ("SHFL.IDX PT, R5, R16, R17, 0x1f", "R16 R17", "R5", {"read": 1, "write": 2, "stall": 4}),
        ("FADD R16, R3, R3", "R3", "R16", {"wait": 2, "stall": 5}),
        ("FADD R6, R16, R5", "R16 R5", "R6", {"wait": 4, "stall": 5}),
        EXIT,
    )
    assert hazard(plain, {1: {"stall": 5}})


def test_a_load_that_has_returned_tells_that_the_one_whose_address_it_overwrote_has_read() -> None:
    """LDG reads R4 and R5 late, LDL overwrites them behind it: with LDL's result there, LDG has read."""

    def made(overwritten: str, both: bool) -> Kernel:
        return kernel(
            ("LDG.E R8, desc[UR4][R4.64]", "UR4 UR5 R4 R5", "R8", {"write": 0, "read": 1}),
            (f"LDL{'.64' if both else ''} R4, [R1]", "R1", overwritten, {"write": 2, "stall": 2}),
            ("MOV R5, R4" if both else "FADD R7, R4, R4", "R4", "R5" if both else "R7",
             {"wait": 0b110, "stall": 5}),
            ("MOV R5, R7", "R7", "R5", {"stall": 5}),
            ("FADD R9, R8, R5", "R8 R5", "R9", {"wait": 1, "stall": 5}), EXIT,
        )  # fmt: skip

    only_result = {2: {"wait": 0b100, "stall": 5}}
    assert not hazard(made("R4 R5", True), only_result)
    # half of the address is overwritten: nothing is known of the other half
    half = made("R4", False)
    half.learnt.queue_read[half.names.index("LDL"), half.names.index("LDG")] = 1
    half.facts.by_read[:] = 0
    assert hazard(half, only_result)


def test_a_fence_cannot_tell_two_stores_of_a_queue_apart() -> None:
    """The compiler leaves the last STS unread at a barrier: so may the first one be, but no STG."""

    def made(last: str, *more: tuple[str, str, str, dict[str, int]]) -> Kernel:
        rows = [
            (f"STS [R{n}], R8", f"R{n} R8", "", {"read": 0 if n < 3 else 7, "stall": 4}) for n in (1, 2)
        ]  # fmt: skip
        rows += [("MOV R9, R10", "R10", "R9", {"wait": 1, "stall": 2})]
        return kernel(*rows, (last, "R3 R8" if "desc" not in last else "R4 R5 R8 UR4 UR5", "",
                              {"stall": 4}), *more, ("BAR.SYNC 0x0", "", "", {"stall": 6}), EXIT)  # fmt: skip

    unread = {0: {"stall": 4}, 1: {"stall": 4}}
    assert not hazard(made("STS [R3], R8"), unread)
    assert hazard(made("STG.E desc[UR4][R4.64], R8"), unread)
    assert made("STS [R3], R8").seen()["queued at a fence", ("BAR.SYNC", ""), ("STS", "")] == 1
    # registers given away must have been read, of each store
    gives = ("USETMAXREG.DEALLOC.CTAPOOL 0x18", "", "", {"stall": 6})
    assert hazard(made("STS [R3], R8", gives), unread)


def test_what_two_kernels_leave_unread_at_a_fence_a_third_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("STS [R1], R8", "R1 R8", "", {"read": 0, "stall": 4}),
        ("MOV R9, R10", "R10", "R9", {"wait": 1, "stall": 2}),
        ("BAR.SYNC 0x0", "", "", {"stall": 6}), EXIT,
    ]  # fmt: skip
    unread = {0: {"stall": 4}}
    assert hazard(kernel(*rows), unread)
    table = Latencies()
    monkeypatch.setattr(module, "latencies", lambda: table)
    assert hazard(kernel(*rows), unread)
    table.learn({("queued at a fence", ("BAR.SYNC", ""), ("STS", "")): (1, 1)})
    assert hazard(kernel(*rows), unread)
    table.learn({("queued at a fence", ("BAR.SYNC", ""), ("STS", "")): (1, 1)})
    assert not hazard(kernel(*rows), unread)


@pytest.mark.parametrize(("text", "found"), [
    ("FADD R0, -R0, |R40|", (0, -1, 40)), ("FMUL R0, R3, R40", (3, 40, -1)), ("IABS R13, R2", (-1, 2, -1)),
    ("FFMA R4, R5, 2, R6", (5, -1, 6)), ("IMAD R4, R5, UR4, R6", (5, -1, 6)),
    ("HADD2.F32 R3, -RZ, R8.H0_H0", (-1, -1, 8)), ("LDS R5, [R0]", (0, -1, -1)),
    ("HFMA2.MMA R3, R4, 1, 1, R6", (4, -1, 6)), ("ISETP.LT.U32.AND P2, PT, R35, R8, !P2", (35, 8, -1)),
    ("IADD3 R52, P0, R52, R53, RZ", (52, 53, -1)), ("LOP3.LUT P2, RZ, R6, 0x7, R9, 0xc0, !PT", (6, -1, 9)),
    ("HSETP2.GT.AND P2, P3, R4, R16, PT", (4, -1, 16)), ("STS.128 [R54+UR4+0x10], R32", (54, 32, -1)),
])  # fmt: skip
def test_slots_of_the_operand_cache_are_places_among_the_sources(text: str, found: tuple[int, ...]) -> None:
    every = registers(text)
    assert slots(_op(text, set(every), every, 0, 0, {})) == found


def test_a_field_that_an_opcode_does_not_use_is_no_operand() -> None:
    """FADD's third field is 0, as R0's is: its flag keeps R40, which nothing overwrites here."""

    def held(second: str, reuse: int) -> list[int]:
        made = kernel(
            ("FADD R0, R0, R40", "R0 R40", "R0", {"stall": 5, "reuse": reuse}),
            (f"MOV {second}, R0", "R0", second, {"stall": 5}),
            ("FADD R8, R0, R40", "R0 R40", "R8", {"stall": 5}),
            ("STG.E desc[UR4][R2.64], R8", "R2 R3 R8 UR4 UR5", "", {"read": 0}), EXIT,
        )  # fmt: skip
        return list(made.block(made.order, made.high, 0, made.begins)[0])

    assert held("R7", 4) == held("R7", 0)
    assert held("R40", 4) != held("R40", 0)  # the old R40 is still in its slot
