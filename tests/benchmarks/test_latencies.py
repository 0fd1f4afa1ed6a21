"""Measured latencies without a GPU: words, kernels, distances, the harness and its tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import latencies
from benchmarks.latency import build, frame, plan, report, words, worker
from benchmarks.latency.analysis import ENOUGH, Tally
from sassafras.core import SassafrasError
from sassafras.sass import Instruction, Program
from sassafras.sass.control import Control
from sassafras.sass.latency import LatencyTable
from sassafras.sass.latency.mining import Miner
from sassafras.sass.registers import GPR, UGPR
from sassafras.validate import Validator

sys.path.insert(0, str(Path(__file__).parent))

from sass_interpreter import Warp

#: what the interpreter knows
KNOWN = frozenset(
    [
        "MOV", "IMAD", "IADD3", "LOP3", "SHF", "SEL", "ISETP", "FSETP", "FADD", "FMUL", "FFMA", "R2UR",
        "UMOV",
        "UIADD3", "UIMAD", "UISETP", "USEL", "ULDC", "ULOP3", "LDS", "LDG", "STS", "STG", "BRA",
    ]
)  # fmt: skip
#: instructions in a small container
SMALL = 1500
OUT, MEMORY = 0x1000000, 0x7F0000000
#: processes and nvdisasm on a machine that may be busy
pytestmark = pytest.mark.timeout(900)


def encodable(high: int) -> bool:
    """Whether stall and yield, one field of five bits, are a combination that ptxas emits."""
    field = high >> 41 & 0x1F
    return field <= 15 or 17 <= field <= 27


@pytest.fixture(scope="module")
def book() -> words.Book:
    return plan.measurable()[0]


@pytest.fixture(scope="module")
def chosen() -> list[tuple[frame.Probe, list[str]]]:
    """Every pair that can be measured, with its row."""
    return plan.measurable()[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small plan."""
    place = tmp_path_factory.mktemp("plan")
    plan.make(place, 60)
    return place


def program(batch: build.Batch | plan.PlannedBatch, distance: int, hint: bool = False) -> tuple[bytes, Any]:
    room = next(c for c in map(build.container, (SMALL, build.MOST)) if c.room == len(batch.words))
    data = room.fill(build.patch(batch.words, batch.slots, distance, hint))
    return data, Program.parse(data).function(build.NAME)


def test_a_word_book_assembles_what_it_was_read_from(book: words.Book) -> None:
    """The container itself, harvested and assembled again, is the same code."""
    room = build.container(300)
    function = Program.parse(room.cubin).function(build.NAME)
    tried = 0
    for i in function.instructions[: room.room]:
        try:
            low, high = book.assemble(i.text, i.control)
        except words.NoSuchForm:
            continue
        assert (low, high) == (i.low, i.high), i.text
        tried += 1
    assert tried > 350


def test_text_that_the_book_lacks_is_refused(book: words.Book) -> None:
    with pytest.raises(words.NoSuchForm, match="no word of the form"):
        book.assemble("HADD9 R0, R1", Control(1, False, None, None, 0, 0))


def test_the_plan_covers_the_classes_that_matter(chosen: list[tuple[frame.Probe, list[str]]]) -> None:
    """Every pair was disassembled again and stands in exactly one operand; these must be among them."""
    rows = {tuple(row) for _, row in chosen}
    assert len(rows) == len(chosen) > 15_000
    for key in (*report.KNOWN_TOO_SHORT, ("raw", "IADD3", "1p0", "IADD3.X", "4p0"),
        ("raw", "IMAD.WIDE", "0+1", "LDG", "1a+1"), ("raw", "IMAD", "0", "IMAD.WIDE", "3+1"),
        ("raw", "R2P", "0", "SEL", "3p0"), ("raw", "HMMA.16816.F32", "0+2", "HMMA.16816.F32", "3+2"),
        ("raw", "R2UR", "0", "LDS", "1u"), ("raw", "DFMA", "0", "DFMA", "3"),
        ("raw", "ULDC", "0", "IMAD", "2"),
        ("raw", "ISETP", "0p0", "LDG", "G"), ("raw", "PLOP3", "0p0", "PLOP3", "0p2"),
        ("raw", "P2R", "0", "LOP3", "1"),
        ("raw", "FSETP", "0p0", "BRA", "G"),
        ("war", "UIMAD", "1", "ULDC.64", "0"), ("war", "HMMA.16816.F32", "1", "MOV", "0"),
        ("waw", "IMAD", "0", "MOV", "0"), ("war", "LDS", "1u", "UMOV", "0")):  # fmt: skip
        assert key in rows, key


