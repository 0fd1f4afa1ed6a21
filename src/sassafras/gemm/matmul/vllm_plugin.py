"""A general plugin of vLLM: its unquantised linear layers call `sassafras.linear`.

vLLM calls `load` in each of its processes where sassafras is installed (entry point
``vllm.general_plugins``). Nothing is changed unless SASSAFRAS_VLLM=1. What is replaced is the function that
vLLM's dispatch runs where torch's linear alone would: batch invariance, other backends and platforms stay
vLLM's.
"""

from __future__ import annotations

import inspect
import os
import warnings
from importlib import import_module
from typing import Any

import sassafras

VARIABLE = "SASSAFRAS_VLLM"
_PARAMETERS = ["layer", "x", "weight", "bias"]

_loaded = False
#: from the first `load` on: vLLM's function, its class of plain weights, and sassafras.linear
_theirs: Any = None
_weight_class: Any = None
_ours: Any = None


def load() -> bool:
    """Let unquantised layers of vLLM that are made from now on call `sassafras.linear` if SASSAFRAS_VLLM=1.

    Heads of language models are among them. One `RuntimeWarning` says why vLLM is left as it is: not there,
    of another API, or not on a Hopper GPU. A second call does nothing. Returns whether layers call it.
    """
    global _loaded, _theirs, _weight_class, _ours
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "0", "1"):
        _say(f"{VARIABLE} is 1 or 0, not {asked!r}")
    if asked != "1" or _loaded:
        return _loaded
    try:
        utils, variables = _places()
        theirs = utils.default_unquantized_gemm
        weight_class = import_module("vllm.model_executor.parameter").ModelWeightParameter
        platform = import_module("vllm.platforms").current_platform
        hopper = platform.is_cuda() and platform.is_device_capability((9, 0))
        if (parameters := [*inspect.signature(theirs).parameters]) != _PARAMETERS:
            raise AttributeError(f"default_unquantized_gemm takes {', '.join(parameters)}")
    except (ImportError, AttributeError, TypeError) as error:
        _say(f"this vLLM is unknown to the plugin ({error})")
        return False
    if not hopper:
        _say("vLLM does not run on a Hopper GPU")
        return False
    _loaded, _theirs, _weight_class, _ours = True, theirs, weight_class, sassafras.linear
    utils.default_unquantized_gemm = _linear
    # a key of vLLM's cache of compiled graphs, which hold our operators or torch's
    variables[VARIABLE] = lambda: f"sassafras {sassafras.__version__}"
    return True


def unload() -> None:
    """Give vLLM its function back, to layers that hold ours too; compiled graphs stay as they are."""
    global _loaded
    if _loaded:
        utils, variables = _places()
        utils.default_unquantized_gemm = _theirs
        del variables[VARIABLE]
        _loaded = False


def _places() -> tuple[Any, dict[str, Any]]:
    """Where vLLM has its function, and its environment variables."""
    return import_module("vllm.model_executor.layers.utils"), import_module("vllm.envs").environment_variables


def _linear(layer: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """In the place of vLLM's function."""
    if not _loaded:
        return _theirs(layer, x, weight, bias)
    if type(weight) is _weight_class:  # a Parameter that knows how it is loaded, and nothing more
        weight = weight.detach()
    return _ours(x, weight, bias)


def _say(text: str) -> None:
    warnings.warn(f"sassafras: {text}; vLLM is left as it is", RuntimeWarning, stacklevel=3)
