"""The ladder beyond reordering: ptxas, swaps, control codes, copies. Writes beyond-reordering.json.

    python benchmarks/beyond.py prepare [--only softmax,...] [--ptxas PATH,PATH]   # no GPU: build/beyond
    python benchmarks/beyond.py run --seconds 20 [--gpus N] [--limit-s 540] [--only ...] [--resume FOLDER]
    python benchmarks/beyond.py run --device model --evaluations 30 --only rotary   # dry run, all modelled
    python benchmarks/beyond.py merge A/beyond.rows.jsonl B/beyond.rows.jsonl
    python benchmarks/beyond.py table benchmarks/results/beyond-reordering.json

`prepare` assembles every distinct kernel of the knob sweep into a small folder, as the machine with the GPU
has no registry. `run` takes rows that are not in ``beyond.rows.jsonl`` of the output folder (or of
``--resume``) yet, one process a GPU, writes each at once, and begins none that would not end within
``--limit-s``: the same command goes on in another sitting.

Stages, each re-measured in fresh processes beside the null experiment: ``knobs``: the fastest prepared
kernel over the frontend's own. The others search from that kernel and are reported over it: ``swaps`` (moves
under the compiler's control codes), ``control`` (control codes from scratch, moves bound by true dependences
only), ``renaming`` (the same on a copy with other register names, which is proved first), ``blocks``
(likewise with instructions moved over branches).
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, geomean, per_gpu, write

Row = dict[str, Any]
STAGES = ("knobs", "swaps", "control", "renaming", "blocks")
BUNDLE = ROOT / "build" / "beyond"


def prepare(only: set[str], tools: Sequence[str] | None, folder: Path) -> None:
    """Assemble the sweep of every kernel: ``<kernel>/<number>.cubin`` and ``<kernel>/index.json``."""
    from sassafras import suite
    from sassafras.frontend import knobs, load

    for name in suite.names():
        if only and name not in only:
            continue
        target = folder / name
        if (target / "index.json").is_file():
            continue
        workload = load(f"suite:{name}")
        case = workload.case()
        space = knobs.of(workload, case, "sm_90a", tools)
        found, refused = space.distinct()
        target.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, candidate in enumerate(found):
            (target / f"{number}.cubin").write_bytes(candidate.kernel.cubin)
            entries.append({"file": f"{number}.cubin", **candidate.recipe})
        index = {"kernel": name, "case": case.name, "settings": entries, "refused": refused}
        (target / "index.json").write_text(json.dumps(index, indent=1))
        print(f"{name}: {len(found)} distinct kernels, {len(refused)} refused", flush=True)


def best_of(workload: Any, case: Any, device: Any, folder: Path, looks: int = 2) -> tuple[Any, Row]:
    """The fastest prepared kernel (the frontend's own without a bundle), and what was measured."""
    from dataclasses import replace

    from sassafras.core import Candidate
    from sassafras.sass import Cubin

    own = workload.build(case, device.arch)
    index = folder / workload.name / "index.json"
    entries = json.loads(index.read_text())["settings"] if index.is_file() else []
    facts: Row = {"settings": max(1, len(entries)), "ptxas": own.meta.get("ptxas"), "flags": []}
    device.open(workload, case, own)
    costs: list[tuple[float, int, Any]] = []
    verdicts: dict[str, int] = {}
    for number, entry in enumerate(entries):
        data = (index.parent / entry["file"]).read_bytes()
        Cubin.parse(data)
        meta = {**own.meta, "ptxas": entry["ptxas"], "ptxas_flags": entry["flags"]}
        candidate = Candidate(replace(own, cubin=data, meta=meta), entry)
        seen = []
        for _ in range(looks):
            if device.modelled:
                device.open(workload, case, candidate.kernel)
                outcome = device.run(candidate)
                cost = outcome.cycles
            else:
                outcome = device.run(candidate)
                cost = outcome.cost
            word = "modelled" if outcome.verdict is None else str(outcome.verdict)
            verdicts[word] = verdicts.get(word, 0) + 1
            if cost is None:
                break
            seen.append(cost)
        else:
            costs.append((sorted(seen)[0], number, candidate))
    facts["knob_verdicts"] = verdicts
    costs.sort(key=lambda c: c[:2])
    if device.modelled:
        device.open(workload, case, own)
        cycles = device.run(Candidate(own)).cycles
        best = costs[0] if costs else (cycles, 0, Candidate(own))
        facts |= {"speedup": cycles / best[0], **_modelled_interval(cycles / best[0])}
        chosen = best[2]
        return chosen.kernel, facts | _setting(chosen)
    final = Candidate(own)
    facts |= {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0}
    for _, _, candidate in costs[:2]:
        if candidate.kernel.cubin == own.cubin:
            break
        found = device.remeasure(candidate, processes=3, cold_l2=False)
        if not (found.verdict.ok and found.interval and found.null_interval):
            continue
        facts |= {
            "null": found.null, "null_low": found.null_interval.low, "null_high": found.null_interval.high,
        }  # fmt: skip
        if found.interval.low > max(1.0, found.null_interval.high) and found.speedup > facts["speedup"]:
            final = candidate
            facts |= {
                "speedup": found.speedup, "speedup_low": found.interval.low,
                "speedup_high": found.interval.high, "baseline_us": found.baseline_us,
                "time_us": found.time_us,
            }  # fmt: skip
    return final.kernel, facts | _setting(final)


def _setting(candidate: Any) -> Row:
    recipe = candidate.recipe
    return {"ptxas": recipe["ptxas"], "flags": recipe["flags"]} if "flags" in recipe else {}


def _modelled_interval(ratio: float) -> Row:
    return {"speedup_low": ratio, "speedup_high": ratio, "null": 1.0, "null_low": 1.0, "null_high": 1.0}


def one(name: str, stage: str, options: Row) -> Row:
    """One kernel and stage; a row, whatever happens."""
    import sassafras
    from sassafras import wiring
    from sassafras.frontend import load

    begin = time.perf_counter()
    folder = Path(options["out"])
    row: Row = {
        "kernel": name, "stage": stage, "modelled": options["device"] == "model",
        "seconds": options["seconds"], "seed": options["seed"],
    }  # fmt: skip
    device = None
    try:
        workload = load(f"suite:{name}")
        case = workload.case()
        row["shape"] = case.name
        device = wiring.open_device(options["device"], None)
        chosen = folder / "chosen" / f"{name}.cubin"
        earlier = Path(options["resume"] or folder) / "chosen" / f"{name}.cubin"
        if earlier.is_file() and not chosen.is_file():
            chosen.parent.mkdir(parents=True, exist_ok=True)
            chosen.write_bytes(earlier.read_bytes())
        if stage == "knobs" or not chosen.is_file():
            kernel, facts = best_of(workload, case, device, Path(options["bundle"]))
            chosen.parent.mkdir(parents=True, exist_ok=True)
            chosen.write_bytes(kernel.cubin)
            if stage == "knobs":
                row |= facts
                row["environment"] = device.environment()
        if stage != "knobs":
            own = workload.build(case, device.arch)
            kernel = own.with_cubin(chosen.read_bytes())
            device.close()
            device = None
            budget = f"{options['evaluations']}e" if options["evaluations"] else f"{options['seconds']:g}s"
            result = sassafras.optimize(
                _with(workload, kernel), strategy="anneal", budget=budget, device=options["device"],
                seed=options["seed"], case=case.name, store=folder / f"{name}-{stage}.sqlite",
                out=folder / "tuned" / stage, space=stage,
            )  # fmt: skip
            ratio = result.modelled_ratio if result.modelled else result.speedup
            row |= {
                "speedup": ratio, "improved": result.improved, "evaluations": result.evaluations,
                "verdicts": dict(result.verdicts), "failed_after_validation": result.failed_after_validation,
                "baseline_us": result.baseline_us, "time_us": result.time_us, "notes": list(result.notes),
                "summary": result.summary(), "facts": dict(result.facts),
                "environment": result.environment,
            }  # fmt: skip
            if result.modelled:
                row |= _modelled_interval(ratio or 1.0)
            elif result.interval and result.null_interval:
                row |= {
                    "speedup_low": result.interval.low, "speedup_high": result.interval.high,
                    "null": result.null, "null_low": result.null_interval.low,
                    "null_high": result.null_interval.high,
                }  # fmt: skip
    except Exception as error:
        traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"
    finally:
        if device is not None:
            device.close()
    row["wall_seconds"] = round(time.perf_counter() - begin, 1)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "beyond.rows.jsonl").open("a") as rows:
        rows.write(json.dumps(row, default=str) + "\n")
    return row


