"""A short GRPO run of a small language model on configurations in JSON, beside a shuffled-reward control.

    python benchmarks/llm_grpo.py --model FOLDER_OR_GGUF --dataset FILE.jsonl.gz
    python benchmarks/llm_grpo.py --model FOLDER_OR_GGUF --stand-in       # rewards of the static estimate

No GPU is needed: rewards are replayed. Both arms see the same prompts; the control's rewards are exchanged
within each group. Appends every update to ``--journal``; a finished arm is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from common import write


def arm(args: argparse.Namespace, table: Any, shuffled: bool) -> list[dict[str, Any]]:
    """One run, from the same start."""
    from sassafras.llm.json_reward import JsonReward, training_prompts
    from sassafras.llm.lm_grpo import LmGrpoSettings, train
    from sassafras.llm.local import LocalSettings, load

    model, tokenizer = load(LocalSettings(args.model, device=args.device))
    rows = training_prompts(table, args.rows, seed=args.seed, shown=args.shown)
    settings = LmGrpoSettings(
        steps=args.steps, group=args.group, max_tokens=args.max_tokens, learning_rate=args.learning_rate,
        shuffled=shuffled, temperature=args.temperature, prefill=args.prefill,
    )  # fmt: skip
    name, began = "shuffled" if shuffled else "rewarded", time.monotonic()
    found: list[dict[str, Any]] = []

    def report(step: Any) -> None:
        row = {"arm": name, **asdict(step), "seconds": round(time.monotonic() - began, 1)}
        found.append(row)
        with args.journal.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{name} {step.step}: reward {step.reward:.3f}, usable {step.usable:.2f}, {step.example!r}",
            flush=True,
        )

    train(model, tokenizer, rows, JsonReward(table), settings, seed=args.seed, report=report)
    return found


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Each arm's first and last quarter."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == name]
        quarter = max(1, len(mine) // 4)
        for key in ("reward", "usable"):
            found[f"{name}_{key}_first"] = statistics.fmean(row[key] for row in mine[:quarter])
            found[f"{name}_{key}_last"] = statistics.fmean(row[key] for row in mine[-quarter:])
    return found


def main() -> None:
    """See the module."""
    from llm_policy import read, table_of

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--most", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64, help="different prompts")
    parser.add_argument("--shown", type=int, default=2, help="other configurations shown in a prompt")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--prefill", default='{"', help="how every answer begins")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", type=Path, default=Path("llm-grpo.jsonl"))
    parser.add_argument("--out")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    table = table_of(args)
    rows = read(args.journal)
    for name in ("rewarded", "shuffled"):
        if sum(row["arm"] == name for row in rows) < args.steps:
            rows = [row for row in rows if row["arm"] != name]
            rows += arm(args, table, name == "shuffled")
    summary = {**summarise(rows), "model": Path(args.model).name, "rewards": table.source}
    print(json.dumps(summary, indent=1))
    if table.measured:
        environment = {"dataset": table.source, "torch": torch.__version__}
        print("wrote", write("llm-grpo", rows, summary, environment, seed=args.seed, out=args.out))
    else:
        print("the rewards were not measured, so nothing is written")


if __name__ == "__main__":
    main()
