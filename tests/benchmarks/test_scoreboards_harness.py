"""Kernels that ask a GPU about scoreboards, without a GPU: disassembled, and run on an interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import scoreboards
from benchmarks.latency import build, frame, order
from sassafras.sass import Instruction, Program

sys.path.insert(0, str(Path(__file__).parent))

from sass_interpreter import Warp

OUT, MEMORY = 0x1000000, 0x710000000
SMALL = 1500


def counters(probes: list[order.Probe], late: int) -> list[dict[str, int]]:
    """Counters of a warp's two trials where what has no scoreboard is `late` cycles late."""
    container = build.container(SMALL, order.LIVE, order.THREADS, order.SHARED_BYTES, order.LOCAL_BYTES)
    code = scoreboards.words((probes, container.room))
    function = Program.parse(container.fill(code)).function(build.NAME)
    memory = {OUT + frame.COUNTER_BYTES * n + 12: 0xFFFFFFFF for n in range(len(probes))}
    constants = {
        frame.OUT: OUT, frame.MEMORY: MEMORY & 0xFFFFFFFF, frame.MEMORY + 4: MEMORY >> 32, frame.SEED: 12345,
        frame.LOOPS: 2, frame.FIRST: 0, frame.COUNT: len(probes), 0x28: 0x1000,
    }  # fmt: skip

    def cycles(producer: Instruction, consumer: Instruction, register: str) -> int:
        return late if producer.op.variable else 4

    # (an address's low word: the interpreter's constants are words)
    Warp(function, cycles, constants, memory, block=3).run()
    return [
        {name: memory.get(OUT + frame.COUNTER_BYTES * n + 4 * k, 0) for k, name in enumerate(order.COUNTERS)}
        for n in range(len(probes))
    ]


@pytest.mark.parametrize(("late", "bad"), [(2, 0), (40, 64)])
def test_a_result_that_is_late_is_counted(late: int, bad: int) -> None:
    """A's result comes 2 cycles after its issue, or 40: behind the end of the wait for B."""
    probes = [
        order.Probe("results", first, second, pressure, 1)
        for first, second in (("POPC", "BREV"), ("LDS.128", "LDS"), ("LDL", "LDS"))
        for pressure in (0, 6)
    ]
    for probe, found in zip(probes, counters(probes, late), strict=True):
        assert found["bad"] == bad, probe
        assert found["unwaited"] == 64 and found["warps"] == 2, probe


def test_operands_are_read_in_time_here() -> None:
    """The interpreter reads operands at issue: no question about them may come out wrong."""
    probes = [
        order.Probe(question, first, second, 2, 4)
        for question, first, second in (
            ("reads", "POPC", "LDS"), ("reads", "STS", "STG"), ("reads", "STG", "POPC"),
            ("reads", "STL", "LDL"),
            ("reads", "LDG", "STS address"), ("behind", "STS.128", "LDS"), ("behind", "LDS", "LDS.128"),
            ("over", "LDS.128", "LDS"),
        )
    ]  # fmt: skip
    for probe, found in zip(probes, counters(probes, 2), strict=True):
        assert found["bad"] == 0 and found["warps"] == 2, probe


def test_kernels_disassemble_as_they_were_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert scoreboards.main(["check", "--kernels", "1"]) == 0
    assert "0 differ" in capsys.readouterr().out


def pair(first: str, second: str, **counters: float) -> dict[str, object]:
    """A row of a pair as a run gives it: nothing wrong, and A 10 cycles later than B."""
    row = {"part": "pairs", "question": "reads", "first": first, "second": second, "pressure": 6,
           "distance": 1, "shape": 0, "bad": 0, "unwaited": 64, "a_cycles": 30.0, "a_least": 30,
           "b_cycles": 19.0, "wait_cycles": 40.0, "warps": 2}  # fmt: skip
    return row | counters


def test_verdicts_on_pairs() -> None:
    early = pair("LDG", "LDG scattered", a_cycles=20.0)
    rows = [
        pair("LDG", "LDG"), early, pair("LDG", "LDS", bad=1), pair("LDG", "STL", bad=64),
        # the right result that both were compared with came too late itself
        pair("LDGSTS", "LDG", bad=32, unwaited=32), pair("LDGSTS", "LDG"),
        pair("LDGSTS", "STL", bad=32, unwaited=32), pair("LDGSTS", "STL", bad=1),
    ]  # fmt: skip
    found = {(r["first"], r["second"]): (r["verdict"], r["relied"]) for r in scoreboards.by_pair(rows)}
    assert found == {
        ("LDG", "LDG"): ("in order", True), ("LDG", "LDG scattered"): ("unasked", True),
        ("LDG", "LDS"): ("wrong", False), ("LDG", "STL"): ("wrong", False),
        ("LDGSTS", "LDG"): ("doubtful", True), ("LDGSTS", "STL"): ("wrong", False),
    }  # fmt: skip
    published, summary = scoreboards.summarise(rows)
    assert (
        summary["relied"] == {"reads": {"in order": 1, "unasked": 1, "doubtful": 1}} and summary["wrong"] == 3
    )
    assert summary["relied_asked"] == 2, "a pair that came out doubtful, or wrong, was tested"
    (gathered,) = (r for r in published if r["part"] == "all pairs" and r["first"] == "LDG")
    assert gathered["in order"] == ["LDG"] and gathered["wrong"] == {"LDS": 1, "STL": 64}


def test_nothing_that_is_relied_on_came_out_wrong() -> None:
    """The tables against what a GPU answered, by the names that a pair has in them now."""
    found = json.loads((scoreboards.ROOT / "benchmarks" / "results" / "scoreboards.json").read_text())
    wrong = [
        (row["question"], row["first"], second)
        for row in found["rows"] if row["part"] == "all pairs" for second in row["wrong"]
        if order.relied(row["question"], order.OPS[row["first"]], order.OPS[second])
    ]  # fmt: skip
    assert not wrong and found["summary"]["wrong"] > 1000


def test_lines_of_other_probes_or_of_another_gpu_are_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line names its kernel by number alone; which probes that has follows from the code."""
    monkeypatch.setenv("LATENCY_PRETEND", "1")
    jobs = scoreboards.batches()[:3]
    lines = [
        {"kernel": 0, "of": scoreboards.of(jobs[0], "pretended"), "counters": [], "crashed": []},
        {"kernel": 1, "of": scoreboards.of(jobs[1][1:], "pretended"), "counters": [], "crashed": []},
        {"kernel": 2, "of": scoreboards.of(jobs[2], "NVIDIA H200"), "counters": [], "crashed": []},
    ]
    (tmp_path / "journal").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sitting = scoreboards.Sitting(tmp_path / "journal", 0.0)
    sitting.station.pretend = True
    assert not sitting.run(jobs, 1), "there is no time for the other two"
    assert set(sitting.done) == {0}
