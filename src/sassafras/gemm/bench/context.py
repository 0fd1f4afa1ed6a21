"""A product as a program has it: B from memory, an elementwise kernel before and after; who serves it best.

All that could serve it is timed there by successive halving: the chooser's favourites and the estimate's,
cuBLASLt's algorithms, torch. The winner is timed a second time, beside torch twice (the A/A control) and what
has served so far, and replaces either only if it gains more than these two differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.cublas import CublasError, LtAlgorithm
from sassafras.cuda.driver import CudaError

from .. import matmul as room
from ..configs import epilogue, registry
from ..configs.base import PLAIN
from ..configs.fields import to_fields
from ..configs.registry import Config, Instance, with_dtype
from ..matmul.choice import chooser_of, member_of
from ..matmul.loading import load_table
from ..matmul.plan import epilogue_problem, why_illegal
from ..matmul.problem import Problem
from ..problem.shape import Product
from ..select.selector import Choice, Selector
from .dry_run import DryOperands
from .operands import BASELINE_RMS_LIMIT, RMS_LIMIT, OperandSet
from .timing import Enqueue, TimedBlock, timed

#: sets of operands that a chain rotates through at most
_SETS = 24
#: microseconds that a block lasts at least, about
_BLOCK_US = 200.0
#: candidates of the chooser, of the estimate; cuBLASLt's are tried all, as AutoTuning does
_CHOSEN, _ESTIMATED = 16, 8
#: rounds of the first two rungs and how many stay; least and most rounds of the last and of the winner's
_RUNGS, _ROUNDS = ((3, 12), (11, 8)), (5, 61)
#: speed-up over torch and over what has served that a winner needs at least; times what the A/A control shows
_MARGIN, _NOISE = 1.01, 2.0
#: rows of C that are compared at once
_ROWS = 512


def chooser(stage: Any) -> Selector:
    """What chooses on this GPU, or an H200 where it is modelled. Raises SassafrasError: nothing does."""
    if stage.modelled:
        table = load_table("NVIDIA H200")
        assert table is not None
        return chooser_of("NVIDIA H200", table, stage.lt.version)
    api = room.api
    if api._engine is None:
        api._set_up()
    gpu = api._engine.gpu(0) if api._engine else None
    if gpu is None or gpu.chooser is None:
        raise SassafrasError(gpu.why_not if gpu else "the CUDA driver does not serve")
    return gpu.chooser


def candidates(chooser: Selector, product: Product) -> list[Config]:
    """Our configurations that are tried: what serves today, the chooser's favourites, the estimate's."""
    problem = Problem.of(product)

    def legal(config: Config) -> bool:
        return why_illegal(config, problem) is None

    def twin(config: Config) -> Config | None:
        return with_dtype(config, product.dtype, epilogue=not product.plain)

    if product.plain:
        able = registry.legal(product.shape, dtype=product.dtype, layouts=(product.layout,))
    else:
        able = epilogue.configurations(*epilogue_problem(problem))
    families: dict[str, list[Config]] = {}
    for config in sorted(able, key=lambda c: (c.estimate_us(product.shape), c.rank)):
        families.setdefault(config.FAMILY, []).append(config)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*families.values()))
    estimated = (config for config in turns if config is not None and legal(config))
    favourites = chooser.favourites(product.shape, product.layout, legal, twin)
    # launches that overlap are tried with the leaders alone
    chosen = dict.fromkeys(replace(config, mode=PLAIN) for config in favourites)
    found = [*itertools.islice(chosen, _CHOSEN), *itertools.islice(estimated, _ESTIMATED)]
    today = member_of(chooser, problem).config
    return list(dict.fromkeys([*([today] if today else []), *found]))


def instances(chooser: Selector, products: Iterable[Product]) -> list[Instance]:
    """The kernels of all candidates, each once."""
    return list(dict.fromkeys(i for p in products for c in candidates(chooser, p) for i in c.instances))


class Context:
    """A product on sets of operands that share A and C; the sets' Bs exceed twice the L2, if `most` suffice.

    Contestants are a configuration, cuBLASLt's algorithm, ``sassafras`` (its matmul), else torch.

    Args:
        stage: `Contestants` or `DryContestants`.
        most: sets; one: B stays in the L2.
        around: an elementwise kernel before and after each product; else they lie back to back.

    Attributes:
        lt: cuBLASLt's problem.
        sets: of operands.
        wrong: lines about contestants that failed.
    """

    def __init__(
        self, stage: Any, product: Product, seed: int = 0, *, most: int = _SETS, around: bool = True
    ) -> None:
        self.stage, self.product, self.wrong = stage, product, list[str]()
        shape = product.shape
        self.lt = stage.lt.problem(shape, product.layout, product.dtype)
        enough = 2 * stage.l2_bytes // (2 * shape.n * shape.k) + 1
        count = min(most, max(2, enough))  # the end of a single one could stay
        self._around, self._calls = around, dict[Any, list[Callable[[], Any]]]()
        self._blocks: dict[Any, TimedBlock] = {}
        if stage.modelled:
            self.sets: list[Any] = [DryOperands(shape) for _ in range(count)]
            return
        import torch

        generator = torch.Generator(device="cuda").manual_seed(seed)
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[product.dtype]

        def drawn(*extents: int) -> Any:
            values = torch.empty(extents, dtype=kind, device="cuda")
            return values.normal_(generator=generator)

        m, n, k = shape.m, shape.n, shape.k
        by_columns = product.layout[1] == "t"
        a, c = drawn(*((k, m) if by_columns else (m, k))), drawn(m, n)
        self._a, key = a, product.layout[0] + "n"
        lying = (None, a) if by_columns else (a, None)
        made = (drawn(*((k, n) if key == "nn" else (n, k))).mul_(k**-0.5) for _ in range(count))
        self.sets = [OperandSet(shape, lying[0], {key: b}, c, lying[1]) for b in made]
        self._epilogue: dict[str, Any] = {
            "bias": drawn(n) if product.bias else None,
            "activation": product.activation,
            "alpha": 0.5 if product.scaled else 1.0,
            "beta": float(product.addend),
            "addend": drawn(m, n) if product.addend else None,
        }

    def call(self, key: Any, operands: Any) -> Callable[[], Any]:
        """A contestant on a set, as a program has it."""
        stage, layout = self.stage, self.product.layout
        if key == "sassafras":
            return stage.portfolio(layout, operands)  # type: ignore[no-any-return]
        if isinstance(key, LtAlgorithm):
            return stage.lt_call(self.lt, key, operands)  # type: ignore[no-any-return]
        if stage.modelled:
            return (  # type: ignore[no-any-return]
                stage.torch_matmul(layout, operands) if isinstance(key, str) else stage.ours(key, operands)
            )
        api = room.api  # loads torch, which the modelled clock does not need
        (a, b), c, torch = operands.factors(layout), operands.c, api.torch
        if not isinstance(key, str):
            return api._engine.bind(key, a, b, c, **self._epilogue)  # type: ignore[no-any-return]
        if self.product.plain:
            return lambda: torch.matmul(a, b, out=c)
        if self.product == self.product._replace(activation=None, addend=False, scaled=False):
            return lambda: torch.addmm(self._epilogue["bias"], a, b, out=c)
        return lambda: api.composed(a, b, **self._epilogue)

    def calls(self, key: Any) -> list[Callable[[], Any]]:
        """A contestant on each set; what has to be loaded before a capture is loaded."""
        if key not in self._calls:
            made = [self.call(key, operands) for operands in self.sets]
            for call in made:
                call()
            self._calls[key] = made
        return self._calls[key]

    def chain(self, key: Any) -> list[Enqueue]:
        """The product on each set in turn; if `around`, between elementwise kernels on A and on C."""
        if not self._around:
            return self.calls(key)
        gpu, steps = self.stage.gpu, list[Enqueue]()
        for operands, call in zip(self.sets, self.calls(key), strict=True):
            if self.stage.modelled:
                steps += [lambda: gpu.launch(2.0), lambda call=call: (call(), gpu.launch(2.0))]  # type: ignore[misc, list-item]
                continue

            def both(call: Callable[[], Any] = call, c: Any = operands.c) -> None:
                result = call()
                (c if result is None else result).mul_(0.5)

            steps += [lambda: self._a.mul_(1.0), both]
        return steps

    def take(self, keys: Iterable[Any]) -> list[Any]:
        """Those contestants that can be launched; they have blocks from now on. Raises CudaError (sticky)."""
        product, taken = self.product.shape, []
        guess = len(self.sets) * (6.0 + max(product.flop / 7e8, product.nbytes / 4e6))
        repeats = int(max(1, _BLOCK_US // guess))
        for key in keys:
            try:
                if key not in self._blocks:
                    chain = self.chain(key)
                    self._blocks[key] = self.stage.block(chain, repeats * len(chain))
                taken.append(key)
            except (SassafrasError, CublasError, CudaError) as error:
                if getattr(error, "sticky", False):
                    raise
                self.wrong.append(f"{name(key)}: {error}")
        return taken

    def times(self, keys: Sequence[Any], rounds: int) -> np.ndarray:
        """Microseconds of a product and of the kernels around it: (rounds, contestants)."""
        blocks = [self._blocks[key] for key in keys]
        return (1 + self._around) * timed(self.stage.gpu, self.stage.watch, blocks, rounds)

    def fastest(self, keys: Iterable[Any]) -> Any:
        """Of these contestants; no contestant has blocks any more.

        Raises:
            DeviceError: none of them can be launched.
            CudaError: the context is lost.
        """
        try:
            if not (alive := self.take(keys)):
                raise DeviceError("no contestant can be launched", where=str(self.product))
            for rounds, keep in ((3, 6), (15, 1)):
                alive = _ranked(self, alive, rounds)[:keep]
            return alive[0]
        finally:
            self._discard()

    def right(self, key: Any) -> bool:
        """Whether the error against FP32 is torch's, about (`operands`)."""
        limit = BASELINE_RMS_LIMIT if isinstance(key, LtAlgorithm) else RMS_LIMIT
        found = self.errors({k: self.calls(k)[:1] for k in ("torch", key)})
        torchs, own = float(found["torch"][0]), float(found[key][0])
        if not own <= limit * torchs:
            self.wrong.append(f"{name(key)}: RMS error {own:.3g}, torch's is {torchs:.3g}")
        return own <= limit * torchs

    def errors(self, calls: Mapping[Any, Sequence[Callable[[], Any]]]) -> dict[Any, np.ndarray]:
        """RMS errors against FP32 of calls on the first sets: float64 (calls,); zeros if modelled."""
        many = min(map(len, calls.values()))
        total = np.zeros((len(calls), many))
        for at in range(0 if self.stage.modelled else many):
            results = []
            for those in calls.values():
                self.sets[at].c.fill_(float("nan"))
                result = those[at]()
                results.append((self.sets[at].c if result is None else result).clone())
            for first, exact in self._exact(self.sets[at]):
                for index, result in enumerate(results):
                    error = result[first : first + _ROWS].float() - exact
                    total[index, at] += float(error.double().square_().sum())
            total[:, at] /= results[0].numel()
        return dict(zip(calls, np.sqrt(total), strict=True))

    def _exact(self, operands: Any) -> Iterator[tuple[int, Any]]:
        """The first of some rows of C, and these rows in FP32."""
        activated, more = room.api.activated, self._epilogue
        a, b = operands.factors(self.product.layout)
        b, bias = b.float(), 0.0 if more["bias"] is None else more["bias"]
        for at in range(0, len(a), _ROWS):
            rows = slice(at, at + _ROWS)
            added = 0.0 if more["addend"] is None else more["addend"][rows]
            yield at, activated(more["alpha"] * (a[rows].float() @ b) + added + bias, more["activation"])

    def close(self) -> None:
        """Free the graphs, and what calls hold."""
        self._discard()
        self._calls.clear()
        self.lt.close()

    def _discard(self) -> None:
        while self._blocks:
            self._blocks.popitem()[1].discard(self.stage.gpu)


