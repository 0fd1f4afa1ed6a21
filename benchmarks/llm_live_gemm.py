"""Configurations that a language model proposes for 40 shapes, against as many drawn at random, on a GPU.

    python benchmarks/llm_live_gemm.py --generate --proposer local:FOLDER_OR_GGUF   # here, no GPU; resumes
    python benchmarks/llm_live_gemm.py --generate --proposer endpoint:MODEL --base-url https://HOST/v1
    python benchmarks/llm_live_gemm.py --generate --proposer rule                   # the estimate's next
    python benchmarks/llm_live_gemm.py --measure --cache FOLDER                     # on a GPU; resumes
    python benchmarks/llm_live_gemm.py --measure --dry-run                          # a modelled clock

The shapes are a sample of CUDA-L2's grid. Whoever proposes sees what the dataset measured there, and at the
nearest shapes, and names configurations that the dataset does not have for the shape, as JSON. The control
draws as many at random from the same ones. One process judges all of them beside cuBLASLt's best algorithm
and freezes, for each side, the best of its own and the dataset's best. Fresh processes then time the frozen
ones interleaved, the null beside them, and only that is reported: on how many shapes the lower bound of a
side's winner over the control's lies above 1.02; and the same without the dataset's best on either side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, write

from sassafras.core import SassafrasError

PROPOSALS = ROOT / "benchmarks" / "llm" / "gemm-proposals.jsonl"
SHAPES, COUNT, MARGIN, PROCESSES = 40, 8, 1.02, 5
MOST_FLOP = 4e11
#: of the time, the part after which no further shape is judged
JUDGING = 0.5


def read(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a journal, none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]


def note(path: Path, record: dict[str, Any]) -> None:
    """Append to a journal, on disk at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


# -- what is known beforehand -------------------------------------------------------------------------------


def sample(dataset: Any, count: int, seed: int) -> list[Any]:
    """Shapes of CUDA-L2's grid, stratified by FLOP, with what the dataset knows of them.

    They do not depend on the dataset, so that proposals outlive it.
    """
    from sassafras.gemm.dataset import Entry
    from sassafras.gemm.shapes import cuda_l2_grid, stratified

    able = [shape for shape in cuda_l2_grid() if shape.flop <= MOST_FLOP]
    return [dataset.entries.get(shape) or Entry(shape, {}) for shape in stratified(able, count, seed)]


def unmeasured(entry: Any) -> list[Any]:
    """Legal configurations that the dataset does not have for this shape, the estimate's best first."""
    from sassafras.gemm import families
    from sassafras.gemm.estimate import estimate_us
    from sassafras.gemm.space import in_modes

    every = (mode for c in families.legal(entry.shape) for mode in in_modes(c))
    legal = [c for c in every if c.name not in entry.ours]
    return sorted(legal, key=lambda c: (estimate_us(c, entry.shape), c.name))


def incumbent(entry: Any) -> list[str]:
    """The dataset's best configuration of a shape; none where it has none of ours."""
    return [name for name, _ in entry.ranked()[:1]]


def known(entry: Any, dataset: Any, show: Any, count: int) -> list[Any]:
    """Measured variants to contrast, slowest first: of this shape, then the best of the nearest shapes."""
    import numpy as np

    from sassafras.gemm import families
    from sassafras.llm.archive import Variant

    def variant(of: Any, name: str) -> Any:
        config = families.parse(name)
        where = "" if of is entry else f"at M={of.shape.m}, N={of.shape.n}, K={of.shape.k} "
        score = (of.baseline_us() or 0.0) / of.ours[name][0]
        return Variant(name + where, "", where + show(config), score, "correct")

    ranked = [name for name, _ in entry.ranked()]
    places = sorted({round(place) for place in np.linspace(0, len(ranked) - 1, count)}) if ranked else []
    picked = [ranked[place] for place in places]
    found = [variant(entry, name) for name in picked]
    here = np.log2([entry.shape.m, entry.shape.n, entry.shape.k])
    others = [e for e in dataset if e is not entry and e.ours]
    others.sort(key=lambda e: float(np.linalg.norm(np.log2([e.shape.m, e.shape.n, e.shape.k]) - here)))
    found += [variant(e, e.ranked()[0][0]) for e in others[: max(0, count - len(found))]]
    return sorted(found, key=lambda v: v.score)


# -- generating ---------------------------------------------------------------------------------------------


