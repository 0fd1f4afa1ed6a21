"""Training through TRL, a stage after the other, resumed from the last whole checkpoint."""

from __future__ import annotations

import difflib
import inspect
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, ToolMissing

from .local import LocalSettings, load
from .prompt import SYSTEM, cited
from .record import Record
from .source_space import fenced
from .train_config import INSTALL, ConfigError, RewardedStage, SupervisedStage, TrainConfig
from .training import AnswerReward, TrainingTask, training_rows

#: our defaults of TRL's settings: a kernel is longer than 1,024 tokens, and a kill costs at most 50 steps
DEFAULTS: dict[str, Any] = {"save_steps": 50, "save_total_limit": 2}
LONGEST = {"sft": ("max_length", 4096), "grpo": ("max_completion_length", 1024)}


@dataclass(frozen=True, slots=True)
class Trained:
    """What became of a stage.

    Attributes:
        stage: ``sft`` or ``grpo``.
        steps: updates in all.
        resumed: updates of earlier calls among them.
        rows, dropped: rows of the data set, and those that TRL left out as too long.
        log: what TRL logged, of earlier calls too; the last entry summarises.
        path: the model, or the adapter.
    """

    stage: str
    steps: int
    resumed: int
    rows: int
    dropped: int
    log: Sequence[Mapping[str, Any]]
    path: Path

    def summary(self) -> str:
        """One line."""
        name = "loss" if self.stage == "sft" else "reward"
        values = [entry[name] for entry in self.log if name in entry]
        course = f"; {name} {values[0]:.4g} at first, {values[-1]:.4g} at last" if values else ""
        before = f" ({self.resumed} before)" if self.resumed else ""
        rows = f"{self.rows} rows" + (f" ({self.dropped} too long)" if self.dropped else "")
        return f"{self.stage}: {self.steps} steps{before}, {rows}{course}; {self.path}"


def train(
    config: TrainConfig, tasks: Callable[[], Sequence[TrainingTask]], *, resume: bool = False
) -> list[Trained]:
    """Run a configuration's stages; each begins with the model that the one before it left.

    Args:
        config: from `read_config`.
        tasks: opens the evaluator; called once, if ``grpo`` is to run.
        resume: go on with what is in the output folder, if anything is.

    Raises:
        ConfigError: a setting that TRL, peft or the model refuses; another training's output folder.
        ProposerError: the model cannot be loaded.
        ToolMissing: TRL or another package is not installed.
    """
    stages: dict[str, SupervisedStage | RewardedStage] = {}
    if config.sft is not None:
        stages["sft"] = config.sft
    if config.grpo is not None:
        stages["grpo"] = config.grpo
    arguments = {name: _arguments(config, name, stage.trl) for name, stage in stages.items()}
    count = max(each.world_size * max(1, each.n_gpu) for each in arguments.values())
    if count > 1:
        hint = "one process, with CUDA_VISIBLE_DEVICES=0"
        raise ConfigError(f"training takes one GPU, not {count}: answers are timed alone", hint=hint)
    adapter = _adapter(config)
    record = Record(config.output)
    if record.settings and not resume:
        hint = "--resume goes on with it; or name another output"
        raise ConfigError("there is a training in this folder", where=config.output, hint=hint)
    if record.settings:
        record.agree(asdict(config))
    done: list[Trained] = []
    for name, stage in stages.items():
        final = Path(config.output) / name / "final"
        if not final.is_dir():
            start = done[-1].path if done else None
            trainer, rows = _trainer(config, stage, arguments[name], adapter, start, tasks)
            record.agree(asdict(config))
            _run(trainer, rows, final)
            trainer.accelerator.free_memory()
            del trainer  # the next stage's model takes its place
        state = json.loads((final / "training.json").read_text(encoding="utf-8"))
        done.append(Trained(name, **state, path=final))
    return done


