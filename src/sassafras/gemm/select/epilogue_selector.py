"""Which instance with an epilogue serves a call, or whether torch does.

Nothing of this was measured: plain products were. So the prediction starts from the nearest tuned shape
(torch's time and our winner's there), moves both by the static estimate, and charges torch for every pass
over C that it needs beyond its product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..configs import epilogue, few_rows, registry, split_k_early, stream
from ..configs.epilogue import ALONE, Batch, Lines
from ..configs.persistent_pair import PairConfig
from ..configs.registry import Config
from ..configs.stream import StreamConfig
from ..problem.launch import ceil_div
from ..problem.shape import Shape
from .selector import Selector

#: predicted speed-up over torch that ours needs
MARGIN = 1.05
#: the same of a pair of few rows, and of more: of 24 on an H200 those above it reached 1.03 to 1.29
_FEW_PAIRED, _FEW_MARGIN, _PAIRS_MARGIN = 128, 1.08, 0.97
#: rows up to which tiles of few rows serve a layer that torch computes in one launch, too
_FEW_BIASED = 32
#: plain batches that torch serves faster than this (microseconds) are left to it: our call costs more
LEAST_US = 8.0
#: of an elementwise pass over C by torch: microseconds at least, and bytes a microsecond
_PASS_US, _PASS_BYTES = 2.0, 3.5e6


@dataclass(frozen=True, slots=True)
class Extra:
    """What a call asks for beyond the product."""

    bias: bool = False
    activation: str | None = None
    beta: bool = False
    norm: bool = False
    constant: bool = False


def flat(config: Config, shape: Shape, batch: Batch) -> Shape:
    """One product with as many tiles of this configuration as the batch has."""
    if batch.count == 1:
        return shape
    i = config.instance
    rows = config.tile[0] * getattr(i, "cluster_m", 1)
    if config.swap_ab:
        return Shape(shape.m, ceil_div(shape.n, rows) * rows * batch.count, shape.k)
    return Shape(ceil_div(shape.m, rows) * rows * batch.count, shape.n, shape.k)


def library_fuses(extra: Extra, a_dim: int = 2, b_dim: int = 2) -> bool:
    """Whether cuBLASLt has this epilogue, which torch reaches for two matrices."""
    return extra.bias and not extra.beta and a_dim == b_dim == 2 and extra.activation in ("relu", "gelu_tanh")


def torch_passes(extra: Extra, batch: Batch, shape: Shape) -> float:
    """Microseconds that torch takes beyond its product, with which it adds one bias or one C."""
    if batch.count == 1 and library_fuses(extra):
        return 0.0
    pair = extra.activation == epilogue.SWIGLU
    apart = pair and not extra.constant  # silu and the product; Inductor has both in one pass
    passes = int(extra.activation is not None) + apart
    if extra.bias and (extra.beta or batch.count > 1):
        passes += 1
    moved = (2.5 if apart else 3) if pair else 4  # bytes an element of the product
    return passes * max(_PASS_US, moved * shape.m * shape.n * batch.count / _PASS_BYTES)


def choose(
    chooser: Selector,
    shape: Shape,
    layout: str,
    dtype: str,
    batch: Batch = ALONE,
    lines: Lines | None = None,
    aligned: bool = True,
    extra: Extra | None = None,
) -> tuple[Config | None, str]:
    """(configuration or None for torch, why)."""
    extra = extra or Extra()
    pair = extra.activation == epilogue.SWIGLU
    found = epilogue.configurations(shape, layout, dtype, batch, lines, aligned, pair, extra.norm)
    if not found:
        return None, "no kernel with an epilogue can run it"
    named = {config.stem: config for config in found}
    of = chooser.streamed
    most = of.compiled if extra.norm or extra.constant else stream.COLUMNS if pair else of.plain
    streams = shape.m <= most
    if extra.norm:
        for fast in stream.best(shape, 0, of.wide) if streams else ():
            instance = replace(fast.instance, dtype=dtype, epilogue=True, norm=True)
            if (normed := replace(fast, instance=instance)).stem in named:
                return normed, "few normalised rows: the time is that of reading B"
        return None, "torch normalises rows apart"
    alone = batch.count == 1 and layout == "tn"
    few = split_k_early.best(shape, dtype, extra.constant) if aligned and alone and not pair else []
    tiles = next((c for c in few if epilogue.why_illegal(c, shape, batch, lines, pair) is None), None)
    if alone and extra.constant:  # in a compiled model, by `inductor_graph`
        slower = of.wide and tiles is not None and split_k_early.cost_us(tiles, shape) < stream.wide_us(shape)
        for fast in stream.best(shape, stream.LEAST_CONSTANT, of.wide) if streams and not slower else ():
            instance = replace(fast.instance, dtype=dtype, epilogue=True)
            if (early := replace(fast, instance=instance)).stem in named:
                return early, "few rows: the time is that of reading B, which starts early"
    streamed = alone and bool(stream.best(shape))
    # behind other kernels, over torch's product with a bias (20 layers, an H200): 1.06 at 16 rows, 1.02 at 64
    large = shape.n * shape.k >= few_rows.LEAST and not streams
    large &= shape.m <= _FEW_BIASED or extra.beta or torch_passes(extra, batch, shape) > 0
    if tiles is not None and (extra.constant or large):
        return tiles, "few rows: the time is that of reading B, which may start early"
    if streamed and (streams or not pair):
        config, why = _as_plain(chooser, shape, layout, dtype, named)
        if isinstance(config, StreamConfig):
            return config, why
    if pair:
        found = [c for c in found if isinstance(c, PairConfig) and c.dominated(shape) is None]
    if pair and not found:
        return None, "torch multiplies halves of a product that neither kernel for pairs serves"
    if batch.count == 1 and extra == Extra(bias=True):
        config, why = _as_plain(chooser, shape, layout, dtype, named)
        return config, why if config else f"torch adds a bias in its product: {why}"
    together = Shape(shape.m * batch.count, shape.n, shape.k)
    row = chooser.nearest(together, layout)
    if row is None:
        return None, "no tuned shape is near"
    # no epilogue waits for a second launch: the time of one launch tells more of it
    winner, tuned_us = next((t for t in row.ours if len(t[0].instances) == 1), row.ours[0])
    best = min(found, key=lambda c: (c.estimate_us(flat(c, shape, batch)), c.rank))
    modes = [other.mode for other in best.in_modes()]
    best = replace(best, mode=winner.mode if winner.mode in modes else best.mode)  # type: ignore[type-var]
    same = registry.with_dtype(winner, dtype, epilogue=True)
    if same is not None and same.layout == layout and any(c.stem == same.stem for c in found):
        best = same
    ours = best.estimate_us(flat(best, shape, batch)) / winner.estimate_us(row.shape) * tuned_us
    assert row.torch_us is not None
    product_us = min(row.torch_us, tuned_us) if pair else row.torch_us  # what ours replaces
    if pair:  # torch has a tile that suits the shape, as the tuned one had
        torchs = product_us * _least_us(together, layout) / _least_us(row.shape, layout)
    else:
        torchs = product_us * winner.estimate_us(together) / winner.estimate_us(row.shape)
    torchs += torch_passes(extra, batch, shape)
    if extra == Extra() and torchs < LEAST_US:
        return None, f"torch.bmm, whose call costs less than ours, takes {torchs:.0f} us (predicted)"
    speedup = torchs / ours
    margin = (_FEW_MARGIN if shape.m <= _FEW_PAIRED else _PAIRS_MARGIN) if pair else MARGIN
    if speedup < margin:
        return None, f"ours is predicted at {speedup:.2f} of torch's speed (not measured)"
    return best, f"predicted at {speedup:.2f} of torch's speed (not measured)"


@lru_cache(maxsize=256)
def _least_us(shape: Shape, layout: str) -> float:
    """The estimate of whichever configuration suits a shape."""
    return min(config.estimate_us(shape) for config in registry.legal(shape, layouts=(layout,)))


def _as_plain(
    chooser: Selector, shape: Shape, layout: str, dtype: str, found: dict[str, Config]
) -> tuple[Config | None, str]:
    """The plain product's choice, if it is a kernel of ours that is compiled with an epilogue, too.

    The stream kernel's time is that of reading B, whatever is asked for beside the product. A bias alone
    costs torch nothing, which has it in its product. (There the estimate from the nearest tuned shape chose
    kernels of 0.8 to 0.97 of torch's speed for layers of models.)"""

    def twin(config: Config) -> Config | None:
        same = registry.with_dtype(config, dtype, epilogue=True)
        return None if same is None or same.stem not in found else same

    choice = chooser.choose(shape, layout, lambda config: True, twin, lt=False)
    return choice.config, choice.why