def generate(args: argparse.Namespace) -> None:
    """Ask for what the file of proposals lacks; one line an answer."""
    from sassafras.gemm.dataset import Dataset

    dataset = Dataset.load(args.dataset)
    entries = sample(dataset, args.shapes, args.seed)
    asked = None if args.proposer == "rule" else _proposer(args)
    by = asked.name if asked is not None else "rule"
    for number, entry in enumerate(entries, 1):
        records = [r for r in read(args.proposals) if r["shape"] == str(entry.shape) and r["by"] == by]
        begun = time.monotonic()
        left = args.count - len(records)
        if left <= 0:
            continue
        maker = (
            _ruled(entry, records, left) if asked is None else _asked(asked, entry, dataset, records, args)
        )
        for record in maker:
            note(args.proposals, {"shape": str(entry.shape), "by": by, **record})
        print(f"{number}/{len(entries)} {entry.shape}: {time.monotonic() - begun:.0f} s", flush=True)


def _proposer(args: argparse.Namespace) -> Any:
    from sassafras.llm.limits import proposer
    from sassafras.llm.spending import Meter

    made = proposer(args.proposer, Meter(), base_url=args.base_url, timeout_s=args.timeout)
    if made is None:
        raise SassafrasError("chance is the control, and drawn while measuring", hint="endpoint: or local:")
    return made


def _ruled(entry: Any, records: list[dict[str, Any]], left: int) -> list[dict[str, Any]]:
    names = {r.get("config") for r in records}
    return [{"config": c.name} for c in unmeasured(entry) if c.name not in names][:left]


def _asked(
    proposer: Any, entry: Any, dataset: Any, records: list[dict[str, Any]], args: argparse.Namespace
) -> Any:
    """Answers of the proposer for one shape: a configuration, or why there is none."""
    from sassafras.gemm import GemmSpace, families
    from sassafras.llm.answer import AnswerError
    from sassafras.llm.gemm_json import GemmProposals
    from sassafras.llm.prompt import feedback, messages
    from sassafras.llm.proposer import Request

    space = GemmProposals(GemmSpace(entry.shape, lambda config: b""))
    best = families.parse(incumbent(entry)[0]) if entry.ours else space.start()
    allowed = {c.name: c for c in unmeasured(entry)}
    for record in records:
        allowed.pop(record.get("config", ""), None)
    variants = known(entry, dataset, space.show, args.exemplars)
    score = (entry.baseline_us() or 0.0) / entry.ranked()[0][1] if entry.ours else None
    for number in range(len(records), args.count):
        talk = messages(space, space.show(best), variants, parent_score=score, sections=False)
        record: dict[str, Any] = {"seconds": 0.0, "tokens": 0}
        for attempt in range(1 + args.repairs):
            choices = tuple(space.show(config) for config in allowed.values())
            reply = proposer.propose(
                Request(
                    talk, space.schema, args.max_tokens, args.temperature,
                    args.seed + 1000 * number + attempt, choices,
                )
            )  # fmt: skip
            record["seconds"] += reply.seconds
            record["tokens"] += reply.answer_tokens
            try:
                config = space.read(reply.text, best)
                if config.name in allowed:
                    allowed.pop(config.name)
                    record["config"] = config.name
                    break
                problem = ("duplicate", "it was measured or proposed already")
            except AnswerError as error:
                problem = ("answer", str(error))
            record["problem"] = ": ".join(problem)
            talk = (
                *talk, {"role": "assistant", "content": reply.text},
                {"role": "user", "content": feedback(*problem)},
            )  # fmt: skip
        yield record


# -- measuring ----------------------------------------------------------------------------------------------


def sides(entry: Any, proposals: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, list[str]]:
    """Side -> configurations, ``control`` last: as many as the largest side has, drawn at random."""
    import re
    import zlib

    import numpy as np

    banned = re.compile(args.exclude) if args.exclude else None
    names = sorted(c.name for c in unmeasured(entry) if not (banned and banned.search(c.name)))
    there = set(names)
    found: dict[str, list[str]] = {}
    for record in proposals:
        name = record.get("config")
        # what a newer dataset has, or newer kernels lack, is none of the proposer's any more
        if record["shape"] == str(entry.shape) and name in there:
            found.setdefault(record["by"], []).append(name)
    rng = np.random.default_rng([args.seed, zlib.crc32(str(entry.shape).encode())])
    most = max((len(own) for own in found.values()), default=0)
    found["control"] = [names[i] for i in rng.permutation(len(names))[:most]]
    return found


