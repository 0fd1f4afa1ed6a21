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

import chooser_training
from chooser_training import BASE, SEED, Pairs, known, layers, of_layers
from common import command_line, write

from sassafras.core import SassafrasError
from sassafras.gemm.configs.backward import PART
from sassafras.gemm.configs.base import PLAIN as PLAIN_MODE
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.select import dataset, predictor
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TunedTable

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
                "in_program": predictor.in_program(entry.shape, layout),
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


def asking(
    rows: Sequence[dict[str, Any]], margin: float, of_layers: float | None = None
) -> list[dict[str, Any]]:
    """What was chosen whatever was predicted (`ANY`), but torch below a margin.

    Args:
        of_layers: the margin of layers as programs have them, where the model knows such.
    """
    return [
        row
        if row["predicted"] >= (of_layers if of_layers and row["in_program"] else margin)
        else row | {"config": None, "over_torch": 1.0, "fraction_of_best": row["torch_of_best"]}
        for row in rows
    ]


def in_program_folds(
    table: TunedTable, model: predictor.Model, besides: Sequence[dataset.DatasetEntry]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Layers as programs have them, each judged by what was learnt from layers of another n and k: rows by
    fold, and all together."""
    entries = layers(measured(PROGRAM))
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
            judged[f"trees, margin {margin}"] = asking(chosen, margin)
        judged["trees as shipped"] = asking(chosen, SelectorSettings().program_margin)
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
        rows[f"trees, margin {margin}"] = asking(chosen, margin)
    shipped = SelectorSettings()
    of_layers = shipped.program_margin if model.program else None
    return rows | {"trees as shipped": asking(chosen, shipped.model_margin, of_layers)}


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
    if not found.pairs:
        sys.exit("this dataset has no times: nothing is learnt from it")
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
    save(Pairs(entries).train(set(), header, chooser_training.PLAIN_FEW), path)


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
    path = args.model or predictor.shipped_path(str(header["gpu"]))
    if args.train:
        if args.program:
            model = predictor.Model.load(path)
        else:
            grid = [found[shape] for shape in sorted(found.entries)]
            model = Pairs([*grid, *besides]).train(set(), header | known(besides))
        save(of_layers(model, layers(measured(PROGRAM)), besides), path)
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
