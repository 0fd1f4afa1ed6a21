"""The corpus that the agent is trained on, and the command that trains it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from sassafras.core import SassafrasError
from sassafras.training import corpus
from sassafras.training.corpus import CorpusSample, kernels, look, open_sample, samples, survey

ARCH = "sm_90a"


def test_the_corpus_lists_hundreds_of_samples_none_of_a_held_out_family() -> None:
    listed = list(samples())
    assert len(listed) == len(set(listed)) and len(listed) >= 500
    suite = {s.kernel.partition(":")[2] for s in listed if s.kernel.startswith("suite:")}
    assert len(suite) >= 10 and len({s.family for s in listed}) >= 7
    apart = {s.kernel.partition(":")[2] for s in samples(corpus.HELD_OUT)}
    assert {"attention", "softmax", "gemv_int8", "quantise_fp8"} <= apart and not apart & suite
    # a limit takes from all over the combinations
    first = [s for s in listed if s.kernel == "suite:rotary"]
    assert len({s.changes[0] for s in first}) == 3 and len({s.changes[2] for s in first}) == 4
    assert len(list(samples(most=2))) == 2 * len({s.kernel for s in listed})


def test_every_kernel_of_the_corpus_compiles_and_its_samples_differ() -> None:
    found = survey(list(samples(most=1)), ARCH)
    kept = [s.kernel for members in found.kept.values() for s in members]
    assert len(kept) == len(set(kept)) and len(kept) >= 0.8 * len({s.kernel for s in samples()})
    assert "does not compile" not in found.skipped and "same code as another" not in found.skipped
    with pytest.raises(SassafrasError, match="no kernel 'nothing'"):
        kernels.load("nothing")


def test_a_sample_changes_what_it_says_and_equal_code_is_kept_once() -> None:
    changes = (("n_cols", 512), ("num_warps", 2), ("type", "bf16"))
    sample = CorpusSample("norm", "suite:layernorm", changes)
    case = open_sample(sample)[1]
    assert case.constants["BLOCK"] == 512 == case.args["n_cols"] and case.options["num_warps"] == 2
    assert case.args["x_ptr"].dtype == "bf16"  # type: ignore[union-attr]
    twin = CorpusSample(
        "norm", "suite:layernorm", (*changes[:1], ("num_warps", 2), ("type", "bf16"), ("case", 2))
    )
    large = CorpusSample("norm", "suite:layernorm", (("n_cols", 8192), ("num_warps", 1), ("type", "fp32")))
    found = survey([sample, twin, large], ARCH, say=(said := []).append)
    assert found.kept == {"norm": (sample,)} and found.count == 1
    assert found.skipped == {"same code as another": 1, "not 16 to 700 instructions": 1}
    assert said[0].startswith("1 kernels with different code of 3 samples: norm 1; 1 skipped: not 16")
    assert look(CorpusSample("norm", "suite:layernorm", (("num_warps", 3),)), ARCH)[1] == "does not compile"


def test_the_command_trains_resumes_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sb3_contrib")
    from sassafras.search.ppo import checkpoint
    from sassafras.training import pretraining

    tiny = {"append": {"suite:kv_append": {"BLOCK": (256, 512), "num_warps": (4,)}}}
    monkeypatch.setattr(pretraining, "VARIED", tiny)
    monkeypatch.setattr(pretraining, "HELD_OUT", {"quantise": {"suite:quantise_fp8": {"num_warps": (16,)}}})
    out = tmp_path / "deep" / "policy.npz"
    words = ["--out", str(out), "--kernels", "1", "--passes", "1", "--every", "1", "--samples-per-state", "4"]
    # (no time left: the policy that is written is the untrained one)
    pretraining.main([*words, "--minutes", "0"])
    untrained = out.rename(tmp_path / "untrained.npz")
    monkeypatch.setattr("sassafras.training.loop.Trainer.train", _some_iterations(2))
    pretraining.main(words)
    pretraining.main(words)
    facts = checkpoint.load(out)[1]
    assert facts["iteration"] == 4 and facts["kernels"] == {"append": 2} and "softmax" in facts["held_out"]
    assert "log" not in facts and not any(n.startswith("adam") for n in checkpoint.load(out)[0])
    lines = [json.loads(line) for line in (tmp_path / "deep" / "metrics.txt").read_text().splitlines()]
    assert [r["iteration"] for r in lines] == [0, 0, 0, 1, 2, 2, 2, 3, 4, 4]
    assert all(r["held_out_best"] > r["held_out_gain"] for r in lines)
    capsys.readouterr()
    pretraining.main(["--compare", str(untrained), str(out)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(r["policy"]).name for r in rows] == ["untrained.npz", "policy.npz"]
    assert rows[0]["held_out_gain"] == lines[0]["held_out_gain"]
    assert rows[1]["held_out_gain"] == lines[-1]["held_out_gain"]
    with pytest.raises(SystemExit, match="--workers 0"):
        pretraining.main(["--workers", "0"])


def _some_iterations(count: int):  # type: ignore[no-untyped-def]
    """Training for so many iterations, whatever the time they take."""
    from sassafras.training.loop import Trainer

    train = Trainer.train

    def some(self: Trainer, *, seconds: float, **rest: object) -> None:
        train(self, iterations=self.iteration + count, **rest)  # type: ignore[arg-type]

    return some
