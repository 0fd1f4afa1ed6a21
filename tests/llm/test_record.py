"""Runs in a folder: prompts out, answers back, resumed and replayed from there alone; faults are said."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from sassafras import search
from sassafras.api.evolve import replay_run
from sassafras.core import Budget
from sassafras.llm.archive import Archive
from sassafras.llm.evolve import Evolve
from sassafras.llm.exchange import Exchange
from sassafras.llm.proposer import ProposerError, Reply, Request
from sassafras.llm.record import Record, RecordError, Task, cut_off
from sassafras.llm.rounds import Rounds, prompt_seed, replay

from .test_evolve import Dice, Numbers

SETTINGS = {"width": 2, "proposals": 4, "give_up": 0}
TASK = Task("find the number", "A JSON object.", '{"n": 0}')


def go(folder: Path, seconds: float = 60, proposer: object = None) -> Evolve:
    """One sitting of a run in a folder."""
    record = Record(folder)
    record.agree({"seed": 0, "task": "numbers"})
    strategy = Evolve(proposer or Exchange(), **SETTINGS)  # type: ignore[arg-type]
    strategy.record, strategy.task = record, TASK
    search.run(strategy, Numbers(), Numbers(), Budget(seconds=seconds))
    return strategy


def say(folder: Path, number: int, text: str) -> None:
    (folder / f"{number:04d}.answer.md").write_text(text)


def names(folder: Path, what: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*.{what}.md"))


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A run of two generations, its second prompt answered late, its third proposal a repair."""
    folder = tmp_path / "run"
    assert go(folder).waiting == 2
    say(folder, 2, '{"n": 7}')
    assert go(folder).waiting == 1
    say(folder, 1, '{"n": 20}')
    assert go(folder).waiting == 2 and names(folder, "prompt")[-1] == "0004.prompt.md"
    say(folder, 3, '{"n": 8}')
    say(folder, 4, '{"n": 40}')
    strategy = go(folder)
    assert not strategy.waiting and strategy.stopped == "4 proposals were made"
    return folder


def again(folder: Path) -> Record:
    return replay(Record(folder), Evolve(None, **SETTINGS), TASK, prompt_seed(0))


def test_a_setting_of_another_run_is_shown_where_it_differs(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.agree({"settings": {"exemplars": 3, "width": 2, "zeal": "much " * 20}, "text": "a" * 100})
    for other, shown in (
        ({"exemplars": 3, "width": 4, "zeal": "much " * 20}, ('"width": 2,', '"width": 4,')),
        ({"width": 2, "exemplars": 3, "zeal": "much " * 20 + "."}, ('much "}, not', 'much ."}')),
        ("none", ('{"exemplars": 3, ', 'not "none"')),
    ):
        with pytest.raises(RecordError) as caught:
            record.agree({"settings": other, "text": "a" * 100})
        assert all(part in str(caught.value) for part in shown), caught.value


def test_a_run_goes_on_from_its_folder_and_replays_to_the_same_archive(done: Path) -> None:
    repair = (done / "0003.prompt.md").read_text()
    assert "It does not compile" in repair and "7 is odd" in repair
    other = (done / "0004.prompt.md").read_text()
    assert "score 1.500" in other and "2 authors are asked alike, you are number 2" in other
    made = again(done)
    kept = {v.digest: v for v in Archive.load(done / "archive.jsonl")}
    assert {v.digest: v for v in made.archive()} == kept and len(kept) == 5
    best = made.archive().best
    assert best is not None and best.text == '{"n": 40}' and best.measured["null"]["speedup"] == 1.0
    before = (done / "transcript.jsonl").read_text().count('"judged"')
    go(done)
    assert (done / "transcript.jsonl").read_text().count('"judged"') == before, "nothing is judged twice"


def test_prompts_are_the_same_in_one_sitting_and_in_many(done: Path, tmp_path: Path) -> None:
    """Order and time of the answers make no difference."""
    other = tmp_path / "other"
    go(other)
    for number in (1, 2):
        shutil.copy(done / f"{number:04d}.answer.md", other)
    go(other)
    for name in names(done, "prompt"):
        assert (other / name).read_bytes() == (done / name).read_bytes()


def test_prompts_may_be_written_where_the_answers_are_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder)
    say(folder, 1, '{"n": 2}')
    say(folder, 2, '{"n": 4}')
    record = Record(folder)
    strategy = Evolve(Exchange(), **SETTINGS)  # type: ignore[arg-type]
    strategy.record, strategy.task, strategy.ahead = record, TASK, False
    search.run(strategy, Numbers(), Numbers(), Budget(seconds=60))
    assert strategy.waiting == 2 and not (folder / "0003.prompt.md").exists() and record.judged[2].score
    rounds = Rounds(strategy, TASK, Record(folder), prompt_seed(0))
    for number in rounds.open():
        rounds.ask(number)
    assert "score 1.100" in (folder / "0003.prompt.md").read_text()
    assert len(again(folder).archive()) == 3


