"""`verify --batch-invariant`: whether rows of a program's results depend on the other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SassafrasError, ToolMissing
from sassafras.targets.load import execute, located

#: rows of the whole batch; rows of batches that are compared with it
ROWS = 256
BATCHES = (1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 64, 65, 100, 128, 200, 255)
_CONTRACT = "define build() -> a module or function, and inputs(rows) -> tensors with so many rows"


@dataclass(frozen=True, slots=True)
class BatchInvariance:
    """What came of a check.

    Attributes:
        program: its file's name.
        device: where its first result lies.
        rows: results of rows that were compared.
        unequal: batch size, or what else was changed -> rows whose bits differ.
    """

    program: str
    device: str
    rows: int
    unequal: dict[str, int]

    @property
    def failed(self) -> bool:
        """Some row has other bits in another batch."""
        return bool(self.unequal)

    def summary(self) -> str:
        """For people."""
        told = f"{self.program} on {self.device}: {self.rows} rows compared"
        if not self.unequal:
            return f"{told}, all have the same bits in any batch"
        of = ", ".join(f"{count} in {name}" for name, count in self.unequal.items())
        return f"{told}; rows with other bits: {of}"


def batch_invariance(
    path: Path, *, rows: int = ROWS, batches: Sequence[int] = BATCHES, seed: int = 0
) -> BatchInvariance:
    """Run a program's function on a batch and on parts of it, and compare the bits of each row's results.

    The file defines ``build()``, which returns a module or a function, and ``inputs(rows)``, which returns a
    tensor or several, of `rows` rows each. The function returns tensors of as many rows, alone, in tuples,
    lists or dictionaries. It runs without gradients, as it is: it enters `sassafras.batch_invariant` itself.
    Besides parts from anywhere, permuted rows are compared, and rows of which the others are zeros.

    Args:
        path: the program, which is executed.
        rows: of the whole batch.
        batches: rows of its parts; larger ones than the whole are left out.
        seed: of the places.

    Raises:
        ToolMissing: torch is not installed.
        WorkloadError: the file raises.
        SassafrasError: it does not define these two, or what they return is something else.
    """
    try:
        import torch
    except ImportError as error:
        raise ToolMissing("verify --batch-invariant needs torch", hint="pip install torch") from error
    module = execute(path)
    if missing := [name for name in ("build", "inputs") if not callable(getattr(module, name, None))]:
        raise SassafrasError(f"there is no {missing[0]}()", where=str(path), hint=_CONTRACT)
    call, given = _called(path, module.build), _called(path, module.inputs, rows)
    whole_inputs = tuple(given) if isinstance(given, tuple | list) else (given,)
    if isinstance(call, torch.nn.Module):
        call.eval()
    for value in whole_inputs:
        if not isinstance(value, torch.Tensor) or value.dim() < 1 or len(value) != rows:
            raise SassafrasError(f"inputs({rows}) are not {rows} rows", where=str(path), hint=_CONTRACT)
    rng, unequal, compared = np.random.default_rng(seed), dict[str, int](), 0
    with torch.no_grad():
        whole = _results(call, [t.clone() for t in whole_inputs], rows, path)  # it may work in place
        for name, places, change in _parts(rows, batches, rng):
            at = torch.from_numpy(places).to(whole_inputs[0].device)
            results = _results(call, change([t[at.to(t.device)] for t in whole_inputs]), None, path)
            if len(results) != len(whole):
                told = f"the results of {rows} rows are {len(whole)} tensors, "
                told += f"those of {len(results[0])} rows {len(results)}"
                raise SassafrasError(told, where=str(path), hint=_CONTRACT)
            differ = sum(_differ(one, of, places) for one, of in zip(results, whole, strict=True))
            compared += len(places)
            if count := int((np.asarray(differ) > 0).sum()):
                unequal[name] = unequal.get(name, 0) + count
    return BatchInvariance(path.name, str(whole[0].device), compared, unequal)


_Change = Callable[[list[Any]], Sequence[Any]]


def _parts(
    rows: int, batches: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray, _Change]]:
    """(name, places of the rows that are compared, what is done to the inputs)."""
    for batch in (b for b in batches if b <= rows):
        first = int(rng.integers(0, rows - batch + 1))
        yield f"a batch of {batch}", np.arange(first, first + batch), list
    for _ in range(2):
        yield "permuted rows", rng.permutation(rows), list
    few = rng.permutation(rows)[: max(1, rows // 8)]
    yield "rows with zeros behind them", few, lambda given: [_padded(t, rows) for t in given]


def _padded(tensor: Any, rows: int) -> Any:
    import torch

    return torch.cat([tensor, tensor.new_zeros((rows - len(tensor), *tensor.shape[1:]))])


def _called(path: Path, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the program returns. Raises WorkloadError: it raised."""
    try:
        return function(*given)
    except Exception as error:
        raise located(error, path) from error


def _leaves(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key])
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)


def _results(call: Any, given: Sequence[Any], rows: int | None, path: Path) -> list[Any]:
    """Tensors of a call's result. Raises SassafrasError: there is none, or one has not as many rows."""
    found, wanted = list(_leaves(_called(path, call, *given))), len(given[0]) if rows is None else rows
    if not found or any(t.dim() < 1 or len(t) != wanted for t in found):
        told = f"the results of {wanted} rows are not tensors of {wanted} rows"
        raise SassafrasError(told, where=str(path), hint=_CONTRACT)
    return [t.clone() for t in found]  # the next call may give the same memory


def _differ(part: Any, whole: Any, places: np.ndarray) -> np.ndarray:
    """For each place 1 where its row in a part has other bytes than in the whole."""
    import torch

    count, at = len(places), torch.from_numpy(places).to(whole.device)
    rows = (t.detach().cpu().contiguous().reshape(count, -1) for t in (part[:count], whole[at]))
    left, right = (t.view(torch.uint8).numpy() for t in rows)
    return np.asarray((left != right).any(axis=1), np.int64)