def judged(args: argparse.Namespace, plan: dict[str, Any], until: float) -> None:
    """Look at every configuration of every side, shape by shape."""
    from sassafras.gemm.dataset import Dataset
    from sassafras.gemm.feed import Child

    proposals = read(args.proposals)
    broken: set[str] = set()
    child = Child({**plan, "mode": "judge"}, stall=30.0)
    try:
        for entry in sample(Dataset.load(args.dataset), args.shapes, args.seed):
            shape = str(entry.shape)
            done = {(r["shape"], r["config"]) for r in read(args.journal) if r["step"] == "judge"}
            of_sides = sides(entry, proposals, args)
            names = [*incumbent(entry), *(name for own in of_sides.values() for name in own)]
            left = [name for name in dict.fromkeys(names) if (shape, name) not in done]
            if time.time() > until or len(of_sides) < 2:
                continue
            for name in left:
                kernel = name.split("/")[0]
                if kernel in broken:  # a kernel that hangs costs half a minute each time
                    found = {"verdict": "crashed", "detail": "its kernel ended a process before"}
                else:
                    found = child.ask({"shape": shape, "config": name})
                if "error" in found:  # it ended the process, or could not be judged
                    found = {"verdict": "crashed", "detail": found["error"]}
                    broken.add(kernel)
                note(args.journal, {"step": "judge", **found, "shape": shape, "config": name})
            head = {"step": "sides", "shape": shape, "dataset": incumbent(entry), "sides": of_sides}
            note(args.journal, {**head, "lt_dataset_us": entry.baseline_us()})
    finally:
        child.close()


