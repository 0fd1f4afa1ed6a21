"""The benchmark of evaluators: its candidates, its counts, and the process in which each answer is made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

torch = pytest.importorskip("torch")

import evaluators  # noqa: E402
from harnesses import Case, Said, cases, worker  # noqa: E402
from harnesses.theirs import _absent, definition  # noqa: E402

from sassafras.formats import flashinfer, kernelbench  # noqa: E402

CASE = Case("c", "ours", "honest", "t", "", "")


def test_every_candidate_of_ours_is_a_solution_of_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "PRODUCTS", 1)
    every = cases.ours()
    assert len({case.name for case in every}) == len(every)
    assert {case.kind for case in every} == {"honest", "wrong", "speed"}
    small = every[0].problem.replace("1024", "32")
    problem = kernelbench.problem(small, "problem.py", "problem", device="cpu", tolerance=None)
    for case in every:
        assert case.problem == every[0].problem
        problem.solution(case.candidate, case.name)
        compile(case.candidate, case.name, "exec")


def test_a_problem_becomes_a_definition(tmp_path: Path) -> None:
    """Ours reads it, and its reference calculates what the module does."""
    text = cases.ours()[0].problem.replace("1024", "32")
    names: dict[str, Callable[..., object]] = {}
    exec(text, names)
    given = [torch.randn(32, 16), torch.randn(16, 8)]
    described = definition(Case("d", "ours", "honest", "t", text, ""), given, names["Model"]()(*given))
    described["reference"] = described["reference"].replace("'cuda:0'", "'cpu'")
    found = flashinfer.problem(
        __import__("json").dumps(described),
        tmp_path / "d.json",
        None,
        case=None,
        device="cpu",
        tolerance=None,
    )
    (case,) = found.workload.cases
    assert [getattr(case.args[name], "shape", None) for name in ("in0", "in1", "out")] == [
        (32, 16),
        (16, 8),
        (32, 8),
    ]


@pytest.mark.parametrize(
    ("kind", "said", "right"),
    [
        ("honest", Said(True, 0.5, ""), True),
        ("honest", Said(False, None, ""), False),
        ("wrong", Said(True, 1.0, ""), False),
        ("wrong", Said(False, 9.0, ""), True),
        ("speed", Said(True, 1.2, ""), True),
        ("speed", Said(True, 1.4, ""), False),
        ("speed", Said(True, None, ""), False),
        ("speed", Said(False, None, ""), True),
    ],
)
def test_what_is_right(kind: str, said: Said, right: bool) -> None:
    assert evaluators.is_right(kind, said) is right


def test_counts_leave_out_what_was_not_judged(tmp_path: Path) -> None:
    (tmp_path / "KernelBench").mkdir()
    (tmp_path / "KernelBench" / "COMMIT").write_text("abc\n")
    rows = [
        evaluators._row("KernelBench-static", Case(name, origin, kind, "t", "", ""), said, 1.0)  # type: ignore[arg-type]
        for name, origin, kind, said in (
            ("a", "ours", "wrong", Said(True, None, "valid")),
            ("b", "KernelBench", "speed", Said(False, None, "no")),
            ("c", "ours", "honest", Said(False, None, "no")),
            ("d", "ours", "honest", Said(False, None, worker.FAILED + "ImportError")),
        )
    ]
    found = evaluators.summarise(rows, tmp_path, 4)["evaluators"]["KernelBench-static"]
    assert (found["cheats"], found["caught"], found["published_caught"]) == (2, 1, 1)
    assert (found["honest"], found["false_alarms"], found["missed"]) == (1, ["c"], ["a"])
    assert found["failed"] == ["d"] and found["commit"] == "abc"


def test_ours_has_the_commit_that_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the one that sums up a journal."""
    rows = []
    for name, at in (("a", "1" * 40), ("b", "2" * 40)):
        monkeypatch.setenv("SASSAFRAS_COMMIT", at)
        case = Case(name, "ours", "wrong", "t", "", "")
        rows.append(evaluators._row(evaluators.OURS, case, Said(False, None, "no"), 1.0))
    monkeypatch.setenv("SASSAFRAS_COMMIT", "3" * 40)
    found = evaluators.summarise(rows, tmp_path, 2)["evaluators"][evaluators.OURS]
    assert found["commit"] == f"{'1' * 40} and {'2' * 40}"


def _judge() -> Callable[[Case], Said]:
    def judge(case: Case) -> Said:
        if case.name == "raises":
            raise ValueError("no")
        if case.name == "lacks":
            raise ModuleNotFoundError("no")
        if case.name == "ends":
            os._exit(3)
        if case.name == "hangs":
            time.sleep(600)
        return Said(True, 2.0, os.environ["PLACE"] + str(Path.cwd().is_dir()))

    return judge


def _no_judge() -> Callable[[Case], Said]:
    raise ImportError("nothing there")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Callable[..., Said]]:
    made: list[worker.Worker] = []

    def ask(name: str, make: worker.Make = _judge, seconds: float = 30.0) -> Said:
        if not made or not made[-1].alive or make is not _judge:
            made.append(worker.Worker(make, {"PLACE": "here"}, tmp_path / "log"))
        return made[-1].ask(Case(name, "ours", "honest", "t", "", ""), seconds)

    yield ask
    for one in made:
        one.close()


def test_a_candidate_ends_its_process_at_most(asked: Callable[..., Said]) -> None:
    assert asked("fine") == asked("fine") == Said(True, 2.0, "hereTrue")
    assert asked("raises").text == "it raised ValueError: no"
    assert asked("lacks").text.startswith(worker.FAILED)
    assert asked("ends").text == "its process ended with 3"
    assert asked("hangs", seconds=0.5).text == "no answer within 0.5 s"
    assert asked("fine").accepted


def test_inspect_passes_over_what_stands_for_an_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "not_installed", None)
    del sys.modules["not_installed"]
    _absent("not_installed")
    assert __import__("not_installed").load_dotenv() is None
    assert not hasattr(sys.modules["not_installed"], "__file__")


def test_an_evaluator_that_cannot_be_made_has_not_judged(asked: Callable[..., Said]) -> None:
    assert asked("fine", make=_no_judge).text == worker.FAILED + "ImportError: nothing there"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_ours_without_a_gpu_has_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    said = evaluators.sassafras()(cases.ours()[0])
    assert said.text.startswith(worker.FAILED) and not said.accepted


def test_a_folder_without_the_checkouts_is_one_line(tmp_path: Path) -> None:
    call = [sys.executable, "evaluators.py", "--folder", str(tmp_path), "--collect"]
    done = subprocess.run(call, cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
