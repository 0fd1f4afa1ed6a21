"""A model on this machine as a proposer, through transformers: safetensors or GGUF, with LoRA adapters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.core import ToolMissing

from .proposer import ProposerError, Reply, Request


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Which model, and how it is held.

    Attributes:
        model: a folder of safetensors with its tokenizer, or a ``.gguf`` file (its weights are expanded).
        adapter: a folder with a LoRA adapter (`peft`), or None.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        context: most tokens of prompt and answer together; a longer prompt is a `ProposerError`.
    """

    model: str
    adapter: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    context: int = 8192


def load(settings: LocalSettings, *, trainable: bool = False) -> tuple[Any, Any]:
    """(model, tokenizer), in evaluation mode. No code of a model's repository is ever run.

    Args:
        settings: see `LocalSettings`.
        trainable: whether an adapter's weights are to be trained.

    Raises:
        ToolMissing: transformers (or peft, gguf) is not installed.
        ProposerError: the model cannot be loaded.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ToolMissing(
            "a local model needs torch and transformers",
            hint="in the checkout: pip install -e '.[llm-local]'",
        ) from error
    path = Path(settings.model).expanduser()
    if not path.exists():
        raise ProposerError("there is no such model", where=str(path), hint="a folder or a .gguf file")
    where = {"gguf_file": path.name} if path.is_file() else {}
    folder = str(path.parent if path.is_file() else path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **where)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, settings.dtype), local_files_only=True, **where
        )
        if settings.adapter:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, settings.adapter, is_trainable=trainable)
    except ImportError as error:
        raise ToolMissing(f"loading this model needs another package: {error}", where=str(path)) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ProposerError(f"the model cannot be loaded: {error}", where=str(path)) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.to(settings.device).eval(), tokenizer


class LocalModel:
    """See the module."""

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.model, self.tokenizer = load(settings)

    @property
    def name(self) -> str:
        """``local:FILE`` with the adapter's name, if any."""
        adapter = f"+{Path(self.settings.adapter).name}" if self.settings.adapter else ""
        return f"local:{Path(self.settings.model).name}{adapter}"

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`. Raises ProposerError."""
        import torch

        began = time.monotonic()
        ids = self._prompt(request)
        prompt = int(ids.shape[1])
        how: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0:
            how = {"do_sample": True, "temperature": request.temperature, "top_p": 0.95}
        devices = [self.settings.device] if self.settings.device.startswith("cuda") else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(request.seed)
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
                **how,
            )
        new = out[0, prompt:].tolist()
        said = len(new)
        text = self.tokenizer.decode(new, skip_special_tokens=True)
        truncated = said >= request.max_tokens
        return Reply(text, self.name, prompt, said, seconds=time.monotonic() - began, truncated=truncated)

    def _prompt(self, request: Request) -> Any:
        import torch

        ids = self.tokenizer.apply_chat_template(
            [dict(m) for m in request.messages], add_generation_prompt=True, return_dict=False
        )
        room = self.settings.context - request.max_tokens
        if len(ids) > room:
            raise ProposerError(
                f"the prompt has {len(ids)} tokens, the context of {self.settings.context} leaves {room}",
                where=self.name,
                hint="show fewer variants (--set exemplars=1) or raise the context",
            )
        return torch.tensor([list(ids)], device=self.settings.device)