def test_wide_operands_are_aligned(chosen: list[tuple[frame.Probe, list[str]]]) -> None:
    """The hardware stops at a pair that begins at an odd register; nvdisasm does not mind."""
    catalogue, tried = plan.measurable()[1], 0
    for text in {t for p, _ in chosen for t in (p.first, p.second, *p.before, *p.after)}:
        i = catalogue.instruction(text)
        for operand in i.operands:
            name = operand.split(".")[0].lstrip("-|")
            base = UGPR if name.startswith("UR") else GPR
            number = name.lstrip("UR")
            if not name.startswith(("R", "UR")) or not number.isdigit():
                continue
            first = base + int(number)
            size = 0
            while first + size in i.reads | i.writes and size < 4:
                size += 1
            mods = i.opcode.split(".")
            wide = (
                4 if "128" in mods else 2 if "64" in mods or i.base in ("DADD", "DMUL", "DFMA", "CS2R") else 1
            )
            if i.base in ("HMMA", "IMMA") and operand in (i.operands[0], i.operands[3]):
                wide = 4
            if "WIDE" in mods and operand in (i.operands[0], i.operands[3]):
                wide = 2
            if i.opcode == "CS2R.32" or i.base in ("SHF", "LDSM"):
                continue
            tried += wide > 1
            assert int(number) % wide == 0, text
            assert size >= wide, text
    assert tried > 80


def test_a_mined_row_that_many_kernels_meet_is_measured(chosen: list[tuple[frame.Probe, list[str]]]) -> None:
    """Most of what the mined table rests on, by pairs seen, has a measurement of its own."""
    rows = {tuple(row) for _, row in chosen}
    mined = {k: v for k, v in LatencyTable.load("sm_90").rows.items() if k[0] == "raw"}
    assert sum(v.samples for k, v in mined.items() if k in rows) > 0.7 * sum(
        v.samples for v in mined.values()
    )


@pytest.mark.parametrize("distance", [1, 11, 15, 16, 45])
def test_patched_distances_decode(folder: Path, distance: int) -> None:
    """The stall counts between the two instructions add up to the distance; nothing else has changed."""
    batch = plan.load(folder).batches[0]
    _, function = program(batch, distance)
    code = function.instructions
    for start, (first, second, *_) in zip(batch.slots, batch.texts, strict=True):
        a = next(i.index for i in code[start : start + frame.IDLE + 1] if i.text == first)
        b = start + frame.IDLE + 1
        assert code[b].text == second or second.endswith(frame.SKIP)
        assert sum(i.control.stall for i in code[a:b]) == distance
        assert sum(i.text == "NOP" for i in code[start:b]) == frame.IDLE
        assert all(encodable(i.high) for i in code[start:b])
    assert worker.distance_in(function.words, batch.slots[0]) == distance


def test_yield_hints_and_bad_distances(folder: Path) -> None:
    batch = plan.load(folder).batches[0]
    plain, hinted = build.patch(batch.words, batch.slots, 4), build.patch(batch.words, batch.slots, 4, True)
    changed = np.flatnonzero((plain != hinted).any(axis=1))
    assert changed.tolist() == [s + frame.IDLE for s in batch.slots]
    assert all(Control.decode(int(hinted[n, 1])).yield_hint and encodable(int(hinted[n, 1])) for n in changed)
    for distance, hint in ((0, False), (46, False), (12, True)):
        with pytest.raises(ValueError):
            build.patch(batch.words, batch.slots, distance, hint)


def test_the_validator_refuses_what_is_too_close(
    chosen: list[tuple[frame.Probe, list[str]]], book: words.Book
) -> None:
    """The kernels are sound code, and pairs below what the mined table trusts are illegal in them."""
    wanted = {
        ("raw", "IADD3", "0", "IADD3", "1"),
        ("raw", "ISETP", "0p0", "MOV", "G"),
        ("raw", "FADD", "0", "STG", "1"),
    }
    some = [p for p, row in chosen if tuple(row) in wanted]
    (batch,) = build.batches(some, book, SMALL)
    original, _ = program(batch, 15)
    judge = Validator(original, build.NAME)
    assert not judge.unsupported
    assert judge.check(original).ok
    assert judge.check(program(batch, 13)[0]).ok
    for distance, illegal in ((12, 1), (3, 3), (1, 3)):
        found = judge.check(program(batch, distance)[0])
        assert not found.ok
        # each pair stands twice in a loop that the validator goes round, but once as a place
        assert len({v.where for v in found.violations if v.kind == "raw"}) == illegal, str(found.violations)


def test_nothing_but_the_pairs_is_too_close(folder: Path) -> None:
    """No dependence anywhere in a kernel is closer than what ptxas keeps, when the pairs are far apart."""
    table = LatencyTable.load("sm_90")
    for batch in plan.load(folder).batches[:3]:
        _, function = program(batch, 45 if batch.slow else 15)
        assert not function.pinned_reason and not any(i.unexplained for i in function.instructions)
        for sample in Miner("sm_90").samples(function, "kernel"):
            known = table.distance(*sample.key)
            assert known is None or sample.cycles >= known.cycles, sample