def frozen(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Shape -> winners of each side, with the dataset's best (``with``) and without (``alone``)."""
    cost: dict[tuple[str, str], float] = {}
    lt: dict[str, Any] = {}
    for record in (r for r in records if r["step"] == "judge" and r["verdict"] == "correct"):
        cost[record["shape"], record["config"]] = 1.0 / statistics.median(record["ratios"])
        lt[record["shape"]] = record["baseline"]
    found: dict[str, dict[str, Any]] = {}
    for head in (r for r in records if r["step"] == "sides"):
        shape = head["shape"]

        def best(names: list[str], shape: str = shape) -> str | None:
            able = [name for name in names if (shape, name) in cost]
            return min(able, key=lambda name: cost[shape, name], default=None)

        row: dict[str, Any] = {"dataset": head["dataset"], "lt": lt.get(shape), "alone": {}, "with": {}}
        control = head["sides"]["control"]
        for side, own in head["sides"].items():
            rivals = control[: len(own)]
            for kind, more in (("alone", []), ("with", head["dataset"])):
                row[kind][side] = {
                    "winner": best([*own, *more]), "rival": best([*rivals, *more]), "tried": len(own),
                    "correct": sum((shape, name) in cost for name in own),
                }  # fmt: skip
        if row["lt"] is not None:
            found[shape] = row
    return found


def contestants(row: dict[str, Any]) -> list[str]:
    """Distinct frozen configurations of a shape."""
    both = (entry for kind in ("alone", "with") for entry in row[kind].values())
    return list(dict.fromkeys(name for entry in both for name in (entry["winner"], entry["rival"]) if name))


def confirmed(args: argparse.Namespace, plan: dict[str, Any], until: float) -> None:
    """Time the frozen ones in fresh processes, one after the other."""
    from sassafras.gemm.feed import Child

    rows = frozen(read(args.journal))
    for process in range(args.processes):
        done = {r["shape"] for r in read(args.journal) if r["step"] == f"confirm{process}"}
        child = Child({**plan, "mode": "confirm", "process": process}, stall=60.0)
        try:
            for shape, row in rows.items():
                names = contestants(row)
                if shape in done or not names or time.time() > until:
                    continue
                found = child.ask({"shape": shape, "configs": names, "lt": row["lt"]})
                kept = {key: found[key] for key in ("times", "rms_ratios", "error") if key in found}
                note(args.journal, {"step": f"confirm{process}", "shape": shape, **kept})
        finally:
            child.close()


def summarise(records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows (shape, side) with hierarchical intervals; per side how often it beats the control by 2 %."""
    rows = []
    winners = frozen(records)
    for shape, row in winners.items():
        times = [r["times"] for r in records if r["step"].startswith("confirm") and r["shape"] == shape
                 and "times" in r]  # fmt: skip
        failed = [r["error"] for r in records if r["shape"] == shape and r["step"].startswith("confirm")
                  and "error" in r]  # fmt: skip
        for side, entry in row["with"].items():
            found: dict[str, Any] = {"shape": shape, "side": side, "tried": entry["tried"]}
            found |= {"correct": entry["correct"], "dataset": row["dataset"], "processes": len(times)}
            if failed:
                found["error"] = failed[0]
            for kind, prefix in (("with", ""), ("alone", "alone_")):
                mine, rival = row[kind][side]["winner"], row[kind][side]["rival"]
                found |= {f"{prefix}winner": mine, f"{prefix}control": rival}
                if mine and rival and len(times) > 1:
                    found |= _compared(times, rival, mine, prefix + "speedup")
                    found |= _compared(times, "lt", mine, prefix + "over_cublaslt")
            if len(times) > 1:
                found |= _compared(times, "lt", "null", "null")
            rows.append(found)
    summary: dict[str, Any] = {"shapes": len(winners), "sides": {}}
    for side in dict.fromkeys(row["side"] for row in rows):
        of_side = [row for row in rows if row["side"] == side]
        summary["sides"][side] = {
            "tried": sum(row["tried"] for row in of_side), "correct": sum(row["correct"] for row in of_side),
            **_counts(of_side, ""), **_counts(of_side, "alone_"),
        }  # fmt: skip
    return rows, summary


def _compared(times: list[dict[str, list[float]]], slow: str, fast: str, name: str) -> dict[str, float]:
    from sassafras.core.statistics import hierarchical_bootstrap, hierarchical_median, paired_ratios

    if slow == fast:
        return {name: 1.0, f"{name}_low": 1.0, f"{name}_high": 1.0}
    groups = [paired_ratios(one[slow], one[fast]).tolist() for one in times]
    interval = hierarchical_bootstrap(groups)
    middle = hierarchical_median(groups)
    return {name: middle, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _counts(rows: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    from common import geomean

    full = [row for row in rows if f"{prefix}speedup" in row]
    if not full:
        return {f"{prefix}measured": 0}
    key = f"{prefix}speedup"
    return {
        f"{prefix}measured": len(full),
        f"{prefix}same_winner": sum(row[f"{prefix}winner"] == row[f"{prefix}control"] for row in full),
        f"{prefix}beats_control_by_2_percent": sum(row[f"{key}_low"] > MARGIN for row in full),
        f"{prefix}control_beats_it_by_2_percent": sum(row[f"{key}_high"] < 1 / MARGIN for row in full),
        f"{prefix}geomean_over_control": geomean(row[key] for row in full),
        f"{prefix}geomean_over_cublaslt": geomean(row[f"{prefix}over_cublaslt"] for row in full),
    }


def measure(args: argparse.Namespace) -> None:
    """Judge, freeze, confirm; write the result when it was measured."""
    from dataclasses import asdict

    from sassafras.device.cuda.environment import environment
    from sassafras.gemm.options import Options

    begun = time.time()
    options = Options(seed=args.seed, seconds=args.contest_seconds, final_seconds=0.02)
    cache = str(args.cache) if args.cache else None
    plan = {"options": asdict(options), "cache": cache, "dry": args.dry_run}
    judged(args, plan, begun + JUDGING * args.seconds)
    print(f"judged after {time.time() - begun:.0f} s", flush=True)
    confirmed(args, plan, begun + args.seconds)
    rows, summary = summarise(read(args.journal))
    print(json.dumps(summary, indent=1))
    print(f"{time.time() - begun:.0f} s")
    if args.dry_run:
        print("on a modelled clock: nothing is written")
        return
    print("wrote", write("llm-live-gemm", rows, summary, environment(), seed=args.seed, out=args.out))


def main() -> None:
    """See the module."""
    from sassafras.gemm.dataset import DATA

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--generate", action="store_true")
    what.add_argument("--measure", action="store_true")
    parser.add_argument("--dataset", type=Path, default=DATA / "nvidia-h200.jsonl.gz")
    parser.add_argument("--proposals", type=Path, default=PROPOSALS)
    parser.add_argument("--shapes", type=int, default=SHAPES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT, help="proposals a shape")
    parser.add_argument("--proposer", default="rule", help="rule, endpoint:MODEL, local:PATH[+ADAPTER]")
    parser.add_argument("--base-url")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--exemplars", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--repairs", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--exclude", default="", help="regular expression: configurations that fail")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh ones that confirm")
    parser.add_argument("--contest-seconds", type=float, default=0.05, help="GPU time of one confirmation")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no shape after this")
    parser.add_argument("--journal", type=Path, help="by default llm-live-gemm.jsonl in $OUT or here")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.journal is None:
        args.journal = Path(os.environ.get("OUT") or ".") / "llm-live-gemm.jsonl"
    try:
        generate(args) if args.generate else measure(args)
    except SassafrasError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