def test_any_proposer_leaves_the_same_record(tmp_path: Path) -> None:
    strategy = go(tmp_path / "dice", proposer=Dice())
    assert strategy.tally.proposed == 4 and len(names(tmp_path / "dice", "answer")) == 4
    assert len(again(tmp_path / "dice").archive()) == len(strategy.archive)


def test_an_answer_that_was_paid_for_is_not_asked_for_again(tmp_path: Path) -> None:
    """Killed between an answer and its verdict."""
    folder = tmp_path / "run"
    go(folder, proposer=Dice())
    path = folder / "transcript.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if '"judged"' in line)
    path.write_text("".join(lines[:last]))
    strategy = go(folder)  # the proposer that never answers
    assert not strategy.waiting and strategy.tally.proposed == 4


def test_a_transcript_cut_off_in_the_middle_of_a_line_loses_that_line_alone(done: Path) -> None:
    path = done / "transcript.jsonl"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: last + 25])
    record = Record(done)
    assert record.dropped == 25 and path.read_bytes() == whole[:last]
    assert not go(done).waiting
    assert len(again(done).archive()) == 5


def test_a_broken_line_in_the_middle_is_named(done: Path) -> None:
    path = done / "transcript.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:30], *lines[2:]]) + "\n")
    with pytest.raises(RecordError, match="no event") as caught:
        Record(done)
    assert caught.value.where == f"{path}:2"


def test_an_answer_that_is_cut_off_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder)
    say(folder, 1, 'Here:\n```json\n{"n": 2')
    assert go(folder).waiting == 2 and not Record(folder).judged.keys() & {1}
    say(folder, 1, 'Here:\n```json\n{"n": 2}\n```\n')
    assert go(folder).waiting == 1
    assert cut_off("```\na\n~~~\n") and not cut_off("a\n```\nb\n```")


def test_an_answer_changed_after_it_was_judged_is_refused(done: Path) -> None:
    say(done, 4, '{"n": 12}')
    with pytest.raises(RecordError, match="changed after it was judged"):
        again(done)


def test_an_answer_with_returns_is_the_one_that_was_judged(tmp_path: Path) -> None:
    """A file is read with its line ends made one; those of the proposer's text were not."""

    class Windows(Exchange):
        def propose(self, request: Request) -> Reply:
            return Reply(f'Well:\r\n{{"n": {request.number}}}\r')

    assert go(tmp_path, proposer=Windows()).stopped == "4 proposals were made"
    assert go(tmp_path).stopped == "4 proposals were made"
    assert Record(tmp_path).answer(1)


@pytest.mark.parametrize("text", ["[1]", "5", '"x"', "[" * 100_000])
def test_settings_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(RecordError, match="not a folder of proposals"):
        Record(tmp_path)


@pytest.mark.parametrize(
    "facts",
    [
        {"score": "fast"},
        {"score": math.nan},
        {"score": 0.0},
        {"digest": []},
        {"number": 1e999},
        {"text": None},
    ],
)
def test_an_event_with_a_value_of_no_use_is_refused(tmp_path: Path, facts: dict[str, object]) -> None:
    event = {"kind": "judged", "digest": "d", "parent": "", "text": "", "score": 1.0, "verdict": "correct"}
    (tmp_path / "transcript.jsonl").write_text(json.dumps(event | {"number": 1} | facts) + "\n")
    with pytest.raises(RecordError, match="an event 'judged' lacks something"):
        Record(tmp_path)


