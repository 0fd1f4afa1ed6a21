"""``sassafras llm train``: its YAML, both stages on a tiny random model, kills and resumption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sassafras.api.evolve import evolve
from sassafras.api.train import train_model
from sassafras.cli.app import app
from sassafras.core import SassafrasError, ToolMissing
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.llm.train_config import ConfigError, read_config

from .tiny_model import save_tiny

yaml = pytest.importorskip("yaml")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "evolve"
#: what the tiny model learns to say: a kernel for the hole of `bias_gelu.cu`
ANSWER = """\
hole: body
for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    float v = x[i] + bias[i % cols];
    y[i] = v / (1.0f + __expf(-1.702f * v)) * gate[i];
}"""
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "logging_steps": 1}


def files(folder: Path, **changes: Any) -> Path:
    """A configuration of supervised training with a corpus of ten rows; a model where transformers is."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    rows = [
        {"instruction": f"Write kernel {i}.", "context": [], "code": ANSWER, "language": "cuda"}
        for i in range(10)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    config: dict[str, Any] = {
        "model": str(model),
        "output": str(folder / "run"),
        "sft": {
            "corpus": str(folder / "corpus.jsonl"),
            "trl": {"learning_rate": 0.01, "per_device_train_batch_size": 5, **CPU},
        },
    }
    for name, value in changes.items():
        config[name] = {**config[name], **value} if value and name == "sft" else value
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in config.items() if v is not None}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": "x"}, r"train\.yaml: it has no setting 'modle' \(it has model, output"),
        ({"model": None}, "'model' is missing"),
        ({"model": 3}, "model is a text, not 3"),
        ({"seed": "one"}, "seed is a whole number"),
        ({"dtype": "fp8"}, "float32, bfloat16 or float16, not 'fp8'"),
        ({"sft": None}, "there is no stage"),
        ({"sft": {"corpsu": "x"}}, r"train\.yaml: sft: it has no setting 'corpsu'"),
        ({"sft": {"corpus": "none.jsonl"}}, "there is no such corpus"),
        ({"sft": {"trl": [1]}}, "sft: trl: keys with values"),
        ({"lora": 8}, "lora: keys with values"),
        ({"grpo": {}}, "grpo needs an evaluator"),
        ({"grpo": {}, "evaluator": {"targets": []}}, "a list of targets"),
        ({"grpo": {}, "evaluator": {"targets": [{"case": "x"}]}}, r"targets\[0\]: 'target' is missing"),
        ({"grpo": {}, "evaluator": {"targets": [{"target": "x", "folder": "no"}]}}, "no such folder"),
        ({"model": "nowhere"}, r"nowhere: there is no model: no config\.json"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(files(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_numbers_and_keys_of_yaml(tmp_path: Path) -> None:
    path = files(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("learning_rate: 0.01", "learning_rate: 1e-4"), encoding="utf-8")
    config = read_config(path)
    assert config.sft is not None and config.sft.trl["learning_rate"] == 1e-4
    for more, message in (("seed: 1\nseed: 2\n", "'seed' occurs twice"), ("lora: {r: [\n", "it is no YAML")):
        path.write_text(text + more, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            read_config(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "none.yaml")


def test_the_guides_example_is_read(tmp_path: Path) -> None:
    guide = (EXAMPLES.parents[1] / "docs" / "guides" / "evolve.md").read_text(encoding="utf-8")
    path = tmp_path / "train.yaml"
    path.write_text(guide.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    # all that is wrong with it here is that there is no such model
    with pytest.raises(ConfigError, match=r"^models/coder: there is no model"):
        read_config(path)


def test_without_trl_the_hint_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    path = files(tmp_path)
    with pytest.raises(ToolMissing, match=r"pip install -e '\.\[llm-train\]'"):
        train_model(path)
    done = CliRunner().invoke(app, ["llm", "train", str(path)])
    assert done.exit_code == 2 and "training needs TRL" in done.output


@pytest.mark.slow
class TestTrained:
    """With TRL. Its packages are larger than 60 MB, so CI skips these."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        for needed in ("trl", "peft"):
            pytest.importorskip(needed)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"sft": {"trl": {"learning_rte": 1}}},
                r"sft\.trl: there is no setting 'learning_rte' \(did you",
            ),
            ({"sft": {"trl": {"learning_rate": "fast"}}}, "learning_rate is a number, not 'fast'"),
            ({"sft": {"trl": {"output_dir": "x"}}}, "'output_dir' is set by the configuration itself"),
            ({"sft": {"trl": {"save_strategy": "sometimes"}}}, r"sft\.trl: .*sometimes"),
            ({"lora": {"rank": 8}}, "lora: there is no setting 'rank'"),
            (
                {
                    "grpo": {"trl": {"num_generations": 3, **CPU}},
                    "evaluator": {"targets": [{"target": "x"}]},
                },
                r"grpo\.trl: .*num_generations",
            ),
        ],
    )
    def test_what_trl_refuses(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            train_model(files(tmp_path, **changes))
        assert not (tmp_path / "run").exists()

    def test_a_model_that_cannot_chat_and_a_corpus_that_is_none(self, tmp_path: Path) -> None:
        path = files(tmp_path)
        save_tiny(tmp_path / "model", template=None)
        with pytest.raises(ConfigError, match="no chat template"):
            train_model(path)
        save_tiny(tmp_path / "model")
        path.write_text(path.read_text().replace("trl:", "trl:\n    max_length: 50"), encoding="utf-8")
        with pytest.raises(ConfigError, match="no row is left"):
            train_model(path, resume=True)
        (tmp_path / "corpus.jsonl").write_text('{"instruction": "x"}\n', encoding="utf-8")
        done = CliRunner().invoke(app, ["llm", "train", str(path), "--resume"])
        assert done.exit_code == 2 and "corpus.jsonl:1: this line is no row" in done.output

    @pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
    @pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
    def test_both_stages_with_the_evaluator_as_reward(self, tmp_path: Path) -> None:
        """The corpus teaches one answer; GRPO then samples it, and it is built and modelled."""
        path = files(
            tmp_path,
            sft={
                "corpus": str(tmp_path / "corpus.jsonl"),
                "trl": {
                    "learning_rate": 0.03, "max_steps": 40, "per_device_train_batch_size": 5,
                    "lr_scheduler_type": "constant", **CPU,
                },
            },
            grpo={
                "rows": 4,
                "trl": {
                    "max_steps": 2, "per_device_train_batch_size": 2, "num_generations": 2,
                    "max_completion_length": 8, **CPU,
                },
            },
            evaluator={"device": "model", "targets": [{"target": str(EXAMPLES / "bias_gelu.py")}]},
        )  # fmt: skip
        save_tiny(tmp_path / "model", words=(f"```cuda\n{ANSWER}\n```",))
        done = CliRunner().invoke(app, ["llm", "train", str(path)])
        assert done.exit_code == 0, done.output
        supervised, rewarded = done.stdout.splitlines()
        assert supervised.startswith("sft: 40 steps") and rewarded.startswith("grpo: 2 steps")
        logs = {
            stage: json.loads((tmp_path / "run" / stage / "final" / "training.json").read_text())["log"]
            for stage in ("sft", "grpo")
        }
        losses = [entry["loss"] for entry in logs["sft"] if "loss" in entry]
        assert losses[-1] < 0.1 * losses[0]
        rewards = [entry["reward"] for entry in logs["grpo"] if "reward" in entry]
        assert len(rewards) == 2 and all(-1 < reward <= 1 for reward in rewards), "built and modelled"
        again = CliRunner().invoke(app, ["llm", "train", str(path)])
        assert again.exit_code == 2 and "there is a training in this folder" in again.output
        assert [stage.steps for stage in train_model(path, resume=True)] == [40, 2]

    @pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
    def test_prompts_show_the_variants_of_a_run_on_the_same_target(self, tmp_path: Path) -> None:
        run = tmp_path / "evolve"
        how = {"device": "model", "folder": run, "whole": True, "budget": "5e"}
        evolve("suite:softmax", settings={"proposals": 2}, **how)
        trl = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, **CPU}
        targets = [{"target": "suite:softmax", "whole": True, "folder": str(run)}]
        path = files(
            tmp_path,
            sft=None,
            grpo={"rows": 2, "shown": 1, "trl": {"max_completion_length": 4, **trl}},
            evaluator={"device": "model", "targets": targets},
        )
        save_tiny(tmp_path / "model")
        assert [stage.steps for stage in train_model(path)] == [1]
        text = path.read_text(encoding="utf-8").replace("/run\n", "/other\n")
        path.write_text(text.replace("suite:softmax", "suite:rmsnorm"), encoding="utf-8")
        with pytest.raises(SassafrasError, match=r"run in this folder has .*softmax.*, not .*rmsnorm"):
            train_model(path)
        assert not (tmp_path / "other" / "settings.json").exists()

    def test_a_killed_training_resumes_to_the_same_end(self, tmp_path: Path) -> None:
        """SIGKILL after a checkpoint, and another one cut off: the same losses as without it."""
        lora = {"r": 2, "target_modules": "all-linear", "init_lora_weights": True}
        trl = {
            "max_steps": 24,
            "save_steps": 3,
            "per_device_train_batch_size": 2,
            "learning_rate": 0.01,
            **CPU,
        }
        path = files(tmp_path, lora=lora, sft={"trl": trl})
        save_tiny(tmp_path / "model")
        command = [sys.executable, "-m", "sassafras", "llm", "train", str(path)]
        stage = tmp_path / "run" / "sft"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not (stage / "checkpoint-6" / "trainer_state.json").exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (stage / "final").exists()
        cut = stage / "checkpoint-23"
        cut.mkdir()
        (cut / "trainer_state.json").write_text('{"global_step": 2', encoding="utf-8")
        (resumed,) = train_model(path, resume=True)
        assert resumed.steps == 24 and 6 <= resumed.resumed < 24
        path.write_text(path.read_text().replace("r: 2", "r: 4"), encoding="utf-8")
        other = CliRunner().invoke(app, ["llm", "train", str(path), "--resume"])
        assert other.exit_code == 2 and "has lora = " in other.output
        path.write_text(path.read_text().replace("r: 4", "r: 2").replace("/run", "/whole"), encoding="utf-8")
        (whole,) = train_model(path)
        assert (resumed.path / "adapter_config.json").is_file()
        losses = [[e["loss"] for e in trained.log if "loss" in e] for trained in (resumed, whole)]
        assert len(losses[0]) == 24 and losses[0] == pytest.approx(losses[1], rel=1e-3)
