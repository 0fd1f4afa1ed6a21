"""Training of the chooser's trees from data sets; scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sassafras.core import SassafrasError, ToolMissing
from sassafras.gemm.configs.base import PLAIN as PLAIN_MODE
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.select import dataset, predictor

#: trees, leaves and depth of both sets: small enough for a few milliseconds
PLAIN = {
    "max_iter": 200,
    "max_leaf_nodes": 95,
    "max_depth": 12,
    "learning_rate": 0.12,
    "max_features": 0.4,
    "l2_regularization": 5.0,
}
MODES = {"max_iter": 120, "max_leaf_nodes": 31, "max_depth": 8, "learning_rate": 0.12}
#: of the layouts nt and tt and of layers in programs, which have a tenth of the pairs
PLAIN_FEW = {"max_iter": 200, "max_leaf_nodes": 31, "max_depth": 8, "learning_rate": 0.1}
#: of what is added to another GPU's model: small, as no shape off the grid was timed there
ADDED = {
    "max_iter": 60,
    "max_leaf_nodes": 15,
    "max_depth": 6,
    "learning_rate": 0.08,
    "l2_regularization": 20.0,
}
ADDED_MODES = {"max_iter": 30, "max_leaf_nodes": 7, "max_depth": 4, "learning_rate": 0.08}
BASE = "NVIDIA H200"
#: how many such sets are averaged, each of shapes drawn with replacement: one alone overfits a few shapes
MEMBERS = 4
SEED = 0


class Pairs:
    """A dataset as features and targets of both sets of trees, with the shape that each row is of."""

    def __init__(self, entries: Sequence[dataset.DatasetEntry]) -> None:
        plain: list[Any] = []
        modes: list[Any] = []
        for index, entry in enumerate(entries):
            timed = sorted(entry.ours, key=lambda config: config.name)
            configs = [config for config in timed if config.mode == PLAIN_MODE]
            if not configs or "torch" not in entry.baselines:
                continue
            row = dict(zip(configs, predictor.features(configs, entry.shape), strict=True))
            for config, found in row.items():
                torch_us = entry.baselines["torch"].get(config.layout)
                if torch_us is not None:
                    plain.append((index, found, math.log(torch_us / entry.ours[config][0])))
            for config in timed:
                alone = replace(config, mode=PLAIN_MODE)
                if alone != config and alone in row:
                    gain = math.log(entry.ours[alone][0] / entry.ours[config][0])
                    modes.append((index, predictor.with_mode(row[alone][None], [config.mode])[0], gain))
        self.plain, self.modes = (
            [np.array(part) for part in zip(*rows, strict=True)] for rows in (plain, modes)
        )

    def _but(self, without: set[int]) -> list[list[np.ndarray]]:
        """Both sets without these shapes."""
        sets = (self.plain, self.modes)
        return [[part[~np.isin(rows[0], list(without))] for part in rows] for rows in sets]

    def train_added(
        self, without: set[int], base: predictor.Model, header: dict[str, Any]
    ) -> predictor.Model:
        """What is added to another GPU's model, from all shapes but some."""
        (of, plain, speedups), (_, modes, gains) = self._but(without)
        sets = (
            bagged(of, plain, speedups - base.plain.predict(plain), ADDED),
            fitted(modes, gains - base.modes.predict(modes), ADDED_MODES),
        )
        return predictor.Model(*sets, {**header, "base": BASE})

    def train(
        self, without: set[int], header: dict[str, Any], settings: dict[str, Any] | None = None
    ) -> predictor.Model:
        """The model of all shapes but some; settings: of `fitted`, instead of `PLAIN`."""
        (of, plain, speedups), (_, modes, gains) = self._but(without)
        sets = bagged(of, plain, speedups, settings or PLAIN), fitted(modes, gains, MODES)
        return predictor.Model(*sets, {**header, "families": predictor.families_in(plain)})


