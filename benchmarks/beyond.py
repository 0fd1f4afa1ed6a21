"""The ladder beyond reordering: ptxas, swaps, control codes, copies. Writes beyond-reordering.json.

    python benchmarks/beyond.py prepare [--only softmax,...] [--ptxas PATH,PATH]   # no GPU: build/beyond
    python benchmarks/beyond.py run --seconds 15 [--gpus N] [--limit-s 540] [--only ...] [--resume FOLDER]
    python benchmarks/beyond.py run --device model --evaluations 30 --only rotary   # dry run, all modelled
    python benchmarks/beyond.py limits          # under ncu: one launch of each kernel
    python benchmarks/beyond.py bounds --seconds 20    # no GPU: beyond-bounds.json, all modelled
    python benchmarks/beyond.py merge A B [--limits NCU.csv]
    python benchmarks/beyond.py table benchmarks/results/beyond-reordering.json

`prepare` assembles every distinct kernel of the knob sweep into a small folder, as the machine with the GPU
has no registry. `run` takes subjects that are not in ``beyond.rows.jsonl`` of the output folder (or of
``--resume``) yet, in the order of `subjects`, and begins none that would not end within ``--limit-s``: the
same command goes on in another sitting. Two processes share a GPU: while one searches, the other compiles.

Stages (`beyond_ladder`), all re-measured together in fresh processes beside the null experiment: ``knobs``:
the fastest prepared kernel over the frontend's own. The others start from that kernel and are over it:
``identity`` (its own order with control codes from scratch), ``swaps`` (moves under the compiler's control
codes), ``control`` (control codes from scratch, moves bound by true dependences only), ``renaming`` (the same
on a copy with other register names, which is proved first), ``blocks`` (likewise with instructions moved over
branches). A search begins with the best schedules of the steps before it, as far as they are in its space.
Tuned HGEMM kernels (``gemm:``) have no ``knobs``, ``renaming`` and ``blocks``.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import beyond_ladder
from beyond_ladder import GEMM_STAGES, STAGES, stages_of
from common import ROOT, geomean, gpu_count, read_lines, read_result, use_gpu, write

Row = dict[str, Any]
BUNDLE = ROOT / "build" / "beyond"
#: processes that share a GPU: one has it, the other gets ready
LANES = 2
#: what a subject takes of its GPU besides its searches, and of its process besides that, seconds
OVERHEAD_S, PREPARING_S = 25.0, 20.0
#: winners of the HGEMM grid (`gemm.dataset`): kernels that win most shapes of each band, on the middle one of
#: these shapes
WINNERS = (
    "gemm:512x512x64/cs_tn_64x32_s8q1/c1+os", "gemm:256x2048x256/cs_tn_64x64_s6q1/c1+os",
    "gemm:4096x1024x512/ws_tn_128x128_pp2s6b2c1x1/g4/k1+ol",
    "gemm:64x128x16384/cs_nn_64x64_s6q1/c8+ol", "gemm:8192x256x512/cs_tn_128x128_s6q1l4/c1+ol",
    "gemm:8192x8192x256/ws_nn_128x192_pp2s4b3c1x2/g1/k1+ol",
    "gemm:1024x64x512/lean_tn_m1n2s2/w2x1x4/c1+os",
    "gemm:8192x8192x1024/ws_tn_128x192_pp2s4b3c2x1/g16/k1+ol",
)  # fmt: skip


def subjects() -> list[str]:
    """In an order in which a run that is cut off is worth most: CuAsmRL's six, some winners, the rest."""
    from sassafras import suite

    six = [f"suite:{name}" for name in suite.paper_six()]
    rest = [f"suite:{name}" for name in suite.names() if f"suite:{name}" not in six]
    return [*six, *WINNERS[:4], *rest, *WINNERS[4:]]