def _with(workload: Any, kernel: Any) -> Any:
    """The workload with this kernel as its baseline; workers are handed the cubin and load the rest again."""
    from dataclasses import replace

    return replace(workload, build=lambda case, arch, **_: kernel)


def done(folder: Path) -> dict[tuple[str, str], Row]:
    """Rows of earlier sittings; those that failed are tried again."""
    path = folder / "beyond.rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {(r["kernel"], r["stage"]): r for r in rows if "error" not in r}


def summarise(rows: Sequence[Row]) -> Row:
    """Per stage: geometric means; of knobs over the frontend's own, of the others over the best of ptxas."""
    from sassafras import suite

    out: Row = {"modelled": any(r["modelled"] for r in rows)}
    good = [r for r in rows if r.get("speedup")]
    by = {(r["kernel"], r["stage"]): r["speedup"] for r in good}
    for stage in STAGES:
        of = {k: v for (k, s), v in by.items() if s == stage}
        out[stage] = {
            "kernels": len(of), "geomean_speedup": geomean(of.values()),
            "best_speedup": max(of.values(), default=None),
            "geomean_speedup_paper_six": geomean(of[n] for n in suite.paper_six() if n in of),
        }  # fmt: skip
    out["evaluations"] = sum(r.get("evaluations") or 0 for r in rows)
    out["wrong_or_crashed_after_validation"] = sum(r.get("failed_after_validation") or 0 for r in rows)
    out["failed_rows"] = [f"{r['kernel']}/{r['stage']}" for r in rows if "error" in r]
    return out