def bagged(
    of: np.ndarray, found: np.ndarray, target: np.ndarray, settings: dict[str, Any]
) -> predictor.Trees:
    """The mean of `MEMBERS` sets of trees (Breiman 1996), each of as many shapes drawn with replacement.

    Args:
        of: the shape that each row is of: rows of one are drawn together, as they share torch's time.
    """
    shapes, place = np.unique(of, return_inverse=True)
    members = []
    for member in range(MEMBERS):
        drawn = np.random.default_rng((SEED, member)).integers(len(shapes), size=len(shapes))
        times = np.bincount(drawn, minlength=len(shapes))[place].astype(float)
        there = times > 0
        members.append(fitted(found[there], target[there], settings, times[there], member))
    return predictor.Trees.mean(members)


def fitted(
    found: np.ndarray,
    target: np.ndarray,
    settings: dict[str, Any],
    weights: np.ndarray | None = None,
    member: int = 0,
) -> predictor.Trees:
    """Boosted trees as flat arrays.

    Args:
        weights: of the rows.
        member: draws another order of features.

    Raises:
        ToolMissing: scikit-learn is not installed, or too old.
        SassafrasError: this scikit-learn keeps its trees in another way.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise ToolMissing("training needs scikit-learn", hint="pip install 'scikit-learn>=1.4'") from error
    try:
        model = HistGradientBoostingRegressor(random_state=SEED + member, early_stopping=False, **settings)
    except TypeError as error:
        raise ToolMissing(
            f"this scikit-learn is too old: {error}", hint="pip install 'scikit-learn>=1.4'"
        ) from error
    model.fit(found, target, sample_weight=weights)
    try:
        trees = flat(
            [one[0].nodes for one in model._predictors], float(np.ravel(model._baseline_prediction)[0])
        )
    except (AttributeError, KeyError, IndexError, ValueError) as error:
        raise SassafrasError(f"this scikit-learn keeps its trees in another way: {error}") from error
    sample = found[:: max(1, len(found) // 2000)]
    if not np.allclose(trees.predict(sample), model.predict(sample), atol=1e-5):
        raise SassafrasError("the trees do not say what scikit-learn's say")
    return trees


def flat(trees: Sequence[np.ndarray], base: float) -> predictor.Trees:
    """scikit-learn's nodes of all trees, one after another."""
    roots = np.cumsum([0, *(len(nodes) for nodes in trees[:-1])])
    parts = []
    for root, nodes in zip(roots, trees, strict=True):
        own, leaf = np.arange(len(nodes)) + root, nodes["is_leaf"].astype(bool)
        children = np.stack(
            [np.where(leaf, own, root + nodes[side].astype(int)) for side in ("left", "right")], 1
        )
        parts.append(
            (
                np.where(leaf, 0, nodes["feature_idx"]),
                np.where(leaf, np.inf, nodes["num_threshold"]),
                children,
                np.where(leaf, nodes["value"], 0.0).astype(np.float32).astype(float),
                nodes["depth"],
            )
        )
    feature, threshold, children, value, depth = (np.concatenate(part) for part in zip(*parts, strict=True))
    return predictor.Trees(base, int(depth.max()), roots, feature, threshold, children, value)


def known(entries: Sequence[dataset.DatasetEntry], winners: int = 4) -> dict[str, Any]:
    """What a model may choose from besides the table: the fastest few of each shape and layout."""
    found = []
    for e in entries:
        for layout in sorted(e.baselines["torch"]):
            if ranked := [config for config, _ in e.ranked(layout)]:
                found.append((e.shape, layout, ranked[:winners]))
    return predictor.Model.knowing(found)


def layers(found: dataset.Dataset) -> list[dataset.DatasetEntry]:
    """Layers as programs have them, smallest first, each configuration in its faster mode, called plain."""
    made = []
    for shape in sorted(found.entries):
        ours: dict[Config, tuple[float, int]] = {}
        for config, timed in found[shape].ours.items():
            stem = replace(config, mode=PLAIN_MODE)
            ours[stem] = min(timed, ours.get(stem, timed))
        made.append(replace(found[shape], ours=ours))
    return made


def of_layers(
    model: predictor.Model, of: Sequence[dataset.DatasetEntry], besides: Sequence[dataset.DatasetEntry]
) -> predictor.Model:
    """The model with trees of these layers; it may choose from their winners and from those of `besides`."""
    taken, found, target = Pairs(of).plain
    trees = bagged(taken, found, target, PLAIN_FEW)
    return replace(model, header=model.header | known([*besides, *of]), program=trees)
