"""How well the timing model ranks schedules, against a GPU: writes timing-model.json.

    python benchmarks/timing_model.py [--schedules 240] [--only softmax,...] [--pairs 24] [--gpus N]
    python benchmarks/timing_model.py --remodel RAW.json [RAW2.json ...] [--out D]
    python benchmarks/timing_model.py --publish timing-model.json

The first form needs a GPU. For the headline case of each suite kernel it samples schedules: schedule i is
the end of a random walk of its own from the baseline, through `ScheduleSpace`, of a length spread evenly on
a logarithmic scale from 1 to --longest moves, with the seed (--seed, crc32 of the kernel's name, i). The
validator looks up to 64 times at each walk, at its end too; what it refuses is undone back to its last look,
and counted ("undone"), so that every schedule is one that it approved. Duplicates are dropped. All schedules
are measured in random order, then all again in another order: the two halves. A schedule's figure is the
median of the baseline / candidate ratios of both halves, its interval their bootstrap. Kendall's tau-b
between model and GPU is taken over the pairs of schedules whose intervals do not overlap; the ceiling is
tau-b between the halves over the same pairs. Both are given over all pairs too.

Besides timing-model.json it writes timing-model-raw.json: baseline cubins, the order and control codes of
every schedule, and the halves, so that --remodel can judge any other version of the model without a GPU;
it also joins the raw files of several runs over some kernels each (a later file's row replaces an earlier's).
--publish writes the table that `sassafras optimize` prints beside modelled ratios.
"""

from __future__ import annotations

import base64
import json
import math
import os
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, ROOT, command_line, one_gpu, per_gpu, read_result, write

Row = dict[str, Any]
PUBLISHED = ROOT / "src" / "sassafras" / "timing_model" / "correlation.json"
ARCH = "sm_90a"
#: times that the validator looks at a walk, evenly spread (at every move of a walk shorter than this)
CHECKS = 64


def pack(array: np.ndarray) -> Row:
    """An integer array as JSON: base64 of zlib of its little-endian bytes."""
    data = np.ascontiguousarray(array)
    text = base64.b64encode(zlib.compress(data.tobytes(), 9)).decode()
    return {"dtype": data.dtype.str, "shape": list(data.shape), "zlib": text}


def unpack(packed: Row) -> np.ndarray:
    """The array that `pack` wrote."""
    data = zlib.decompress(base64.b64decode(packed["zlib"]))
    return np.frombuffer(data, dtype=packed["dtype"]).reshape(packed["shape"]).copy()


def lengths(count: int, longest: int) -> list[int]:
    """Walk lengths, evenly spread on a logarithmic scale."""
    return np.geomspace(1, longest, count).round().astype(int).tolist()


