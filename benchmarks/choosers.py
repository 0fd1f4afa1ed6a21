"""Who chooses for shapes never tuned: trains the dispatcher's model, and compares it with other rules.

    python benchmarks/choosers.py --train       # writes gemm/select/data/*.chooser.npz
    python benchmarks/choosers.py               # on shapes held out: writes choosers.json
    python benchmarks/choosers.py --program --train      # its trees of layers as programs have them alone
    python benchmarks/choosers.py --backward --train     # the model of nt and tt
    python benchmarks/choosers.py --gpu nvidia-h100-80gb-hbm3 [--train]  # what is added to the H200's model

No GPU; scikit-learn trains. Choosers may name whatever they could name in a program, and times are looked up
in the dataset. A mode of launching that was not timed there counts as the plain launch, and a kernel with the
quick start as the one without it, which is pessimistic for every chooser alike; what was not timed at all is
counted ("unknown") and left out.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
from common import command_line, write

from sassafras.core import SassafrasError, ToolMissing
from sassafras.gemm.configs.backward import PART
from sassafras.gemm.configs.base import PLAIN as PLAIN_MODE
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.select import dataset, predictor
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TunedTable

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
#: times of shapes off the grid, which no table holds: the model learns from them what the grid cannot show
OFF_GRID = sorted(dataset.DATASETS.glob("nvidia-h200.offgrid*.jsonl.gz"))
#: times of shapes that nothing learns from: they judge, each file by itself
UNSEEN = sorted(dataset.DATASETS.glob("nvidia-h200.unseen-*.jsonl.gz"))
#: layers as programs have them (`contexts.py learn`)
PROGRAM = dataset.DATASETS / "nvidia-h200.program.jsonl.gz"
#: parts of them that are judged by what was learnt from the others
FOLDS = 3
#: predicted speed-ups asked for, of all shapes alike
MARGINS = (1.0, 1.03, 1.06, 1.08, 1.12, 1.2)
#: the same of layers in programs
LAYER_MARGINS = (1.0, 1.01, 1.02, 1.03, 1.04, 1.06)
#: whatever is predicted is taken: what a prediction is worth
ANY = SelectorSettings(model_margin=0.0, program_margin=0.0)


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
        self, without: set[int], header: dict[str, Any], settings: dict[str, Any] = PLAIN
    ) -> predictor.Model:
        """The model of all shapes but some."""
        (of, plain, speedups), (_, modes, gains) = self._but(without)
        sets = bagged(of, plain, speedups, settings), fitted(modes, gains, MODES)
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


def look_up(entry: dataset.DatasetEntry, config: Config) -> float | None:
    """Microseconds; of the plain launch where the mode was not timed, and of the fastest kernel that differs
    in stages and in the quick start alone where that one was not; None where nothing is known."""
    if us := entry.us(config) or entry.us(replace(config, mode=PLAIN_MODE)):
        return us
    wanted = _but_for_stages(config)
    found = [
        us
        for other, (us, _) in entry.ours.items()
        if other.mode == PLAIN_MODE and _but_for_stages(other) == wanted
    ]
    return min(found, default=None)


def _but_for_stages(config: Any) -> Any:
    plain = replace(config, mode=PLAIN_MODE)
    if not hasattr(config.instance, "k_blocks"):
        return plain
    return replace(plain, instance=replace(config.instance, stages=0, k_blocks=0))


def judge(chooser: Selector, entries: Sequence[dataset.DatasetEntry]) -> list[dict[str, Any]]:
    """What the chooser says of each shape and layout, and what that is worth."""
    rows = []
    for entry in entries:
        for layout, torch_us in entry.baselines["torch"].items():

            def legal(config: Any, entry: dataset.DatasetEntry = entry, layout: str = layout) -> bool:
                return config.layout == layout and config.why_illegal(entry.shape) is None

            choice = chooser.choose(entry.shape, layout, legal)
            us = look_up(entry, choice.config) if choice.member == "ours" and choice.config else torch_us
            best = min([torch_us, *(us for _, us in entry.ranked(layout))])
            row = {
                "shape": str(entry.shape),
                "layout": layout,
                "config": to_fields(choice.config) if choice.config else None,
                "predicted": choice.speedup,
                "torch_of_best": best / torch_us,
            }
            if us is not None:
                row |= {"over_torch": torch_us / us, "fraction_of_best": best / us}
            rows.append(row)
    return rows


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one chooser on one fold."""
    asked, rows = len(rows), [row for row in rows if "over_torch" in row]
    over = [row["over_torch"] for row in rows]
    part = sorted(row["fraction_of_best"] for row in rows)
    return {
        "problems": len(rows),
        "ours": sum(row["config"] is not None for row in rows),
        "unknown": asked - len(rows),
        "geomean_over_torch": math.exp(statistics.fmean(map(math.log, over))),
        "worst_over_torch": min(over),
        "slower_by_1_percent": sum(value < 0.99 for value in over),
        "slower_by_3_percent": sum(value < 0.97 for value in over),
        "slower_by_5_percent": sum(value < 0.95 for value in over),
        "fraction_of_best": statistics.fmean(part),
        "worst_fraction": part[0],
        "fraction_of_best_5_percent": part[len(part) // 20],
    }


def asking(rows: Sequence[dict[str, Any]], settings: SelectorSettings) -> list[dict[str, Any]]:
    """What was chosen whatever was predicted (`ANY`), where these settings would have torch instead."""
    return [
        row
        if row["predicted"] >= settings.model_margin
        else row | {"config": None, "over_torch": 1.0, "fraction_of_best": row["torch_of_best"]}
        for row in rows
    ]


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


def in_program_folds(
    table: TunedTable, model: predictor.Model, besides: Sequence[dataset.DatasetEntry]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Layers as programs have them, each judged by what was learnt from layers of another n and k: rows by
    fold, and all together."""
    entries = layers(dataset.Dataset.load(PROGRAM))
    kinds = sorted({(e.shape.n, e.shape.k) for e in entries})
    every: dict[str, list[dict[str, Any]]] = {}
    rows = []
    for fold in range(FOLDS):
        out = set(kinds[fold::FOLDS])
        test = [e for e in entries if (e.shape.n, e.shape.k) in out]
        rest = [e for e in entries if (e.shape.n, e.shape.k) not in out]
        before = judge(Selector(table, model=replace(model, program=None)), test)
        judged = {"torch": judge(Selector(TunedTable({}, [])), test), "trees of calls back to back": before}
        chosen = judge(Selector(table, ANY, model=of_layers(model, rest, besides)), test)
        for margin in LAYER_MARGINS:
            judged[f"trees, margin {margin}"] = asking(chosen, SelectorSettings(model_margin=margin))
        shipped = SelectorSettings(model_margin=SelectorSettings().program_margin)
        judged["trees as shipped"] = asking(chosen, shipped)
        judged["the best known"] = [best(e, layout) for e in test for layout in e.baselines["torch"]]
        for name, found in judged.items():
            every.setdefault(name, []).extend(found)
            rows.append({"held_out": f"program, part {fold}", "chooser": name, **summed(found)})
            print(rows[-1], flush=True)
    return rows, {name: summed(found) for name, found in every.items()}


def compared(
    table: TunedTable, model: predictor.Model, entries: Sequence[dataset.DatasetEntry]
) -> dict[str, list[dict[str, Any]]]:
    """What choosers say of these entries (`judge`), by their names."""
    rows = {
        "torch": judge(Selector(TunedTable({}, [])), entries),
        "neighbours": judge(Selector(table), entries),
    }
    chosen = judge(Selector(table, ANY, model=model, backward=model), entries)
    for margin in MARGINS:
        rows[f"trees, margin {margin}"] = asking(chosen, SelectorSettings(model_margin=margin))
    return rows | {"trees as shipped": asking(chosen, SelectorSettings())}


def in_folds(
    found: dataset.Dataset, others: dataset.Dataset, kept: Path | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """All shapes, each judged by choosers that have not seen it: rows by fold, and all together on the grid
    and off it.

    Args:
        kept: folder of the folds' models; those that are there are not trained again.
    """
    grid = [found[shape] for shape in sorted(found.entries)]
    entries = [*grid, *(others[shape] for shape in sorted(others.entries))]
    table, pairs = TunedTable.from_dataset(found), None
    rows, every = [], dict[str, dict[str, list[dict[str, Any]]]](grid={}, off_grid={})
    for fold in range(FOLDS):
        out = set(range(fold, len(entries), FOLDS))
        path = kept / f"fold{fold}.npz" if kept is not None else None
        if path is not None and path.is_file():
            model = predictor.Model.load(path)
        else:
            pairs = pairs or Pairs(entries)
            rest = [entry for i, entry in enumerate(entries) if i not in out and i >= len(grid)]
            model = pairs.train(out, known(rest))
            if path is not None:
                model.save(path)
        less = table.without(entries[i].shape for i in out)
        for part, of in (("grid", range(len(grid))), ("off_grid", range(len(grid), len(entries)))):
            for name, judged in compared(less, model, [entries[i] for i in of if i in out]).items():
                every[part].setdefault(name, []).extend(judged)
                rows.append({"held_out": f"{part}, part {fold}", "chooser": name, **summed(judged)})
                print(rows[-1], flush=True)
    grid_summary, off = ({n: summed(judged) for n, judged in by.items()} for by in every.values())
    return rows, grid_summary, off


def unseen(found: dataset.Dataset, model: predictor.Model) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Shapes off the grid that nothing has learnt from, judged by the choosers as they are shipped: rows, and
    by the name of each file (``unseen-fifth``) all of it together."""
    rows, summary, table = [], {}, TunedTable.from_dataset(found)
    for path in UNSEEN:
        apart, of = dataset.Dataset.load(path), path.name.split(".")[1]
        test = [apart[shape] for shape in sorted(apart.entries)]
        every = {name: summed(judged) for name, judged in compared(table, model, test).items()}
        # the most that anybody could reach
        every["the best known"] = summed(
            [best(entry, layout) for entry in test for layout in entry.baselines["torch"]]
        )
        rows += [{"held_out": of, "chooser": name, **figures} for name, figures in every.items()]
        summary[of] = every
    return rows, summary


def best(entry: dataset.DatasetEntry, layout: str) -> dict[str, Any]:
    """What a chooser that knows every time would have said."""
    torch_us, ranked = entry.baselines["torch"][layout], entry.ranked(layout)
    faster = bool(ranked) and ranked[0][1] < torch_us
    over = torch_us / ranked[0][1] if faster else 1.0
    return {"config": ranked[0][0] if faster else None, "over_torch": over, "fraction_of_best": 1.0}


def header_of(found: dataset.Dataset) -> dict[str, Any]:
    """What a model says of the dataset that it was trained on."""
    return {name: found.header.get(name) for name in ("gpu", "date", "commit", "torch")} | {
        "pairs": found.pairs
    }


def measured(path: Path | None, part: str = "") -> dataset.Dataset:
    """A file's dataset, or that of the package. Raises SystemExit, SassafrasError: it teaches nothing."""
    found = dataset.Dataset.load(path) if path else dataset.shipped(part=part)
    if found.modelled:
        sys.exit("this dataset was modelled, not measured: nothing is learnt from it")
    return found


def save(model: predictor.Model, path: Path) -> None:
    """Write a trained model."""
    model.save(path)
    print(f"wrote {path} ({path.stat().st_size:,} bytes)")


def added(args: argparse.Namespace) -> None:
    """Another GPU: train what is added to the model of `BASE`, or judge it on folds of the grid."""
    found, base = dataset.shipped(args.gpu), predictor.shipped(BASE)
    assert base is not None
    header = header_of(found)
    entries = [found[shape] for shape in sorted(found.entries)]
    pairs = Pairs(entries)
    if args.train:
        save(pairs.train_added(set(), base, header), args.model or predictor.shipped_path(args.gpu))
        return
    table, judged = TunedTable.from_dataset(found), dict[str, list[dict[str, Any]]]()
    for fold in range(FOLDS):
        out = set(range(fold, len(entries), FOLDS))
        own = pairs.train_added(out, base, header)
        both = replace(base, plain=base.plain.plus(own.plain), modes=base.modes.plus(own.modes))
        less, test = table.without(entries[i].shape for i in out), [entries[i] for i in sorted(out)]
        for name, model in (("of the other GPU", base), ("with what is added", both)):
            chosen = judge(Selector(less, model=model), test)
            judged.setdefault(name, []).extend(chosen)
    for name, rows in judged.items():
        print(name, summed(rows))


def layouts_of(found: dataset.Dataset) -> list[str]:
    """What it was swept in, by its baselines."""
    return sorted({layout for entry in found for layout in entry.baselines.get("torch", {})})


def backward(args: argparse.Namespace) -> None:
    """Train the model of the layouts nt and tt, from their own dataset; shapes off the grid are in it."""
    found = measured(args.dataset, PART)
    header = header_of(found) | {"layouts": layouts_of(found)}
    entries = [found[shape] for shape in sorted(found.entries)]
    path = args.model or predictor.shipped_path(str(header["gpu"]), PART)
    save(Pairs(entries).train(set(), header, PLAIN_FEW), path)


def main() -> None:
    """See the module."""
    parser = command_line(__doc__)
    parser.add_argument("--dataset", type=Path, help="[default: the one that comes with the package]")
    parser.add_argument("--backward", action="store_true", help="the layouts nt and tt")
    parser.add_argument("--program", action="store_true", help="layers as programs have them alone")
    parser.add_argument("--gpu", help="another GPU than the H200, by its data set's name")
    parser.add_argument("--train", action="store_true", help="write the model instead of comparing")
    parser.add_argument("--model", type=Path, help="file to write with --train [default: the package's]")
    parser.add_argument("--folds", type=Path, help="folder that keeps the folds' models")
    args = parser.parse_args()
    if args.gpu:
        added(args)
        return
    if args.backward:
        if not args.train:
            parser.error("--backward goes with --train")
        backward(args)
        return
    found = measured(args.dataset)
    header = header_of(found)
    others = dataset.Dataset.load(OFF_GRID[0])
    for path in OFF_GRID[1:]:
        others.entries.update(dataset.Dataset.load(path).entries)
    besides = [others[shape] for shape in sorted(others.entries)]
    path = args.model or predictor.shipped_path(header["gpu"])
    if args.train:
        if args.program:
            model = predictor.Model.load(path)
        else:
            grid = [found[shape] for shape in sorted(found.entries)]
            model = Pairs([*grid, *besides]).train(set(), header | known(besides))
        save(of_layers(model, layers(dataset.Dataset.load(PROGRAM)), besides), path)
        return
    model = predictor.Model.load(path)
    rows, summary = in_program_folds(TunedTable.from_dataset(found), model, besides)
    summary = {"program": summary}
    if not args.program:
        more, grid_summary, apart = in_folds(found, others, args.folds)
        last, judged = unseen(found, model)
        rows, summary = [*more, *last, *rows], {"grid": grid_summary, "off_grid": apart, **judged, **summary}
    print("wrote", write("choosers", rows, summary, header, seed=SEED, out=args.out))


if __name__ == "__main__":
    try:
        main()
    except (SassafrasError, OSError) as error:  # a folder that is a file, a full disk
        sys.exit(f"error: {error}")