def prepare(only: set[str], tools: Sequence[str] | None, folder: Path) -> None:
    """Assemble the sweep of every kernel: ``<kernel>/<number>.cubin`` and ``<kernel>/index.json``."""
    from sassafras import suite
    from sassafras.frontend import ptxas_options
    from sassafras.targets import load

    for name in suite.names():
        if only and name not in only:
            continue
        target = folder / name
        if (target / "index.json").is_file():
            continue
        workload = load(f"suite:{name}")
        case = workload.case()
        space = ptxas_options.of(workload, case, "sm_90a", tools)
        found, refused = space.distinct()
        target.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, candidate in enumerate(found):
            (target / f"{number}.cubin").write_bytes(candidate.kernel.cubin)
            entries.append({"file": f"{number}.cubin", **candidate.recipe})
        index = {"kernel": name, "case": case.name, "settings": entries, "refused": refused}
        (target / "index.json").write_text(json.dumps(index, indent=1))
        print(f"{name}: {len(found)} distinct kernels, {len(refused)} refused", flush=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a sitting's folder, of a ``.rows.jsonl`` or a result file; none of what is not there."""
    if path.is_dir():
        path = path / "beyond.rows.jsonl"
    if not path.is_file():
        return []
    if path.suffix == ".json":
        whole = read_result(path, "environment")
        return [{"environment": whole["environment"], **r} for r in whole["rows"]]
    return read_lines(path)


def current(rows: Sequence[Row]) -> list[Row]:
    """Rows but for those of a time when their kernel's code, or what is made of it, was another.

    A row names the code of its baseline and of that under control codes from scratch
    (`beyond_ladder.codes`); of each kernel those of the last row count. Steps under the compiler's own codes
    stand as long as the baseline does.
    """
    last = {r["kernel"]: codes for r in rows if (codes := _codes(r))}

    def stands(row: Row) -> bool:
        now, then = last.get(row["kernel"]), _codes(row)
        if now and then and row["stage"] in ("knobs", "swaps"):
            return now["baseline_code"] == then["baseline_code"]
        return then == now or (row["stage"] == "all" and "error" in row)

    return [r for r in rows if stands(r)]


def _codes(row: Row) -> Row | None:
    return {n: row[n] for n in ("baseline_code", "identity_code")} if "identity_code" in row else None


def done(path: Path | Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows of earlier sittings; those that failed are tried again."""
    rows = current(read_rows(path) if isinstance(path, Path) else path)
    return {(r["kernel"], r["stage"]): r for r in rows if "error" not in r}


def everything(path: Path | Sequence[Row]) -> list[Row]:
    """All rows; of what failed the last, unless another try gave a figure."""
    rows = current(read_rows(path) if isinstance(path, Path) else path)
    good = done(rows)
    whole = {kernel for kernel, _ in good}
    failed = {
        (r["kernel"], r["stage"]): r
        for r in rows
        if "error" in r
        and (r["kernel"], r["stage"]) not in good
        and not (r["stage"] == "all" and r["kernel"] in whole)
    }
    return [*good.values(), *failed.values()]


def summarise(rows: Sequence[Row]) -> Row:
    """Per stage: geometric means; of knobs over the frontend's own, of the others over the best of ptxas."""
    from sassafras import suite

    out: Row = {"modelled": any(r["modelled"] for r in rows)}
    good = [r for r in rows if r.get("speedup") and "error" not in r]
    for label, gemm in (("", False), ("hgemm_", True)):
        for stage in GEMM_STAGES if gemm else STAGES:
            of = {
                r["kernel"]: r
                for r in good
                if r["stage"] == stage and r["kernel"].startswith("gemm:") is gemm
            }
            speedups = {name: float(r["speedup"]) for name, r in of.items()}
            found: Row = {
                "kernels": len(of), "geomean_speedup": geomean(speedups.values()),
                "best_speedup": max(speedups.values(), default=None),
                "worst_speedup": min(speedups.values(), default=None),
                "improved": sum(bool(r["improved"]) for r in of.values()),
            }  # fmt: skip
            if not gemm:
                six = [speedups[n] for n in suite.paper_six() if n in speedups]
                found |= {"kernels_paper_six": len(six), "geomean_speedup_paper_six": geomean(six)}
            if stage == "identity":
                found["within_one_percent"] = sum(abs(v - 1) <= 0.01 for v in speedups.values())
            out[label + stage] = found
    out["ladder"] = _ladder(good)
    out["evaluations"] = sum(r.get("evaluations") or 0 for r in rows)
    out["wrong_or_crashed_after_validation"] = sum(r.get("failed_after_validation") or 0 for r in rows)
    out["failed_rows"] = [f"{r['kernel']}/{r['stage']}" for r in rows if "error" in r]
    return out


def _ladder(rows: Sequence[Row]) -> Row:
    """The best that a user has with the spaces up to each step, on the kernels that have all of them."""
    steps = ("swaps", "control", "renaming", "blocks")
    by: dict[str, dict[str, float]] = {}
    for r in rows:
        if r["stage"] in steps:
            by.setdefault(r["kernel"], {})[r["stage"]] = float(r["speedup"])
    whole = {kernel: of for kernel, of in by.items() if "swaps" in of and not kernel.startswith("gemm:")}
    out: Row = {"kernels": len(whole)}
    for n, step in enumerate(steps, 1):
        out[step] = geomean(max(of.get(s, 1.0) for s in steps[:n]) for of in whole.values())
    return out


def finish(rows: list[Row], name: str, seed: int, out: str | None, limits: Row | None = None) -> Path:
    """Write the result file: the rows that stand; `replaced` counts what those that do not had tried."""
    order = {stage: n for n, stage in enumerate(STAGES)}
    tried = {(r["kernel"], r["stage"], json.dumps(_codes(r))): r for r in rows if "evaluations" in r}
    stand = sorted(map(dict, everything(rows)), key=lambda r: (r["kernel"], order.get(r["stage"], 9)))
    environments = [r.pop("environment", None) for r in stand]
    commits = "; ".join(dict.fromkeys(r["commit"] for r in stand if r.get("commit"))) or None
    summary = summarise(stand)
    summary["replaced"] = {
        "evaluations": sum(r["evaluations"] for r in tried.values()) - summary["evaluations"],
        "wrong_or_crashed_after_validation": sum(r["failed_after_validation"] for r in tried.values())
        - summary["wrong_or_crashed_after_validation"],
    }
    if limits:
        summary["limits"] = limits
    environment = next((e for e in environments if e), {})
    commands = "; ".join(dict.fromkeys(e["command"] for e in environments if e and e.get("command"))) or None
    path = write(name, stand, summary, environment, seed=seed, out=out, commits=commits, command=commands)
    print(json.dumps({k: v for k, v in summary.items() if k != "limits"}, indent=1), f"\nwrote {path.name}")
    return path


def table(result: Row) -> str:
    """One line a kernel, one column a stage; speed-ups whose interval is not above the null's are 1."""
    word = "modelled" if result["summary"].get("modelled") else "speed-up"
    lines = [f"| kernel ({word}) | " + " | ".join(STAGES) + " |", "|---" * (1 + len(STAGES)) + "|"]
    by = {(r["kernel"], r["stage"]): r for r in result["rows"]}
    for kernel in sorted({k for k, _ in by}):
        cells = []
        for stage in STAGES:
            r = by.get((kernel, stage), {})
            if "error" in r or not r.get("speedup"):
                cells.append("failed" if "error" in r else "-" if r else "")
            elif r["modelled"] or r["speedup_low"] == r["speedup_high"]:
                cells.append(f"{r['speedup']:.3f}")
            else:
                cells.append(f"{r['speedup']:.3f} [{r['speedup_low']:.3f}, {r['speedup_high']:.3f}]")
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _lane(gpu: int, lock: Any, ready: Any, tasks: Any, said: Any, settings: Row, ends: float) -> None:
    """A process of a GPU: one subject after the other, until the time is up."""
    if settings["device"] != "model":
        use_gpu(gpu)
    while True:
        try:
            subject, need, known = tasks.get(timeout=1.0)
        except queue.Empty:
            break
        if known and beyond_ladder.stands(subject, known, settings["bundle"]):
            said.put((subject, []))
            continue
        if time.time() + need > ends:
            said.put((subject, None))
            continue
        said.put((subject, beyond_ladder.subject_rows(subject, settings, lock, ready)))
    said.put(None)


def warm_up(wanted: Sequence[str]) -> None:
    """Compile what is compiled on first use once, instead of in every process."""
    import numpy as np

    from sassafras.core import Candidate
    from sassafras.schedule.spaces import SPACES, space_of
    from sassafras.targets import load
    from sassafras.timing_model import ModelDevice
    from sassafras.validate import Validator

    workload = load("suite:softmax")
    kernel = workload.build(workload.case(), "sm_90a")
    device = ModelDevice()
    device.open(workload, workload.case(), kernel)
    device.run(Candidate(kernel))
    for name in SPACES:
        space = space_of(name, Validator)(kernel)
        state, rng = space.start(), np.random.default_rng(0)
        move = space.sample(state, rng)
        if move is not None:
            Validator(kernel.cubin, kernel.name).check(space.candidate(space.apply(state, move)).kernel.cubin)
        if name == "control":
            space.emit(space.tightened(space.start()))
    for subject in wanted:
        if subject.startswith("gemm:"):
            load(subject).build(None, "sm_90a")


def run(options: argparse.Namespace) -> None:
    """Subjects that are missing, until the time is up."""
    ends = time.time() + options.limit_s
    only = set(filter(None, options.only.split(",")))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    have = done(folder)
    rows_file = folder / "beyond.rows.jsonl"
    if options.resume:  # an earlier sitting's output, read-only: its rows are taken over
        kernels = {kernel for kernel, _ in have}
        old = {k: r for k, r in done(Path(options.resume)).items() if k[0] not in kernels}
        with rows_file.open("a") as file:
            file.writelines(json.dumps(r, default=str) + "\n" for r in old.values())
        have |= old
    stages = [s for s in STAGES if s in options.stages.split(",")]
    settings = {
        "out": str(folder), "device": options.device, "seconds": options.seconds, "seed": options.seed,
        "evaluations": options.evaluations, "bundle": str(options.bundle), "stages": stages,
        "baselines": {k: r["baseline_code"] for (k, _), r in have.items() if "baseline_code" in r},
    }  # fmt: skip
    wanted: list[tuple[str, Row | None]] = []
    again: list[tuple[str, Row | None]] = []
    for subject in subjects():
        name = subject.removeprefix("suite:")
        if only and name not in only and name.split("/")[0] not in only:
            continue
        rows = [have.get((name, s)) for s in stages_of(subject) if s in stages]
        if not all(rows):
            wanted.append((subject, None))
        elif known := next((codes for r in rows if r and (codes := _codes(r))), None):
            again.append((subject, known))  # unless its code is what it was
    wanted += again
    context = get_context("spawn")
    tasks, said, ready = context.Queue(), context.Queue(), context.Event()
    model = options.device == "model"
    gpus = options.gpus or (1 if model else gpu_count())
    for subject, known in wanted:
        searches = sum(s in stages for s in stages_of(subject) if s not in ("knobs", "identity"))
        # a process may have to wait for as long as its neighbour has the GPU
        held = 0.0 if options.evaluations else searches * options.seconds + OVERHEAD_S
        tasks.put((subject, 0.0 if model else PREPARING_S + 1.5 * held, known))
    # kept here: a lock that nobody in this process knows any more is gone before its processes have begun
    locks = [context.Lock() for _ in range(gpus)]
    lanes = [
        context.Process(target=_lane, args=(gpu, locks[gpu], ready, tasks, said, settings, ends))
        for gpu in range(gpus)
        for _ in range(LANES)
    ]
    for lane in lanes:
        lane.start()
    try:
        warm_up([subject for subject, known in wanted if known is None])
    finally:
        ready.set()
    running, left = len(lanes), 0
    while running:
        try:
            got = said.get(timeout=5.0)
        except queue.Empty:
            running = min(running, sum(lane.is_alive() for lane in lanes))
            continue
        if got is None:
            running -= 1
        elif got[1] is None:
            left += 1
            print(f"{got[0]}: left for another sitting", flush=True)
        else:
            with rows_file.open("a") as file:
                file.writelines(json.dumps(r, default=str) + "\n" for r in got[1])
            for r in got[1]:
                print(f"{r['kernel']} {r['stage']}: {r.get('error') or _said(r)}", flush=True)
    for lane in lanes:
        lane.join(5)
    print(f"{left} subjects left for another sitting")
    finish(read_rows(folder), options.name, options.seed, str(folder))


def _said(row: Row) -> str:
    text = f"{row.get('speedup', 0):.4f} [{row.get('speedup_low', 0):.4f}, {row.get('speedup_high', 0):.4f}]"
    if "measured" in row:
        text += f" measured {row['measured']:.4f}, null {row['null']:.4f}"
    return text + f" {row.get('evaluations', '')} {row.get('clock', '')}"


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("prepare", "run", "limits", "bounds", "merge", "table"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--ptxas", default="", help="prepare: programs, separated by commas; all found by default"
    )
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--evaluations", type=int, default=0, help="a budget in evaluations instead")
    parser.add_argument("--limit-s", type=float, default=540)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limits", type=Path, help="merge: folder that `limits` wrote to")
    parser.add_argument("--resume", help="run: folder of an earlier sitting")
    parser.add_argument("--name", default="beyond-reordering")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    if options.do == "prepare":
        tools = [t for t in options.ptxas.split(",") if t] or None
        prepare(set(filter(None, options.only.split(","))), tools, options.bundle)
    elif options.do == "run":
        run(options)
    elif options.do == "bounds":
        import beyond_limits

        only = set(filter(None, options.only.split(",")))
        names = [s for s in subjects() if not only or s.removeprefix("suite:") in only]
        rows_of = beyond_limits.bounds(names, options.seconds)
        modelled = [r["bound_speedup"] for r in rows_of if "bound_speedup" in r]
        summary = {"modelled": True, "kernels": len(modelled), "geomean_bound": geomean(modelled)}
        environment = {"device": "timing model of sm_90", "gpu": None}
        print(write("beyond-bounds", rows_of, summary, environment, out=options.out))
    elif options.do == "limits":
        import beyond_limits

        only = set(filter(None, options.only.split(",")))
        names = [s for s in subjects() if not only or s.removeprefix("suite:") in only]
        beyond_limits.launch_all(names, Path(options.out))
    elif options.do == "merge":
        rows = [r for file in options.files for r in read_rows(file)]
        if not rows:  # or a published result would become an empty one
            parser.error("there is no row in " + ", ".join(map(str, options.files)))
        seen = [
            read_result(f, "summary")["summary"] for f in options.files if f.suffix == ".json" and f.is_file()
        ]
        limits = next((s["limits"] for s in reversed(seen) if "limits" in s), None)
        if options.limits:
            import beyond_limits

            limits = beyond_limits.read(options.limits)
        finish(rows, options.name, options.seed, options.out, limits)
    else:
        if len(options.files) != 1:
            parser.error("table: which result file?")
        print(table(read_result(options.files[0], "summary")))


if __name__ == "__main__":
    main()