def _trainer(
    config: TrainConfig,
    stage: SupervisedStage | RewardedStage,
    arguments: Any,
    adapter: Any,
    start: Path | None,
    tasks: Callable[[], Sequence[TrainingTask]],
) -> tuple[Any, int]:
    """TRL's trainer of a stage on the model that `start` holds, and how many rows it was given."""
    import trl
    from datasets import Dataset

    lora = str(start) if start and adapter is not None else None
    path = config.model if lora or start is None else str(start)
    model, tokenizer = load(LocalSettings(path, lora, dtype=config.dtype), trainable=True)
    if tokenizer.chat_template is None:
        raise ConfigError("the tokenizer has no chat template", where=config.model)
    more: dict[str, Any] = {"peft_config": None if lora else adapter}
    if isinstance(stage, SupervisedStage):
        make, rows = trl.SFTTrainer, supervised_rows(stage.corpus)
    else:
        found = tasks()
        make, rows = trl.GRPOTrainer, training_rows(found, stage.rows, seed=config.seed, shown=stage.shown)
        more["reward_funcs"] = AnswerReward(found)
    try:
        trainer = make(
            model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **more
        )
    except (ValueError, TypeError) as error:
        raise _refused(error, arguments.output_dir) from error
    if not len(trainer.train_dataset):
        what = "no row is left: all prompts are longer than max_length tokens"
        raise ConfigError(what, where=arguments.output_dir, hint="raise max_length")
    return trainer, len(rows)


def _run(trainer: Any, rows: int, final: Path) -> None:
    """Train to the end, from the last whole checkpoint if there is one, and write the folder `final`."""
    last = last_checkpoint(final.parent)
    before = 0 if last is None else int(json.loads((last / "trainer_state.json").read_text())["global_step"])
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    # a stage is over when its folder has this name, so it gets it in one step
    part = final.with_name("final.part")
    shutil.rmtree(part, ignore_errors=True)
    trainer.save_model(str(part))
    kept, progress = len(trainer.train_dataset), trainer.state
    state = {"steps": progress.global_step, "resumed": before, "rows": kept, "dropped": rows - kept}
    (part / "training.json").write_text(json.dumps({**state, "log": progress.log_history}), encoding="utf-8")
    part.rename(final)


def supervised_rows(corpus: str | Path) -> list[dict[str, Any]]:
    """Rows for TRL's `SFTTrainer`: ``prompt`` and ``completion``, as chat messages.

    Raises:
        SassafrasError: a line is no row of a corpus.
    """
    rows = []
    for number, line in enumerate(Path(corpus).read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            said = "\n\n".join(part for part in (cited(row["context"]), row["instruction"]) if part)
            code = fenced(row["code"], row["language"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SassafrasError("this line is no row of a corpus", where=f"{corpus}:{number}") from error
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}]
        rows.append({"prompt": prompt, "completion": [{"role": "assistant", "content": code}]})
    if not rows:
        raise SassafrasError("the corpus is empty", where=str(corpus))
    return rows


def last_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that is whole: its state is written last, and a kill may cut it off."""
    whole: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        try:
            whole[int(json.loads((path / "trainer_state.json").read_text())["global_step"])] = path
        except (OSError, ValueError, KeyError):
            continue
    return whole[max(whole)] if whole else None


# -- settings ------------------------------------------------------------------------------------------------


def _arguments(config: TrainConfig, stage: str, given: Mapping[str, Any]) -> Any:
    """TRL's settings of a stage. Raises ConfigError, ToolMissing."""
    try:
        import trl
    except ImportError as error:
        raise ToolMissing("training needs TRL", hint=INSTALL) from error
    kind = {"sft": trl.SFTConfig, "grpo": trl.GRPOConfig}[stage]
    ours = {"output_dir": str(Path(config.output) / stage), "seed": config.seed}
    name, length = LONGEST[stage]
    return _checked(kind, {name: length, **DEFAULTS, **given}, f"{stage}.trl", ours)


def _adapter(config: TrainConfig) -> Any:
    if not config.lora:
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ToolMissing("LoRA needs peft", hint=INSTALL) from error
    return _checked(LoraConfig, config.lora, "lora", {"task_type": "CAUSAL_LM"})


def _checked(kind: Any, given: Mapping[str, Any], where: str, ours: Mapping[str, Any]) -> Any:
    """An object of a library's settings, unknown names and texts for numbers refused."""
    known = inspect.signature(kind).parameters
    for name, value in given.items():
        if name in ours:
            raise ConfigError(f"{name!r} is set by the configuration itself", where=where)
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: the parameters of {kind.__name__}"
            raise ConfigError(f"there is no setting {name!r}", where=where, hint=hint)
        usual = known[name].default
        if isinstance(usual, int | float) and isinstance(value, str):
            raise ConfigError(f"{name} is a number, not {value!r}", where=where)
    try:
        return kind(**given, **ours)
    except (ValueError, TypeError) as error:
        raise _refused(error, where) from error


def _refused(error: Exception, where: str) -> ConfigError:
    return ConfigError(" ".join(str(error).split()), where=where)