def run(batch: build.Batch, distance: int, latency: int) -> list[list[int]]:
    """Counters of a kernel after a warp's two loops on the interpreter."""
    _, function = program(batch, distance)
    memory: dict[int, int] = {}
    for n in range(len(batch.probes)):
        for at, value in ((12, 0xFFFFFFFF), (frame.LIMIT, build.clock_cycles(distance))):
            memory[OUT + frame.COUNTER_BYTES * n + at] = value
    constants = {
        frame.OUT: OUT, frame.MEMORY: MEMORY & 0xFFFFFFFF, frame.MEMORY + 4: MEMORY >> 32, frame.SEED: 12345,
        frame.LOOPS: 2, frame.FIRST: 0, frame.COUNT: len(batch.probes),
    }  # fmt: skip

    def cycles(producer: Instruction, consumer: Instruction, register: str) -> int:
        return latency

    Warp(function, cycles, constants, memory, block=3).run()
    return [
        [memory.get(OUT + frame.COUNTER_BYTES * n + 4 * k, 0) for k in range(len(frame.COUNTERS))]
        for n in range(len(batch.probes))
    ]


def test_kernels_count_faults_exactly_below_the_latency(
    chosen: list[tuple[frame.Probe, list[str]]], book: words.Book
) -> None:
    """On an interpreter with a latency of 6: every trial would show a fault; at 5 all do, at 6 none does."""
    catalogue = plan.measurable()[1]

    def plain(text: str) -> bool:
        i = catalogue.instruction(text)
        mods = i.opcode.split(".")
        return (
            i.base in KNOWN and "EX" not in mods and not ("HI" in mods and (i.base == "IMAD" or "L" in mods))
        )

    able = [p for p, _ in chosen if all(map(plain, (p.first, p.second, *p.before, *p.after)))]
    assert len(able) > 2000
    picked = np.random.default_rng(7).permutation(len(able))[:36]
    for batch in build.batches([able[n] for n in sorted(picked)], book, SMALL):
        for distance in (6, 5):
            for probe, (bad, odd, counted, shortest, warps) in zip(
                batch.probes, run(batch, distance, 6), strict=True
            ):
                assert warps == 2 and (shortest == build.clock_cycles(distance) or probe.loose), probe
                assert counted >= 24, probe
                if probe.kind == "raw" and distance < 6:
                    assert bad >= counted and odd == 0, probe
                else:
                    assert bad == 0, probe