@pytest.mark.parametrize("change", [{"settings": {"new": 1}}, {"task": None}, {"seed": "x"}])
def test_a_replay_of_another_version_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    settings = {"settings": SETTINGS, "task": {"text": "t"}, "seed": 0} | change
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(RecordError, match="damaged, or another version's"):
        replay_run(tmp_path)


def test_a_prompt_without_a_number_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "transcript.jsonl").write_text('{"kind": "prompt", "number": -3}\n')
    with pytest.raises(RecordError, match="from 1 up"):
        Record(tmp_path)


def test_a_transcript_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "transcript.jsonl").mkdir()
    with pytest.raises(RecordError, match="cannot be used"):
        Record(tmp_path)


def test_two_answers_to_one_prompt_are_refused(done: Path) -> None:
    path = done / "transcript.jsonl"
    line = next(text for text in path.read_text().splitlines() if '"number": 4, "generation": 2' in text)
    event = next(
        json.loads(t)
        for t in path.read_text().splitlines()
        if '"judged"' in t and json.loads(t)["number"] == 4
    )
    assert line
    with path.open("a") as file:
        file.write(json.dumps({**event, "answer": "0" * 64}) + "\n")
    with pytest.raises(RecordError, match="two answers to prompt 4"):
        Record(done)


def test_the_same_answer_to_two_prompts_is_a_duplicate(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder)
    say(folder, 1, '{"n": 4}')
    say(folder, 2, '{"n": 4}')
    strategy = go(folder)
    assert strategy.tally.duplicate == 1 and strategy.tally.compiled == 1
    assert "the kernel of prompt 1" in Record(folder).judged[2].detail


def test_a_folder_that_vanishes_is_said_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder)
    record = Record(folder)
    away = tmp_path / "away"
    folder.rename(away)
    with pytest.raises(RecordError, match="cannot be used") as caught:
        record.append("metrics", digest="x", metrics={})
    assert "the same command goes on" in str(caught.value.hint) and not folder.exists()
    with pytest.raises(RecordError, match="cannot be used"):
        record.answer(1)
    away.rename(folder)
    say(folder, 1, '{"n": 2}')
    assert go(folder).waiting == 1


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    Record(tmp_path).agree({"seed": 0, "prompts": {"width": 2}})
    with pytest.raises(RecordError, match=r"has seed = 0, not 1"):
        Record(tmp_path).agree({"seed": 1, "prompts": {"width": 2}})
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(RecordError, match="not a folder of proposals"):
        Record(tmp_path)


@pytest.mark.parametrize("name", ["0004.prompt.md", "transcript.jsonl"])
def test_a_replay_finds_what_was_changed(done: Path, name: str) -> None:
    text = (done / name).read_text()
    changed = (
        text.replace("score 1.500", "score 1.501") if "prompt" in name else text.replace("1.5,", "1.25,")
    )
    assert changed != text
    (done / name).write_text(changed)
    with pytest.raises((ProposerError, RecordError)):
        again(done)


def test_ablations_leave_out_what_they_say(done: Path) -> None:
    """The words of one prompt with and without each part."""
    record = Record(done)
    record.append(
        "metrics", digest=record.judged[1].digest, metrics={"duration_ns": 5, "stalls": {"wait": 2}}
    )
    record.append("reference", device="a GPU", baseline_us=2.0, rival={"name": "cuBLASLt", "ratio": 0.9})

    def words(**settings: object) -> str:
        rounds = Rounds(Evolve(None, **{**SETTINGS, **settings}), TASK, record, 0)
        return rounds.request(rounds.plan(4)).text

    whole = words()
    assert "Measured by ncu" in whole and "wait 2" in whole and "cuBLASLt takes 0.900" in whole
    assert "Measured by ncu" not in words(metrics=False) and "Earlier variants" in words(metrics=False)
    plain = words(contrastive=False)
    assert "Earlier variants" not in plain and "score" not in plain
    unmeasured = record.judged[0].digest
    del record.metrics[record.judged[1].digest]
    record.append("metrics", digest=unmeasured, metrics={"unavailable": "ncu is not installed"})
    assert "no profiler metrics (ncu is not installed)" in words()
