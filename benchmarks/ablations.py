"""CuAsmRL's agent with one part changed at a time, on its six kernels: writes cuasmrl-ablations.json.

    python benchmarks/ablations.py --folder runs --seconds 500      # a GPU; the same command goes on
    python benchmarks/ablations.py --folder runs --summary          # cuasmrl-ablations.json of what is there
    python benchmarks/ablations.py --folder /tmp/runs --out /tmp --device model --kernels softmax \\
        --variants cuasmrl,gate --seeds 1 --evaluations 100         # modelled, without a GPU

The preset ``cuasmrl`` and its variants make as many moves as the controls evaluate candidates. The controls
have no agent: a random walk and a greedy search over its moves, and a random walk over all moves. Kernels and
seeds run side by side, `EACH` on a GPU, which times one candidate at a time or works for one network. Each
finished search is a file in --folder and is not run again; one that the deadline cuts is discarded.

Each variant is compared with the preset on the kernels and seeds that both have done: mean change of the
speed-up with a 95 % interval of a bootstrap, and how many are above. Speed-ups are those of
`strategies.look_again`.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import strategies
from common import command_line, geomean, gpu_count, per_gpu
from strategies import Row, Settings

from sassafras.search import preset

#: changes of the preset by name
CHANGES: dict[str, Row] = {
    "cuasmrl": {},
    "no mask": {"mask": False},
    "all features": {"view": "all"},
    "gate": {"gate": True},
    "pool": {"pool": True},
    "all moves": {"moves": "all"},
    "rate 0.001": {"rate": 0.001},
    "batch 32": {"batch": 32},
}
CONTROLS = ("walk_memory_moves", "greedy_memory_moves", "random_walk")
VARIANTS = (*CHANGES, *CONTROLS)
KERNELS = ("gemm_leakyrelu", "batched_gemm", "feed_forward", "attention", "softmax", "rmsnorm")
#: processes that share a GPU: one a kernel and seed
EACH = 12


def play(kernel: str, seed: int, names: list[str], settings: Settings) -> int:
    """`strategies.play` with the variants of the preset, as many moves as evaluations."""
    own = {**preset("cuasmrl").settings, "total": settings.evaluations}
    strategies.STRATEGIES |= {name: ("ppo", own | change, {}) for name, change in CHANGES.items()}
    return strategies.play(kernel, seed, names, settings)


def change(rows: list[Row], name: str, draws: int = 2000) -> Row:
    """A variant beside the preset, over the kernels and seeds that both have done."""
    final = {(r["strategy"], r["kernel"], r["seed"]): r["final_speedup"] for r in rows}
    pairs = [
        np.log(value / final["cuasmrl", kernel, seed])
        for (strategy, kernel, seed), value in final.items()
        if strategy == name and ("cuasmrl", kernel, seed) in final
    ]
    found: Row = {"pairs": len(pairs), "above": sum(bool(p > 0) for p in pairs)}
    if not pairs:
        return found | dict.fromkeys(("change", "low", "high"))
    drawn = np.random.default_rng(0).choice(pairs, (draws, len(pairs))).mean(axis=1)
    low, high = np.expm1(np.quantile(drawn, [0.025, 0.975])).tolist() if len(pairs) > 1 else (None, None)
    return found | {"change": float(np.expm1(np.mean(pairs))), "low": low, "high": high}


def summarise(rows: list[Row]) -> Row:
    """The comparison: each variant's geometric mean, and its change from the preset."""
    good = [r for r in rows if "error" not in r]
    verdicts = ("wrong_result", "crashed", "timed_out")
    by = {name: [r for r in good if r["strategy"] == name] for name in VARIANTS}
    return {
        "modelled": any(r["modelled"] for r in good),
        "kernels": len({r["kernel"] for r in good}),
        "searches": len(good),
        "evaluations": sum(r["evaluations"] for r in good),
        "wrong_or_crashed": sum(r["verdicts"].get(v, 0) for r in good for v in verdicts),
        "variants": {
            name: {
                "searches": len(mine),
                "geomean_final": geomean(r["final_speedup"] for r in mine),
                "median_evaluations": float(np.median([r["evaluations"] for r in mine])),
                **change(good, name),
            }
            for name, mine in by.items()
            if mine
        },
        "errors": [{k: r[k] for k in ("kernel", "strategy", "seed", "error")} for r in rows if "error" in r],
    }


def publish(folder: Path, out: Path) -> Path:
    """cuasmrl-ablations.json (on the timing model cuasmrl-ablations-modelled.json) of what the folder has."""
    rows = strategies.finished(folder)
    summary = summarise(rows)
    for name, of in summary["variants"].items():
        print(f"{name:20} {of['geomean_final']:.4f}, {of['change']} of {of['pairs']} pairs")
    return strategies.record("cuasmrl-ablations", rows, summary, out)


def main() -> None:
    """Command line."""
    parse = command_line(__doc__)
    parse.add_argument("--folder", type=Path, required=True, help="where searches are kept")
    parse.add_argument("--kernels", default=",".join(KERNELS))
    parse.add_argument("--variants", default=",".join(VARIANTS))
    parse.add_argument("--seeds", type=int, default=2)
    parse.add_argument("--evaluations", type=int, default=1200, help="of a control; moves of an agent")
    parse.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parse.add_argument("--looks", type=int, default=14, help="at the leaders, after the search")
    parse.add_argument("--gpus", type=int, help="[default: all]")
    parse.add_argument("--each", type=int, default=EACH, help="searches that share a GPU")
    parse.add_argument("--seconds", type=float, default=1e7, help="stop after so many")
    parse.add_argument("--summary", action="store_true", help="run nothing, write the result")
    given = parse.parse_args()
    names = given.variants.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        raise SystemExit(f"error: unknown variants {unknown}; there are {', '.join(VARIANTS)}")
    if given.summary:
        print(publish(given.folder, given.out))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    common = {key: getattr(given, key) for key in ("folder", "device", "evaluations", "looks")}
    settings = Settings(**common, deadline=time.time() + given.seconds, shared=True)
    strategies.finished(given.folder, settings.asked)
    items = [(k, s, names, settings) for s in range(given.seeds) for k in given.kernels.split(",")]
    gpus = given.gpus or (gpu_count() if given.device == "cuda" else 1) or 1
    for index, result in per_gpu(play, items, gpus, each=given.each):
        if isinstance(result, Exception):
            print(f"{items[index][0]}, seed {items[index][1]}: {result!r}", flush=True)
    print(publish(given.folder, given.out))
    left = sum(not settings.path(k, n, s).exists() for k, s, names, _ in items for n in names)
    print(f"{left} searches left", flush=True)


if __name__ == "__main__":
    main()