def finish(rows: list[Row], name: str, seed: int, out: str | None) -> Path:
    """Write the result file."""
    order = {stage: n for n, stage in enumerate(STAGES)}
    rows = sorted(rows, key=lambda r: (r["kernel"], order[r["stage"]]))
    environments = [r.pop("environment", None) for r in rows]
    environment = next((e for e in environments if e), {})
    summary = summarise(rows)
    path = write(name, rows, summary, environment, seed=seed, out=out)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")
    return path


def table(result: Row) -> str:
    """One line a kernel, one column a stage."""
    word = "modelled" if result["summary"].get("modelled") else "speed-up"
    lines = [f"| kernel ({word}) | " + " | ".join(STAGES) + " |", "|---" * (1 + len(STAGES)) + "|"]
    by = {(r["kernel"], r["stage"]): r for r in result["rows"]}
    for kernel in sorted({k for k, _ in by}):
        cells = []
        for stage in STAGES:
            r = by.get((kernel, stage), {})
            if "error" in r or not r.get("speedup"):
                cells.append("failed" if "error" in r else "")
            elif r["modelled"]:
                cells.append(f"{r['speedup']:.3f}")
            else:
                cells.append(f"{r['speedup']:.3f} [{r['speedup_low']:.3f}, {r['speedup_high']:.3f}]")
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Rows that are missing, stage by stage, until the time is up."""
    from sassafras import suite

    begin = time.monotonic()
    only = set(filter(None, options.only.split(",")))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    have = done(folder)
    if options.resume:  # an earlier sitting's output, read-only: its rows are taken over
        old = {k: r for k, r in done(Path(options.resume)).items() if k not in have}
        with (folder / "beyond.rows.jsonl").open("a") as rows:
            rows.writelines(json.dumps(r, default=str) + "\n" for r in old.values())
        have |= old
    stages = [s for s in STAGES if s in options.stages.split(",")]
    settings = {
        "out": str(folder), "device": options.device, "seconds": options.seconds, "seed": options.seed,
        "resume": options.resume, "evaluations": options.evaluations, "bundle": str(options.bundle),
    }  # fmt: skip
    for stage in stages:  # a kernel's knobs come before its searches
        names = [n for n in suite.names() if (not only or n in only) and (n, stage) not in have]
        gpus = options.gpus or 1
        width = len(names) if options.device == "model" else gpus
        while names:
            left = options.limit_s - (time.monotonic() - begin)
            if left < options.seconds + 45:
                print(f"{stage}: {len(names)} kernels left for another sitting", flush=True)
                break
            batch, names = names[:width], names[width:]
            items = [(n, stage, settings) for n in batch]
            if options.device == "model":
                results = [one(*item) for item in items]
            else:
                results = [r for _, r in per_gpu(one, items, options.gpus)]
            for row in results:
                said = (
                    row.get("summary") or row.get("error") or row.get("speedup")
                    if isinstance(row, dict)
                    else row
                )
                print(f"{stage}: {row.get('kernel') if isinstance(row, dict) else ''} {said}", flush=True)
    finish(list(done(folder).values()), options.name, options.seed, str(folder))


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("prepare", "run", "merge", "table"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--ptxas", default="", help="prepare: programs, separated by commas; all found by default"
    )
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--evaluations", type=int, default=0, help="a budget in evaluations instead")
    parser.add_argument("--limit-s", type=float, default=540)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", help="run: folder of an earlier sitting")
    parser.add_argument("--name", default="beyond-reordering")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    if options.do == "prepare":
        tools = [t for t in options.ptxas.split(",") if t] or None
        prepare(set(filter(None, options.only.split(","))), tools, options.bundle)
    elif options.do == "run":
        run(options)
    elif options.do == "merge":
        rows: dict[tuple[str, str], Row] = {}
        for file in options.files:
            rows |= done(file.parent)
        finish(list(rows.values()), options.name, options.seed, options.out)
    else:
        print(table(json.loads(options.files[0].read_text())))


if __name__ == "__main__":
    main()
