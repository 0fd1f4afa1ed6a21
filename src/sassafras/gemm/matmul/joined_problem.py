"""Products that share their rows, as launchers take them: a problem, and addresses. The twin of a part of
`launcher/problem.hpp`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..configs import joined
from .problem import BIAS, CONSTANT, NORM, Problem

#: `Problem.transposed` of them; `Problem.step_b` and ``step_c`` are where the second product and the third
#: begin in C (0: there is no third)
JOINED = 16


class JoinedCall(NamedTuple):
    """x @ b | x @ second | x @ third, each with its bias, where x is a, RMS-normalised if there is a `norm`.

    Attributes:
        a: (..., k).
        b, second, third: (k, n of their own).
        bias, second_bias, third_bias: (n of their own).
        norm: (k): x is a * norm / sqrt(mean of a row's squares + eps).
        constant: weights and norm were written before the launch ahead of this one began.
    """

    a: Any
    b: Any
    second: Any
    third: Any = None
    bias: Any = None
    second_bias: Any = None
    third_bias: Any = None
    norm: Any = None
    eps: float = 0.0
    constant: bool = False

    @property
    def weights(self) -> list[Any]:
        """Two or three."""
        return [w for w in self[1:4] if w is not None]

    @property
    def biases(self) -> tuple[Any, ...]:
        """One a weight, None: none."""
        return self[4 : 4 + len(self.weights)]

    @property
    def tensors(self) -> list[Any]:
        """Those that were given."""
        return [t for t in self[:8] if t is not None]


def read_joined(
    call: JoinedCall, out: Any = None, device_type: str = "cuda"
) -> tuple[Problem, dict[str, int]] | None:
    """What a call of plain tensors (of stand-ins without memory, `out` None) asks for: problem, and addresses
    by parameter; None for what no kernel takes: gaps between a's lines or out's, weights whose columns do not
    lie at the same distance, or are no multiple of `joined.UNIT`, addresses that are none of 16 bytes."""
    import torch

    a, weights, biases = call.a, call.weights, call.biases
    tensors = call.tensors if out is None else [*call.tensors, out]
    if a.device.type != device_type or a.dtype not in (torch.float16, torch.bfloat16) or a.dim() < 1:
        return None
    if any((t.dtype, t.device) != (a.dtype, a.device) for t in tensors) or not a.is_contiguous():
        return None
    if call.b is None or call.second is None or any(b is not None for b in call[4 + len(weights) : 7]):
        return None
    k, cuts, n = a.shape[-1], [0], 0
    for weight, bias in zip(weights, biases, strict=True):
        if weight.dim() != 2 or weight.shape[0] != k or weight.stride(0) != 1:
            return None
        width, line = weight.shape[1], weight.stride(1)
        if not width or width % joined.UNIT or line < k or line != weights[0].stride(1):
            return None
        if bias is not None and (bias.shape != (width,) or bias.stride(0) != 1):
            return None
        n += width
        cuts.append(n)
    if not a.numel() or (
        call.norm is not None and not (call.norm.shape == (k,) and call.norm.is_contiguous())
    ):
        return None
    at: dict[str, int] = {}
    if out is not None:
        if out.shape != (*a.shape[:-1], n) or not out.is_contiguous():
            return None
        names = "a", "b", "second", "third", "bias", "second_bias", "third_bias", "norm"
        given = dict(zip(names, call, strict=False))
        at = {name: 0 if t is None else t.data_ptr() for name, t in given.items()} | {"c": out.data_ptr()}
        at["third"] = at["third"] or at["second"]  # of which there is a tensor map
        if any(address % 16 for address in at.values()):
            return None
        end = at["c"] + 2 * out.numel()
        if any(at[name] < end and at["c"] < at[name] + 2 * _span(t) for name, t in given.items()):
            return None
    extra = (
        BIAS * any(b is not None for b in biases) | NORM * (call.norm is not None) | CONSTANT * call.constant
    )
    kinds = a.device.index or 0, int(a.dtype == torch.bfloat16), a.numel() // k, n, k, JOINED
    begins = cuts[1], cuts[2] if len(weights) == 3 else 0
    return Problem(*kinds, k, weights[0].stride(1), n, 1, 1, 0, *begins, extra), at


def apart(problem: Problem) -> tuple[Problem, tuple[int, ...]]:
    """(the problem of one product with all columns, where the second product and the third begin)."""
    cuts = tuple(filter(None, (problem.step_b, problem.step_c)))
    return problem._replace(transposed=1, step_b=0, step_c=0), cuts


def _span(tensor: Any) -> int:
    """Elements from the first to the last."""
    if tensor is None:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
