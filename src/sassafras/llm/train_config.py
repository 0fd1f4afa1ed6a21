"""The YAML file of `sassafras llm train`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sassafras.core import SassafrasError, SearchError, ToolMissing
from sassafras.core.errors import reason
from sassafras.search import check_settings

INSTALL = "in the checkout: pip install -e '.[llm-train]'"
T = TypeVar("T")


class ConfigError(SassafrasError):
    """A training's configuration cannot be used."""


@dataclass(frozen=True, slots=True)
class SupervisedStage:
    """``sft``: on a corpus.

    Attributes:
        corpus: file of `corpus.write_corpus`.
        trl: settings of TRL's `SFTConfig`.
    """

    corpus: str
    trl: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RewardedStage:
    """``grpo``: rewarded by the evaluator.

    Attributes:
        rows: prompts.
        shown: variants that a prompt shows beside the one to change.
        trl: settings of TRL's `GRPOConfig`.
    """

    rows: int = 1000
    shown: int = 3
    trl: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingTarget:
    """One of the evaluator's targets.

    Attributes:
        target: as of `sassafras evolve`.
        case: by default the first.
        whole: rewrite the whole source instead of its holes.
        folder: of a run of `evolve` on this target, whose variants the prompts show.
    """

    target: str
    case: str = ""
    whole: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True)
class EvaluatorConfig:
    """What judges answers.

    Attributes:
        targets: what is to be rewritten.
        device: ``cuda``, ``model`` or ``auto``.
        arch: to compile for; by default the device's.
    """

    targets: list[TrainingTarget]
    device: str = "cuda"
    arch: str = ""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training.

    Attributes:
        model: folder of safetensors with its tokenizer.
        output: folder that is written: per stage checkpoints, and ``final``, a model or an adapter.
        seed: of everything random.
        dtype: of the weights: ``float32``, ``bfloat16`` or ``float16``.
        lora: settings of peft's `LoraConfig`; empty to train all weights.
        sft, grpo: the stages, in this order; at least one.
        evaluator: of ``grpo``.
    """

    model: str
    output: str
    seed: int = 0
    dtype: str = "float32"
    lora: Mapping[str, Any] = field(default_factory=dict)
    sft: SupervisedStage | None = None
    grpo: RewardedStage | None = None
    evaluator: EvaluatorConfig | None = None


def read_config(path: str | Path) -> TrainConfig:
    """Read and check a file; relative paths in it are relative to the working directory.

    Raises:
        ConfigError: no YAML, an unknown or missing key, a value of the wrong kind, or no such path.
        ToolMissing: PyYAML is not installed.
    """
    where = str(path)
    data = _mapping(_yaml(Path(path)), where)
    inner: dict[str, Any] = {}
    for name, kind in (("sft", SupervisedStage), ("grpo", RewardedStage), ("evaluator", EvaluatorConfig)):
        if name in data:
            given = _mapping(data[name] or {}, f"{where}: {name}")
            if name == "evaluator":
                targets = given.get("targets")
                if not isinstance(targets, list) or not targets:
                    raise ConfigError("it is a list of targets", where=f"{where}: evaluator.targets")
                places = [f"{where}: evaluator.targets[{i}]" for i in range(len(targets))]
                pairs = zip(targets, places, strict=True)
                given["targets"] = [_made(TrainingTarget, _mapping(t, place), place) for t, place in pairs]
            inner[name] = _made(kind, given, f"{where}: {name}")
    config = _made(TrainConfig, {**data, **inner}, where)
    if config.dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(f"dtype is float32, bfloat16 or float16, not {config.dtype!r}", where=where)
    if config.sft is None and config.grpo is None:
        raise ConfigError("there is no stage", where=where, hint="sft, grpo, or both")
    if (config.grpo is None) != (config.evaluator is None):
        raise ConfigError("grpo needs an evaluator, and nothing else does", where=where)
    if not (Path(config.model) / "config.json").is_file():
        raise ConfigError("there is no model: no config.json in the folder", where=config.model)
    if config.sft is not None and not Path(config.sft.corpus).is_file():
        raise ConfigError("there is no such corpus", where=config.sft.corpus, hint="sassafras llm corpus")
    for folder in (t.folder for t in config.evaluator.targets if t.folder) if config.evaluator else ():
        if not Path(folder).is_dir():
            raise ConfigError("there is no such folder of a run", where=folder)
    return config


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ToolMissing("the configuration is read by PyYAML", hint=INSTALL) from error

    class Loader(yaml.SafeLoader):
        """YAML 1.2's numbers (``1e-4`` is one), and no key twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if twice := [key for key in keys if keys.count(key) > 1]:
                what = f"{twice[0]!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ConfigError(reason(error), where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"it is no YAML: {' '.join(str(error).split())}", where=str(path)) from error


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError("keys with values are needed here", where=where)
    return dict(value)


def _made(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping. Raises ConfigError for unknown or missing keys and for wrong kinds."""
    try:
        check_settings(kind, given, "it")
    except SearchError as error:
        raise ConfigError(error.what, where=where, hint=error.hint) from error
    for own in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = own.default is dataclasses.MISSING and own.default_factory is dataclasses.MISSING
        if own.name not in given and required:
            raise ConfigError(f"{own.name!r} is missing", where=where)
        if required and own.type == "str" and not (isinstance(given[own.name], str) and given[own.name]):
            raise ConfigError(f"{own.name} is a text, not {given[own.name]!r}", where=where)
        if own.name in ("lora", "trl"):
            _mapping(given.get(own.name, {}), f"{where}: {own.name}")
    return kind(**given)