def sample(workload: Any, kernel: Any, count: int, longest: int, seed: int) -> tuple[list[Any], Row]:
    """Distinct validator-approved candidates, and how they came about."""
    from sassafras.core import SassafrasError
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    space: Any = ScheduleSpace(kernel)
    validator = Validator(kernel.cubin, kernel.name)
    if not (report := validator.check(kernel.cubin)).ok:
        raise SassafrasError(f"the validator refuses the baseline itself: {report}", where=workload.name)
    key = zlib.crc32(workload.name.encode())
    found: list[Any] = []
    recipes: list[tuple[int, int]] = []
    seen = {kernel.digest}
    duplicates = undone = 0
    walk = lengths(count, longest)
    index = 0
    while len(found) < count and index < 4 * count:
        length = walk[index % count]
        rng = np.random.default_rng([seed, key, index])
        state, step = space.start(), max(1, length // CHECKS)
        for done in range(0, length, step):
            tried = state
            for _ in range(min(step, length - done)):
                move = space.sample(tried, rng)
                if move is not None:
                    tried = space.apply(tried, move)
            if validator.check(space.candidate(tried).kernel.cubin).ok:
                state = tried
            else:
                undone += 1
        candidate = space.candidate(state)
        if candidate.digest in seen:
            duplicates += 1
        else:
            seen.add(candidate.digest)
            found.append(candidate)
            recipes.append((index, length))
        index += 1
    how = {"seed": [seed, key], "walks": recipes, "duplicates": duplicates, "undone": undone}
    return found, how


def measure(device: Any, candidates: list[Any], seed: int) -> tuple[list[list[list[float]]], list[str]]:
    """baseline / candidate ratios of each schedule in two halves, and the verdicts other than correct."""
    halves: list[list[list[float]]] = [[[], []] for _ in candidates]
    bad: list[str] = []
    for half in (0, 1):
        order = np.random.default_rng([seed, half]).permutation(len(candidates))
        for n in order.tolist():
            outcome = device.run(candidates[n])
            if not outcome.verdict.ok:
                bad.append(f"{n}: {outcome.verdict}: {outcome.detail}")
                continue
            answer = device.last_answer
            base, mine = np.array(answer["baseline_us"]), np.array(answer["candidate_us"])
            halves[n][half] = (base / mine).round(6).tolist()
    return halves, bad


def one(name: str, count: int, longest: int, pairs: int, seed: int) -> Row:
    """Sample and measure one kernel: its raw row."""
    from sassafras.core import Candidate
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.targets import load
    from sassafras.timing_model import ModelDevice

    workload = load(f"suite:{name}")
    case = workload.case()
    kernel = workload.build(case, ARCH)
    model = ModelDevice(ARCH)
    model.open(workload, case, kernel)
    candidates, how = sample(workload, kernel, count, longest, seed)
    device = CudaDevice(pairs=pairs, stop_above=1e9)
    try:
        device.open(workload, case, kernel)
        # the identity rewrite, first in the list: how far from 1 the null experiment lies
        halves, bad = measure(device, [Candidate(kernel), *candidates], seed)
        baseline_us = float(np.median(device.last_answer["baseline_us"]))
        environment = device.environment()
    finally:
        device.close()
    prepared = model.model
    controls, orders = [], []
    for candidate in candidates:
        words = prepared.code(candidate.kernel.cubin)
        order = prepared.order(words)
        orders.append((order - np.arange(len(order))).astype(np.int16))
        controls.append(((words[:, 1] ^ prepared.words[order, 1]) >> np.uint64(41)).astype(np.uint32))
    return {
        "kernel": name,
        "case": case.name,
        "kernel_name": kernel.name,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
        "grid": list(case.grid),
        "loop_trips": case.loop_trips,
        "buffer_bytes": [a.nbytes for a in case.args.values() if hasattr(a, "nbytes")],
        "sampled": how,
        "not_correct": bad,
        "baseline_us": baseline_us,
        "null": halves[0],
        "halves": halves[1:],
        "cubin": pack(np.frombuffer(kernel.cubin, dtype=np.uint8)),
        # order minus position, and control codes xor those of the same instruction in the baseline
        "order": pack(np.array(orders)),
        "control": pack(np.array(controls)),
        "environment": environment,
    }


def remodel(raw: Row) -> np.ndarray:
    """Modelled ratios of every schedule of a raw row, NaN where the model refuses."""
    from sassafras.core import Buffer, Case, Kernel, Workload
    from sassafras.timing_model import ModelDevice

    kernel = Kernel(
        unpack(raw["cubin"]).tobytes(), raw["kernel_name"], ARCH, raw["threads"], raw["shared_bytes"]
    )
    case = Case(
        raw["case"],
        tuple(raw["grid"]),
        {f"buffer{n}": Buffer("u8", (size,)) for n, size in enumerate(raw["buffer_bytes"])},
        loop_trips=raw["loop_trips"],
    )
    device = ModelDevice(ARCH)
    device.open(Workload(raw["kernel"], (case,), build=lambda *_: kernel), case, kernel)
    words = device.model.words
    baseline = device.cycles(words)
    orders, controls = unpack(raw["order"]), unpack(raw["control"])
    ratios = []
    for shift, control in zip(orders, controls, strict=True):
        mine = words[np.arange(len(words)) + shift]
        mine[:, 1] ^= control.astype(np.uint64) << np.uint64(41)
        ratios.append(baseline / device.cycles(mine))
    return np.array(ratios)


def kendall_tau(x: np.ndarray, y: np.ndarray, pairs: np.ndarray | None = None) -> float | None:
    """Kendall's tau-b (M. G. Kendall, Biometrika 33, 1945): +1 same order, -1 reversed, ties corrected for.

    Args:
        x, y: float (n,).
        pairs: bool (n, n): which pairs count (the upper triangle is read); None: all.

    Returns:
        tau-b, or None where it is undefined (no pair, or every pair tied in x or in y).
    """
    upper = np.triu(np.ones((len(x), len(x)), dtype=bool), 1)
    chosen = upper if pairs is None else upper & pairs
    dx = np.sign(x[:, None] - x[None, :])[chosen]
    dy = np.sign(y[:, None] - y[None, :])[chosen]
    untied = math.sqrt(float(np.count_nonzero(dx)) * float(np.count_nonzero(dy)))
    return float((dx * dy).sum()) / untied if untied > 0 else None


def distinguishable(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """bool (n, n): pairs of intervals [low, high] that do not overlap."""
    return (low[:, None] > high[None, :]) | (high[:, None] < low[None, :])


def judge(raw: Row, ratios: np.ndarray) -> Row:
    """The published row: correlations of model and GPU for one kernel."""
    from sassafras.core.statistics import bootstrap_median

    usable = [n for n, (a, b) in enumerate(raw["halves"]) if a and b and np.isfinite(ratios[n])]
    modelled = ratios[usable]
    halves = [raw["halves"][n] for n in usable]
    first = np.array([np.median(a) for a, _ in halves])
    second = np.array([np.median(b) for _, b in halves])
    whole = np.array([np.median(a + b) for a, b in halves])
    intervals = [bootstrap_median(a + b, seed=0, draws=300) for a, b in halves]
    apart = distinguishable(np.array([i.low for i in intervals]), np.array([i.high for i in intervals]))
    return {
        "kernel": raw["kernel"],
        "shape": raw["case"],
        "schedules": len(usable),
        "pairs": int(np.triu(apart, 1).sum()),
        "all_pairs": len(usable) * (len(usable) - 1) // 2,
        "kendall_tau": kendall_tau(modelled, whole, apart),
        "ceiling": kendall_tau(first, second, apart),
        "tau_all_pairs": kendall_tau(modelled, whole),
        "ceiling_all_pairs": kendall_tau(first, second),
        "ratio_mape": float(np.mean(np.abs(modelled / whole - 1))),
        "held_out": True,  # no constant was fitted to measured schedules
        "gpu_ratio_range": [float(whole.min()), float(whole.max())],
        "modelled_ratio_range": [float(modelled.min()), float(modelled.max())],
        "null": float(np.median(raw["null"][0] + raw["null"][1])) if raw["null"][0] else None,
        "baseline_us": raw["baseline_us"],
        "duplicates": raw["sampled"]["duplicates"],
        "undone": raw["sampled"]["undone"],
        "not_correct": len(raw["not_correct"]),
    }


def summarise(rows: list[Row]) -> Row:
    """Medians over the kernels."""
    taus = [r["kendall_tau"] for r in rows if r.get("kendall_tau") is not None]
    held = [r["ratio_mape"] for r in rows if r.get("held_out")]
    ceilings = [r["ceiling"] for r in rows if r.get("ceiling") is not None]
    return {
        "median_kendall_tau": float(np.median(taus)) if taus else None,
        "median_ceiling": float(np.median(ceilings)) if ceilings else None,
        # of a schedule's runtime relative to the baseline's, nothing fitted
        "held_out_ratio_mape": float(np.mean(held)) if held else None,
        "kernels": len(rows),
        "schedules": sum(r.get("schedules", 0) for r in rows),
        "not_correct": sum(r.get("not_correct", 0) for r in rows),
    }


def show(rows: list[Row]) -> None:
    """A line a kernel for people."""
    for r in rows:
        figures = {key: r[key] for key in ("schedules", "pairs", "kendall_tau", "ceiling", "ratio_mape")}
        print(f"{r['kernel']:16}", figures, flush=True)


def publish(results: Path) -> None:
    """Write the table that ships with the package."""
    found = read_result(results, "date", "environment", of="timing-model")
    table = {
        f"{row['kernel']}/{row['shape']}": {
            "kendall_tau": round(row["kendall_tau"], 3),
            "ceiling": None if row["ceiling"] is None else round(row["ceiling"], 3),
            "schedules": row["schedules"],
            "pairs": row["pairs"],
            "date": found["date"],
            "gpu": found["environment"].get("gpu"),
        }
        for row in found["rows"]
        if row.get("kendall_tau") is not None
    }
    PUBLISHED.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(table)} kernels -> {PUBLISHED.relative_to(ROOT)}")


def main() -> None:
    """Command line."""
    parse = command_line(__doc__, out=None)
    parse.add_argument("--schedules", type=int, default=240)
    parse.add_argument("--longest", type=int, default=1500, help="moves of the longest walk")
    parse.add_argument("--pairs", type=int, default=24, help="baseline/candidate pairs a half")
    parse.add_argument("--only", default="")
    parse.add_argument("--gpus", type=int)
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--out")
    parse.add_argument("--remodel", type=Path, nargs="+")
    parse.add_argument("--publish", type=Path)
    given = parse.parse_args()
    if given.publish:
        publish(given.publish)
        return
    only = set(filter(None, given.only.split(",")))
    if given.remodel:
        joined: dict[str, Row] = {}
        for path in given.remodel:
            joined |= {r["kernel"]: r for r in read_result(path, of="timing-model")["rows"]}
        raws = [r for r in joined.values() if not only or r["kernel"] in only]
        environment = one_gpu(raw["environment"] for raw in raws)
        rows = [judge(raw, remodel(raw)) for raw in raws]
        show(rows)
        print(json.dumps(summarise(rows), indent=1))
        if given.out:
            print(write("timing-model", rows, summarise(rows), environment, seed=given.seed, out=given.out))
            if len(given.remodel) > 1:
                print(write("timing-model-raw", raws, {}, environment, seed=given.seed, out=given.out))
        return
    from sassafras import suite

    names = [n for n in suite.names() if not only or n in only]
    items = [(n, given.schedules, given.longest, given.pairs, given.seed) for n in names]
    raws, rows, failed = [], [], []
    folder = Path(given.out or os.environ.get("OUT") or RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    for number, raw in per_gpu(one, items, given.gpus):
        if isinstance(raw, Exception):
            traceback.print_exception(raw)
            failed.append({"kernel": names[number], "error": f"{type(raw).__name__}: {raw}"})
            continue
        raws.append(raw)
        rows.append(judge(raw, remodel(raw)))
        show(rows[-1:])
        # written anew after each kernel: a run that is cut short loses one kernel at most
        environment = raws[0]["environment"]
        summary = summarise(rows) | {"failed": failed}
        write("timing-model-raw", raws, {}, environment, seed=given.seed, out=folder)
        write("timing-model", rows, summary, environment, seed=given.seed, out=folder)
    print(json.dumps(summarise(rows) | {"failed": failed}, indent=1))


if __name__ == "__main__":
    main()
