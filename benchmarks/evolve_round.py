"""CUDA-L2's loop over many targets, one folder each: prompts written, answers judged, the result file.

    python benchmarks/evolve_round.py prompts ROOT gemm:128x128x16384 suite:softmax [--context DIR ...]
    python benchmarks/evolve_round.py judge ROOT --seconds 540 [--control]      # on the GPU's machine
    python benchmarks/evolve_round.py summary ROOT                              # writes llm-evolve.json

``prompts`` begins a run for each target; made again, it goes on where a generation is judged. Answers are
files beside the prompts. ``judge`` takes the folders in turn until its time is spent: it judges what is
answered, profiles what the next prompts show, and writes them. A run whose proposals are all judged is
re-measured in fresh processes beside its A/A control. With ``--control`` each run has a twin of random edits
in ``FOLDER.mutation``. The recorded runs are in ``data/evolve.tar.xz`` (`tar xJf`); ``summary`` replays each.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

from common import command_line, geomean, write

ABLATIONS = {"contrast": "contrastive", "metrics": "metrics", "retrieval": "retrieval"}
CONTROL = ".mutation"
#: seconds below which no further run is begun
LEAST = 20.0


def name_of(target: str, without: list[str]) -> str:
    """The folder of a target."""
    return re.sub(r"[^\w.]+", "-", target).strip("-") + "".join(f"-no-{part}" for part in without)


def prompts(args: argparse.Namespace) -> None:
    """Write what can be written without a device."""
    from sassafras.api.evolve import write_prompts

    settings = {
        "width": args.width,
        "proposals": args.proposals,
        "give_up": 0,
        **{ABLATIONS[part]: False for part in args.without},
    }
    for target in args.targets:
        found = write_prompts(
            target,
            args.root / name_of(target, args.without),
            settings=settings,
            seed=args.seed,
            whole=not args.holes,
            context=[] if "retrieval" in args.without else args.context,
            gpu=args.gpu,
        )
        print(found.summary(), flush=True)


def folders(root: Path) -> list[Path]:
    """The runs of a root, controls left out."""
    return sorted(p.parent for p in root.glob("*/settings.json") if not p.parent.name.endswith(CONTROL))


def judge(args: argparse.Namespace) -> None:
    """Judge all pending answers of all folders, then the controls, within the time."""
    from sassafras.api.evolve import evolve
    from sassafras.core import SassafrasError
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.llm.record import Record

    end = time.monotonic() + args.seconds
    device = CudaDevice(bitwise=False) if args.device == "cuda" else args.device
    runs = [(folder, f"exchange:{folder}", folder) for folder in folders(args.root)]
    if args.control:
        runs += [(folder, "mutate", folder.with_name(folder.name + CONTROL)) for folder, _, _ in list(runs)]
    try:
        for origin, proposer, folder in runs:
            left = end - time.monotonic()
            saved = Record(origin).settings
            if left < LEAST:
                print("no time is left", flush=True)
                break
            if idle(Record(folder) if folder.exists() else None, saved, proposer):
                continue
            try:
                result = evolve(
                    saved["target"],
                    proposer=proposer,
                    folder=folder,
                    settings=saved["settings"],
                    budget=f"{int(left)}s",
                    device=device,
                    seed=saved["seed"],
                    case=saved["case"],
                    whole=saved["whole"],
                    context=saved["context"],
                    stage=None if args.quiet else lambda text: print(f"  {text}", flush=True),
                )
                print(f"{folder.name}: waiting for {result.facts['waiting']}; {result.notes[-1]}", flush=True)
            except SassafrasError as error:
                print(f"{folder.name}: {error}", flush=True)
    finally:
        if not isinstance(device, str):
            device.close()


def idle(record: Any, saved: dict[str, Any], proposer: str) -> bool:
    """Whether a run has nothing to judge and nothing to re-measure."""
    if record is None:
        return False
    last = int(saved["settings"]["proposals"])
    if last and len(set(record.judged) - {0}) >= last:
        return any(event["kind"] == "confirmed" for event in record.events())
    if not proposer.startswith("exchange:") or 0 not in record.judged:
        return False
    opened = [number for number in record.prompts if number not in record.judged]
    return bool(opened) and not any(record.answer(number) is not None for number in opened)


def summary(args: argparse.Namespace) -> None:
    """The result file of all transcripts under a root."""
    from sassafras.api.evolve import replay_run
    from sassafras.llm.evolve import ProposalTally
    from sassafras.llm.record import Record

    rows: list[dict[str, Any]] = []
    totals = {kind: ProposalTally() for kind in ("model", "mutation")}
    again: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in totals}
    references: list[dict[str, Any]] = []
    replayed = 0
    for folder in sorted(p.parent for p in args.root.glob("*/settings.json")):
        record = Record(folder)
        replay_run(folder)
        replayed += 1
        references += record.references
        kind = "mutation" if folder.name.endswith(CONTROL) else "model"
        shown = record.settings["settings"]
        facts = {
            "target": record.settings["target"],
            "proposer": kind,
            "contrast": shown["contrastive"],
            "metrics": shown["metrics"],
            "retrieval": shown["retrieval"] and bool(record.settings["context"]),
        }
        for number in sorted(set(record.judged) - {0}):
            variant = record.judged[number]
            if variant.verdict == "modelled":
                raise SystemExit(f"{folder}: prompt {number} was modelled, which is no measurement")
            totals[kind].count(variant)
            measured = variant.measured
            null = measured.get("null", {})
            rows.append({
                **facts, "prompt": number, "generation": variant.generation, "verdict": variant.verdict,
                "score": variant.score, "speedup": measured.get("speedup"),
                "speedup_low": measured.get("low"), "speedup_high": measured.get("high"),
                "null": null.get("speedup"), "null_low": null.get("low"),
                "null_high": null.get("high"), "time_us": measured.get("time_us"),
                "baseline_us": measured.get("baseline_us"), "reward": variant.reward,
            })  # fmt: skip
        for event in record.events():
            if event["kind"] == "confirmed":
                rows.append(
                    {**facts, "verdict": "confirmed", **{k: v for k, v in event.items() if k != "kind"}}
                )
                if all(shown[part] for part in ABLATIONS.values()):
                    again[kind][facts["target"]] = event
    model, control = totals["model"], totals["mutation"]
    winners = again["model"]
    over_best = {target: event["over_best"] for target, event in winners.items() if event["over_best"]}
    confirmed = [ratio for target, ratio in over_best.items() if winners[target]["improved"]]
    found = {
        "targets": len({row["target"] for row in rows}),
        "proposals": model.proposed,
        "compiled": model.compiled,
        "right": model.correct,
        "faster": model.faster,
        "mutation": {
            **vars(control),
            "remeasured": len(again["mutation"]),
            "confirmed": sum(event["improved"] for event in again["mutation"].values()),
        },
        "remeasured": len(winners),
        "confirmed": len(confirmed),
        "geomean_confirmed": geomean(confirmed),
        "geomean_remeasured": geomean(over_best.values()),
        "replayed": replayed,
        "families_shipped": args.shipped,
    }
    devices = sorted({str(reference.get("device")) for reference in references})
    print(write("llm-evolve", rows, found, {"gpu": ", ".join(devices)}, out=args.out))
    print(json.dumps(found))


def main() -> None:
    """See the module."""
    parser = command_line(__doc__)
    parser.add_argument("what", choices=("prompts", "judge", "summary"))
    parser.add_argument("root", type=Path)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--proposals", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--holes", action="store_true", help="rewrite holes, not whole sources")
    parser.add_argument(
        "--context", action="append", default=[], help="a folder to retrieve from; repeatable"
    )
    parser.add_argument("--without", action="append", default=[], choices=tuple(ABLATIONS))
    parser.add_argument("--gpu", default="NVIDIA H200", help="the GPU that will judge")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--shipped", type=int, default=0, help="kernel families shipped from these runs")
    args = parser.parse_args()
    {"prompts": prompts, "judge": judge, "summary": summary}[args.what](args)


if __name__ == "__main__":
    main()