def tune(stage: Any, chooser: Selector, product: Product, seconds: float, seed: int = 0) -> dict[str, Any]:
    """The record of a product: the fields of `ProductRow` but the calls, ``control``, ``wrong``.

    Args:
        seconds: GPU time, about.

    Raises:
        CudaError: the context is lost.
    """
    here = Context(stage, product, seed)
    try:
        return _tuned(here, chooser, seconds)
    finally:
        here.close()


def _tuned(here: Context, chooser: Selector, seconds: float) -> dict[str, Any]:
    stage, product = here.stage, here.product
    today = member_of(chooser, Problem.of(product))
    before = _key(today)
    library: list[Any] = []
    if product.plain:
        library = stage.lt.candidates(here.lt)
    known = [before] if isinstance(before, LtAlgorithm) else []
    alive = here.take(["torch", *candidates(chooser, product), *known, *library])
    if before not in alive:
        before = "torch"
    for rung, (rounds, keep) in enumerate(_RUNGS):
        ranked = _ranked(here, alive, rounds)
        alive = ranked[:keep]
        if rung == 0:
            leaders = [key for key in alive if not isinstance(key, str | LtAlgorithm)][:3]
            alive = here.take(dict.fromkeys([*alive, *(c for key in leaders for c in key.in_modes())]))
    best = list(itertools.islice((key for key in ranked if key != "torch" and here.right(key)), 3))
    ours = []
    if best:
        table = here.times(best, _rounds(here, best, seconds / 2))
        timed_ = sorted(zip(np.median(table, axis=0).tolist(), best, strict=True), key=lambda row: row[0])
        best = [key for _, key in timed_]
        ours = [(key, us) for us, key in timed_ if not isinstance(key, str | LtAlgorithm)]
    final = here.take(dict.fromkeys(["torch", "control", before, *best[:1]]))
    table = here.times(final, _rounds(here, final, seconds / 2))
    us = dict(zip(final, np.median(table, axis=0).tolist(), strict=True))
    control = float(np.median(table[:, 0] / table[:, 1]))
    needed = max(_MARGIN, 1 + _NOISE * abs(control - 1))
    right = [key for key in ("torch", *best[:1], before) if key in ("torch", *best) or here.right(key)]
    winner = min(right, key=us.__getitem__)
    for kept in (before, "torch"):
        if kept in right and us[kept] < needed * us[winner]:
            winner = kept
    member = "torch" if winner == "torch" else "lt" if isinstance(winner, LtAlgorithm) else "ours"
    if member == "ours":  # those that are slower stand in where lines have gaps
        ours = [(winner, us[winner]), *(row for row in ours if row[0] != winner)]
    return {
        "product": product.to_json(),
        "member": member,
        "ours": [[to_fields(key), round(t, 3)] for key, t in ours] if member == "ours" else [],
        "us": round(us[winner], 3),
        "torch_us": round(us["torch"], 3),
        "before_us": round(us[before], 3),
        "before": today.member if before != "torch" else "torch",
        "lt": winner.to_json() if isinstance(winner, LtAlgorithm) else None,
        "cublaslt": stage.lt.version,
        "control": round(control, 4),
        "wrong": here.wrong[:8],
    }


def _key(choice: Choice) -> Any:
    """The contestant that a choice is."""
    if choice.member == "lt" and choice.row and choice.row.lt:
        return LtAlgorithm.from_json(choice.row.lt)
    return choice.config or "torch"


def _ranked(here: Context, keys: Sequence[Any], rounds: int) -> list[Any]:
    """Fastest first."""
    medians = np.median(here.times(keys, rounds), axis=0)
    return [keys[at] for at in np.argsort(medians, kind="stable")]


def _rounds(here: Context, keys: Sequence[Any], seconds: float) -> int:
    """What the time allows."""
    one = float(here.times(keys, 1).sum()) * len(here.sets)
    return int(min(_ROUNDS[1], max(_ROUNDS[0], seconds * 1e6 // one)))


def name(key: Any) -> str:
    """What a contestant is called."""
    return "cuBLASLt" if isinstance(key, LtAlgorithm) else getattr(key, "name", key)
