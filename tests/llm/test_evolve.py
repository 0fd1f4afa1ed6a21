"""The strategy and its wiring: evolve on real builds, by chance and by an endpoint on loopback, resumed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from sassafras import search
from sassafras.core import Budget, Candidate, Evaluation, Kernel, SearchError, Verdict
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.llm.answer import AnswerError
from sassafras.llm.evolve import Evolve
from sassafras.llm.proposer import ProposerError, Reply, Request, SpendingCap
from sassafras.llm.spending import Spend

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "evolve"


class Numbers:
    """A space of whole numbers in JSON: the cost is the distance from 40, odd numbers do not compile."""

    form = "A JSON object."

    def start(self) -> int:
        return 0

    def sample(self, state: int, rng: np.random.Generator) -> int:
        return int(rng.integers(-3, 9))

    def apply(self, state: int, move: int) -> int:
        return state + move

    def candidate(self, state: int) -> Candidate:
        return Candidate(Kernel(str(state).encode(), "k", "sm_90a", 32), {"state": state})

    def brief(self) -> str:
        return "find the number"

    def show(self, state: int) -> str:
        return json.dumps({"n": state})

    def read(self, text: str, parent: int, origin: str = "") -> int:
        found = re.findall(r"\{[^{}]*\}", text)
        value = json.loads(found[-1]).get("n") if found else None
        if not isinstance(value, int):
            raise AnswerError("n must be a whole number")
        return value

    def evaluate(self, candidate: Candidate) -> Evaluation:
        state = candidate.recipe["state"]
        if state % 2:
            return Evaluation(candidate.digest, Verdict.COMPILE_ERROR, detail=f"{state} is odd")
        speedup = 2.0 - min(abs(state - 40), 40) / 40
        return Evaluation(candidate.digest, Verdict.CORRECT, speedup=speedup)


class Scripted:
    """Answers from a list; then it is dead."""

    name = "scripted"

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def propose(self, request: Request) -> Reply:
        self.asked.append(request)
        if not self.answers:
            raise ProposerError("nobody answers", hint="start it")
        return Reply(self.answers.pop(0), "scripted", 100, 10)


def run(strategy: Evolve, evaluations: int = 50, seed: int = 0) -> search.Finished:
    space = Numbers()
    return search.run(strategy, space, space, Budget(evaluations=evaluations), seed=seed)


class Dice:
    """The parent's number and what the request's seed throws."""

    name = "dice"

    def propose(self, request: Request) -> Reply:
        step = int(np.random.default_rng(request.seed).integers(-3, 9))
        return Reply(json.dumps({"n": json.loads(request.parent)["n"] + step}))


def test_chance_finds_better_and_is_reproducible() -> None:
    first, again = (run(Evolve(Dice()), 60, 3) for _ in range(2))
    assert first.best.outcome.speedup > 1.5
    assert first.best.state == again.best.state and first.verdicts == again.verdicts


def test_answers_are_judged_repaired_and_counted() -> None:
    proposer = Scripted(
        '{"n": 8}', "I refuse", '{"n": "x"}', '{"n": 9}', '{"n": 10}', '{"n": 8}', '{"n": 40}'
    )
    strategy = Evolve(proposer, give_up=99)
    with pytest.raises(ProposerError, match=r"nobody answers; 5 variants were judged, the best at 2\.000x"):
        run(strategy)
    tally = strategy.tally
    assert (tally.proposed, tally.unreadable, tally.duplicate, tally.faster) == (7, 2, 1, 3)
    assert (tally.compiled, tally.correct) == (3, 3)
    said = proposer.asked[4].messages[-1]["content"]
    assert "does not compile" in said and "9 is odd" in said
    assert len({request.seed for request in proposer.asked}) == len(proposer.asked)
    best = strategy.archive.best
    assert best is not None and best.text == '{"n": 40}'
    line = [best]
    while (parent := strategy.archive.get(line[-1].parent)) is not None:
        line.append(parent)
    assert line[-1].text == '{"n": 0}', "every variant names its parent"


def test_contrast_shows_scores_and_plain_does_not() -> None:
    for contrastive in (True, False):
        proposer = Scripted(*(json.dumps({"n": 2 * i}) for i in range(1, 8)))
        with pytest.raises(ProposerError):
            run(Evolve(proposer, contrastive=contrastive))
        text = proposer.asked[-1].messages[1]["content"]
        assert ("Earlier variants" in text) is contrastive
        assert ("score" in text) is contrastive


def test_useless_answers_end_the_search() -> None:
    strategy = Evolve(Scripted(*["no"] * 99), give_up=5, repairs=0)
    finished = run(strategy)
    assert finished.reason == "returned" and "5 answers in a row" in strategy.stopped


def test_a_cap_ends_the_search_with_its_best() -> None:
    class Capped(Scripted):
        def propose(self, request: Request) -> Reply:
            if not self.answers:
                raise SpendingCap("all spent")
            return super().propose(request)

    strategy = Evolve(Capped('{"n": 20}'))
    assert run(strategy).best.state == 20 and strategy.stopped == "all spent"


def test_settings_are_checked_and_identify_the_search() -> None:
    for wrong in ({"explore": 2}, {"edits": 0}, {"temperature": -1}):
        with pytest.raises(SearchError):
            Evolve(None, **wrong)
    settings = search.settings_of(Evolve(Scripted(), exemplars=5))
    assert settings["proposer"] == "scripted" and settings["exemplars"] == 5
    json.dumps(settings)


def test_budgets_of_tokens_and_money_are_read() -> None:
    spend = Spend.parse("10m,200e,500kt,2.5usd")
    assert (spend.budget.seconds, spend.budget.evaluations, spend.tokens, spend.dollars) == (
        600,
        200,
        500_000,
        2.5,
    )
    assert str(Spend.parse("3Mt")) == "3000000t" and Spend.parse("$5").dollars == 5
    for wrong in ("0t", "five", "10m,", "0usd"):
        with pytest.raises(SearchError):
            Spend.parse(wrong)


needs = [
    pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc"),
]


class TestWired:
    """`sassafras.evolve` with real builds, without a GPU."""

    pytestmark = needs

    def test_an_endpoint_evolves_a_kernel_and_a_resumed_run_asks_nothing_twice(self, tmp_path: Path) -> None:
        pytest.importorskip("openai")
        from sassafras import evolve

        from .wire import completion, serve

        loop = (
            "for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {{\n"
            "    float v = x[i] + bias[i % cols];\n    y[i] = {form} * gate[i];\n}}"
        )
        good = loop.format(form="v / (1.0f + __expf(-1.702f * v))")
        bad = loop.format(form="gelu(v)")
        cheat = "fopen(0, 0); cudaStreamCreate(0);"

        def answer(body: str) -> tuple[int, dict, str]:
            return (
                200,
                {},
                completion(f"## Analysis\na\n## Design\nd\n## Code\n```cuda\nhole: body\n{body}\n```"),
            )

        how = {
            "proposer": "endpoint:wire", "device": "model", "store": tmp_path / "s.sqlite",
            "settings": {"repairs": 1, "give_up": 4},
        }  # fmt: skip
        target = str(EXAMPLES / "bias_gelu.py")
        with serve(answer(bad), answer(good), answer(cheat), answer(good)) as wire:
            endpoint = {"base_url": wire.url, "timeout_s": 30.0}
            result = evolve(target, budget="3e", endpoint=endpoint, **how)
            asked = len(wire.asked)
            assert "does not compile" not in wire.asked[0]["messages"][1]["content"]
            assert 'identifier "gelu" is undefined' in wire.asked[1]["messages"][-1]["content"]
            again = evolve(target, budget="4e", endpoint=endpoint, out=tmp_path / "out", **how)
        assert result.verdicts == {"modelled": 2, "compile_error": 1} and asked == 2
        assert again.replayed == 3 and again.verdicts["cheated"] == 1
        assert len(wire.asked) == asked + 1  # the first two answers came from the journal
        assert again.facts["proposals"]["cheated"] == 1 and again.facts["spent"]["tokens"] == 330
        lines = (tmp_path / "out" / "evolve_bias_gelu-variants.jsonl").read_text().splitlines()
        assert [json.loads(line)["verdict"] for line in lines].count("cheated") == 1
        assert any("was run or checked" in note for note in again.notes)

    def test_a_run_in_a_folder_goes_on_and_says_so(self, tmp_path: Path) -> None:
        """Its budget is that of a sitting, also where a store keeps what a sitting gave."""
        from sassafras import evolve

        text = (EXAMPLES / "softmax.py").read_text()
        (tmp_path / "named.py").write_text(text.replace('name="evolve_', 'name="../evolve_'))
        made = []
        for _ in range(2):
            result = evolve(
                tmp_path / "named.py", device="model", budget="3e", folder=tmp_path / "run",
                store=tmp_path / "s.sqlite", out=tmp_path / "a" / "out",
            )  # fmt: skip
            assert not result.improved and not result.from_store
            assert result.summary().startswith("the run goes on with the same command: its best so far is mo")
            made.append(result.facts["proposals"]["proposed"])
        assert made == [2, 4]
        assert (tmp_path / "a" / "out" / "_evolve_softmax-variants.jsonl").exists()
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]

    def test_the_command_line_evolves_by_chance(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from typer.testing import CliRunner

        from sassafras.cli.app import app

        arguments = [
            "evolve", str(EXAMPLES / "bias_gelu.py"), "--device", "model", "--budget", "3e", "--json",
            "--store", str(tmp_path / "s.sqlite"), "--out", str(tmp_path / "out"), "--context", str(EXAMPLES),
        ]  # fmt: skip
        monkeypatch.setitem(sys.modules, "bm25s", None)  # random edits read no prompt
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert said["strategy"] == "evolve"
        counted = next(note for note in said["notes"] if note.startswith("proposals by"))
        assert "accepted unchecked" in counted and "correct" not in counted, "nothing was run"
        for word, value in (("3e", "60s"), ("s.sqlite", "other.sqlite")):
            arguments = [one.replace(word, value) for one in arguments]

        def interrupt(*_: object) -> None:
            if signal.getsignal(signal.SIGINT) is not before:  # the search is running
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.raise_signal(signal.SIGINT)

        before, old = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        done = CliRunner().invoke(app, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        assert done.exit_code == 130 and json.loads(done.stdout)["reason"] == "interrupted"
        wrong = CliRunner().invoke(app, [*arguments, "--proposer", "oracle"])
        assert wrong.exit_code == 2
