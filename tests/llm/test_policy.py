"""The policy: it learns from a table, learns nothing from shuffled rewards, and its rivals choose soundly."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.problem.shape import Shape
from sassafras.llm.policy import Table, rivals
from sassafras.llm.policy.table import ESTIMATE, held_out, unmeasured

ONE, TWO = "lean_tn_m1n1s2/w1x2x1/c1", "lean_tn_m1n2s2/w1x1x1/c1"


@pytest.fixture(scope="module")
def table() -> Table:
    shapes = [Shape(m, n, k) for m in (64, 256) for n in (64, 512) for k in (64, 512, 2048)]
    return Table.stand_in(shapes, most=24)


def test_a_table_is_sorted_by_the_rule_and_says_that_it_was_not_measured(table: Table) -> None:
    assert not table.measured and "stand-in" in table.source
    for problem in table.problems:
        assert problem.features.shape == (len(problem.names), table.columns)
        assert np.isfinite(problem.features).all()
        assert (np.diff(problem.features[:, ESTIMATE]) >= -1e-6).all()
        assert problem.fraction(range(len(problem.names))) == 1.0


def test_a_dataset_becomes_a_table() -> None:
    entries = [
        SimpleNamespace(shape=Shape(64, 64, 64), ours={ONE: (1.5, 2), TWO: (2.0, 0), ONE + "+o": (1.0, 2)}),
        SimpleNamespace(shape=Shape(64, 64, 128), ours={ONE: (1.7, 2)}),
    ]

    class Dataset(list):
        @property
        def header(self) -> dict:
            return {"gpu": "NVIDIA H200", "date": "2026-01-01", "commit": "abc", "modelled": False}

    found = Table.of_dataset(Dataset(entries))
    # modes were timed for leaders alone, and would give them away
    assert found.measured and len(found) == 1 and found.pairs == 2 and found.problems[0].best == 1.5
    with pytest.raises(SassafrasError, match="at least two timed configurations"):
        Table.of_dataset(Dataset(entries[1:]))


def test_every_legal_configuration_of_a_new_shape_has_finite_features() -> None:
    problem, configs = unmeasured(Shape(5976, 3352, 64), most=100_000)
    # orders of tiles that are kinds, not sizes, have negative numbers
    assert any(getattr(config, "group", 0) < 0 for config in configs)
    assert np.isfinite(problem.features).all() and len(problem.features) == len(configs)


def test_whole_values_are_held_out(table: Table) -> None:
    train, test = held_out(table.problems, "k", [64, 512])
    assert {table.problems[i].shape.k for i in test} <= {64, 512}
    assert not {table.problems[i].shape.k for i in train} & {64, 512}
    assert sorted(train + test) == list(range(len(table)))
    with pytest.raises(SassafrasError, match="nothing is left"):
        held_out(table.problems, "k", [3])


def test_rivals_choose_distinct_configurations(table: Table) -> None:
    rng = np.random.default_rng(0)
    for problem in table.problems[:6]:
        for chosen in (
            rivals.rule(problem, 8),
            rivals.chance(problem, 8, rng),
            rivals.anneal(table, problem, 8, 0),
            rivals.nearest(table, problem, [[64, 32, 1], [128, 128, 4], [64, 32, 1]], 8),
        ):
            assert len(chosen) == len(set(chosen)) == min(8, len(problem.names))
        assert rivals.anneal(table, problem, 1, 0) == [0]
        first = table.config(problem.names[rivals.nearest(table, problem, [[16, 8, 2]], 1)[0]])
        assert first.tile[0] <= 64


def test_the_cost_model_learns(table: Table) -> None:
    pytest.importorskip("sklearn")
    train, test = held_out(table.problems, "k", [64, 512])
    model = rivals.CostModel([table.problems[i] for i in train])
    rng = np.random.default_rng(0)
    learnt = np.mean([table.problems[i].fraction(model.choose(table.problems[i], 2)) for i in test])
    chance = np.mean([table.problems[i].fraction(rivals.chance(table.problems[i], 2, rng)) for i in test])
    assert learnt > chance


class TestLearning:
    """Needs torch (any build)."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        torch = pytest.importorskip("torch")
        torch.set_num_threads(1)

    @pytest.mark.parametrize("contrastive", [True, False])
    def test_untrained_it_is_the_rule(self, table: Table, contrastive: bool) -> None:
        from sassafras.llm.policy.model import Policy, PolicySettings

        policy = Policy(table.columns, PolicySettings(16, contrastive))
        policy.standardise(table.problems)
        for problem in table.problems[:5]:
            chosen = policy.choose(problem, 4)
            assert len(set(chosen)) == 4
            assert problem.features[chosen, ESTIMATE].tolist() == problem.features[:4, ESTIMATE].tolist()

    def test_it_learns_and_nothing_is_learnt_from_shuffled_rewards(self, table: Table) -> None:
        from sassafras.llm.policy.model import Policy, PolicySettings
        from sassafras.llm.policy.train import GrpoSettings, train

        problems = table.problems
        settings = GrpoSettings(steps=50, shapes=4, learning_rate=5e-3)
        gain = {}
        for shuffled in (False, True):
            policy = Policy(table.columns, PolicySettings(24, False), seed=1)
            policy.net.prior.data.fill_(0.0)  # from nothing
            earned = train(policy, problems, settings, seed=1, shuffled=shuffled)
            assert len(earned) == 50 and np.isfinite(earned).all()
            gain[shuffled] = np.mean([p.fraction(policy.choose(p, 1)) for p in problems])
        start = np.mean([p.fraction([len(p.names) // 2]) for p in problems])
        assert gain[False] > gain[True] + 0.02
        assert gain[False] > start

    def test_history_changes_what_the_contrastive_policy_chooses(self, table: Table) -> None:
        import torch

        from sassafras.llm.policy.model import Policy, PolicySettings

        problem = table.problems[3]
        for contrastive in (True, False):
            policy = Policy(table.columns, PolicySettings(16, contrastive))
            policy.standardise(table.problems)
            policy.net.out[-1].weight.data.normal_(generator=torch.Generator().manual_seed(0))
            inputs = policy.inputs(problem)
            one = policy.scores(inputs, [0, 1], [0.0, 0.5])
            two = policy.scores(inputs, [0, 1], [0.0, -0.5])
            assert one[:2].isinf().all() and (not torch.equal(one, two)) is contrastive

    def test_it_is_saved_without_pickle(self, table: Table, tmp_path: Path) -> None:
        from sassafras.llm.policy.model import Policy, PolicySettings

        policy = Policy(table.columns, PolicySettings(16), seed=3)
        policy.standardise(table.problems)
        policy.save(tmp_path / "p.npz")
        again = Policy.load(tmp_path / "p.npz")
        for problem in table.problems[:3]:
            assert again.choose(problem, 5) == policy.choose(problem, 5)
        (tmp_path / "p.npz").write_bytes(b"no")
        with pytest.raises(SassafrasError, match="not a policy"):
            Policy.load(tmp_path / "p.npz")

    def test_the_benchmark_resumes_and_writes_nothing_unmeasured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
        import llm_policy

        journal = tmp_path / "journal.jsonl"
        words = [
            "llm_policy.py",
            "--stand-in",
            "--seeds",
            "1",
            "--steps",
            "2",
            "--every",
            "40",
            "--most",
            "8",
        ]
        words += ["--journal", str(journal), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        llm_policy.main()
        lines = journal.read_text().splitlines()
        assert {"rule", "random", "annealing", "policy, contrastive"} <= {
            json.loads(x)["method"] for x in lines
        }
        assert "nothing was measured" in capsys.readouterr().out
        assert not (tmp_path / "llm-policy.json").exists()
        journal.write_text("\n".join(lines[:-3]) + '\n{"cut')
        llm_policy.main()
        assert capsys.readouterr().out.count("seed 0, k: ") <= 3  # what was left out, and nothing else