def test_pretended_run_finds_the_made_up_latencies(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole harness in real processes; the distances are read back out of the patched cubins."""
    arguments = ["run", "--folder", str(folder), "--pretend", "--seconds", "600", "--out", str(tmp_path)]
    arguments += ["--turns", "1"]
    latencies.main(arguments)
    result = json.loads((tmp_path / "latencies.json").read_text())
    assert result["environment"] == {"gpu": "pretended"} and result["summary"]["swept"]
    assert len(result["rows"]) == 60
    for row in result["rows"]:
        key = [row[k] for k in ("kind", "producer", "producer_slot", "consumer", "consumer_slot")]
        assert row["status"] == "measured" and row["cycles"] == worker.pretended_latency(key), row
        assert row["trials"] >= ENOUGH and row["below"][0] == row["below"][1] > 0
        assert 0 < row["bound"] < 0.01
    lines = (tmp_path / "latencies-journal.jsonl").read_text().splitlines()
    # again: nothing of the sweep is run twice, also behind a line that was cut off
    (tmp_path / "latencies-journal.jsonl").write_text("\n".join(lines[:40]) + "\n" + lines[40][:30])
    latencies.main(arguments)
    assert "runs are in latencies-journal.jsonl already" in capsys.readouterr().out
    again = (tmp_path / "latencies-journal.jsonl").read_text().splitlines()
    assert again[:40] == lines[:40]
    for other in ({"pretend": False}, {"gpu": "NVIDIA H200"}):
        head = json.dumps(json.loads(lines[0]) | other)
        (tmp_path / "latencies-journal.jsonl").write_text("\n".join([head, *lines[1:]]) + "\n")
        assert latencies.main(arguments) == 2
        assert "the journal is of another GPU, or pretended" in capsys.readouterr().out
    keys = [
        json.dumps([line.get(k) for k in ("batch", "distance", "yield", "turn")])
        for line in map(json.loads, again)
    ]
    assert len(set(keys)) == len(keys)


def test_crashes_and_hangs_cost_one_pair(folder: Path, tmp_path: Path) -> None:
    """A consumer that hangs or kills the process at a distance of 2: that fails, the others go on."""
    made = plan.load(folder)
    batch = next(b for b in made.batches if not b.slow and b.rows[0][0] == "raw")
    row = batch.rows[0]
    small = plan.save(
        tmp_path / "plan",
        made.container,
        # kernel 0 hangs, kernel 1 kills
        [
            plan.PlannedBatch(n, batch.rows[:2], batch.texts[:2], batch.slots[:2], False, batch.words)
            for n in (0, 1)
        ],
        [],
        "",
    )
    assert small.pairs == 4 and row[3] != batch.rows[1][3]
    latencies.main([
        "run", "--folder", str(tmp_path / "plan"), "--pretend", "--fault", row[3], "--out", str(tmp_path),
        "--seconds", "600", "--turns", "1",
    ])  # fmt: skip
    rows = json.loads((tmp_path / "latencies.json").read_text())["rows"]
    for faulty, other in (rows[:2], rows[2:]):
        assert faulty["distances"]["2"] == "crashed" and "1" not in faulty["distances"]
        assert faulty["cycles"] == worker.pretended_latency(row)
        assert other["status"] == "measured" and other["distances"]["1"] != "crashed"


def test_plans_and_journals_that_do_not_belong_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SassafrasError, match="no plan here"):
        plan.load(tmp_path)
    made = plan.load(folder)
    (tmp_path / "journal").write_text('{"plan": "another"}\n')
    with pytest.raises(SassafrasError, match="another plan"):
        Tally(made).read(tmp_path / "journal")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / "container.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "container.bin").write_bytes(bytes(data))
    with pytest.raises(SassafrasError, match="do not belong together"):
        plan.load(tmp_path)


def counted(distances: dict[int, tuple[int, int]]) -> dict[str, Any]:
    """Journal lines of a plan with one probe."""
    return {
        "lines": [
            {"batch": 0, "distance": d, "yield": y, "turn": 0, "bad": [bad], "odd": [0], "counted": [c],
             "warps": [2000], "crashed": [], "bad_by_shape": [bad, 0, 0]}
            for d, (bad, c) in distances.items() for y in ((0, 1) if d <= 11 else (0,))
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "status", "cycles"),
    [
        ({15: (0, 64000), 5: (0, 64000), 4: (1, 64000), 3: (64000, 64000)}, "measured", 5),
        # one wrong lane above what looked right: that is the latency
        ({15: (0, 64000), 6: (0, 64000), 5: (1, 64000), 4: (0, 64000), 3: (64000, 64000)}, "measured", 6),
        # what was not tried lies on the safe side
        ({15: (0, 64000), 4: (64000, 64000)}, "measured", 15),
        (dict.fromkeys(range(1, 16), (0, 64000)), "never failed", 1),
        ({15: (64000, 64000), 14: (64000, 64000)}, "always wrong", 0),
        ({15: (0, 0), 3: (0, 0)}, "blind", 0),
        # too few trials prove nothing
        ({15: (0, 64000), 5: (0, 64), 4: (64, 64)}, "measured", 15),
        ({}, "unfinished", 0),
    ],
)
def test_what_counters_say(folder: Path, seen: dict[int, tuple[int, int]], status: str, cycles: int) -> None:
    tally = Tally(plan.load(folder))
    for line in counted(seen)["lines"]:
        tally.add(line)
    result = tally.result(0, 0)
    assert (result.status, result.cycles) == (status, cycles)


def test_a_measurement_that_misses_a_known_fault_is_not_sound() -> None:
    """The self-check can fail: a pair that everybody knows to be too close came out right."""
    key = ("raw", "FFMA", "0", "FFMA", "1")
    row: dict[str, Any] = dict(
        zip(("kind", "producer", "producer_slot", "consumer", "consumer_slot"), key, strict=True)
    )
    row |= {"status": "measured", "relation": "same", "bound": 1e-4, "trials": 1000, "mined": 4, "cycles": 4}
    row |= {"allowed": 4, "mined_trusted": True, "fault": 3}

    class Counted:
        runs, bad_by_shape = 1, (0, 0, 0)

    good = report.summary([{**row, "distances": {"1": [5, 64], "2": [64, 64]}}], Counted())  # type: ignore[arg-type]
    assert good["sound"] and good["known_too_short_tried"] == 2
    missed = report.summary([{**row, "distances": {"1": [0, 64], "2": [64, 64]}}], Counted())  # type: ignore[arg-type]
    assert not missed["sound"] and missed["known_too_short_missed"] == [[*key, 1]]
    nothing = report.summary([{**row, "distances": {}}], Counted())  # type: ignore[arg-type]
    assert not nothing["sound"]
