"""Figures by name, each made from a file of benchmarks/results/ or a shipped table. Pages quote them."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: below this rank correlation the timing model is called useless for a kernel
USELESS = 0.3

Row = dict[str, Any]


@lru_cache
def result(name: str) -> dict[str, Any]:
    """A file of benchmarks/results/."""
    data: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
    return data


@lru_cache
def latency(arch: str) -> Row:
    """A shipped latency table: what it was mined from, its rows, the share of raw pairs that it answers."""
    from sassafras.sass.latency import LatencyTable

    table = LatencyTable.load(arch)
    raw = {key: row for key, row in table.rows.items() if key[0] == "raw"}
    answered = sum(row.samples for key, row in raw.items() if table.distance(*key) is not None)
    share = answered / sum(row.samples for row in raw.values())
    return {**table.provenance, "rows": len(table), "answered": share}


# -- words for rows -----------------------------------------------------------------------------------------


def _with(value: str, low: float, high: float) -> str:
    return f"{value} [{low:.3f}, {high:.3f}]"


def speedup(row: Row, bold: str = "") -> str:
    """``1.077x [1.076, 1.077]``"""
    return _with(f"{bold}{row['speedup']:.3f}x{bold}", row["speedup_low"], row["speedup_high"])


def null(row: Row) -> str:
    """``1.000 [1.000, 1.000]``"""
    return _with(f"{row['null']:.3f}", row["null_low"], row["null_high"])


def title(row: Row) -> str:
    """A kernel of the suite as a reader calls it."""
    shape = row["shape"]
    head = shape.rsplit("x", 1)[-1]
    return {
        "attention": f"flash attention, head {head}", "attention_causal": f"causal attention, head {head}",
        "softmax": f"softmax {shape}", "quantise_fp8": f"quantise to FP8 {shape}", "gemv_int4": "INT4 GEMV",
        "gemv_int8": "INT8 GEMV", "rmsnorm": "RMS norm", "layernorm": f"layer norm {shape}",
        "swiglu": "SwiGLU", "batched_gemm": "batched GEMM", "topk_gating": f"top-k gating {shape}",
        "rotary": f"rotary {shape}", "gemm_leakyrelu": "GEMM + leaky ReLU",
    }.get(row["kernel"], str(row["kernel"]).replace("_", " "))  # fmt: skip


def schedule_rows(*, odd: bool = False) -> list[Row]:
    """Variants that a call of ordinary size selects, or those that only odd sizes select."""
    return [row for row in result("schedule-suite")["rows"] if row["odd"] is odd]


def improved(*, odd: bool = False) -> list[Row]:
    return [row for row in schedule_rows(odd=odd) if row["improved"]]


def unchanged() -> list[Row]:
    return [row for row in schedule_rows() if not row["improved"]]


# -- single figures -----------------------------------------------------------------------------------------


def _of_schedules() -> dict[str, str]:
    data = result("schedule-suite")
    summary = data["summary"]
    found = {
        "kernels": f"{len(schedule_rows())}",
        "faster": f"{len(improved())}",
        "odd": f"{len(schedule_rows(odd=True))}",
        "odd.faster": f"{len(improved(odd=True))}",
        "odd.geomean": f"{summary['geomean_speedup_odd']:.3f}x",
        "unchanged": f"{len(unchanged())}",
        "geomean": f"{summary['geomean_speedup']:.3f}x",
        "best": f"{summary['best_speedup']:.3f}x",
        "evaluations": f"{summary['evaluations']:,}",
        "rate": f"{summary['evaluations_per_second']:.0f}",
        "crashed": f"{summary['wrong_or_crashed_after_validation']}",
        "wrong": f"{sum(row['verdicts'].get('wrong_result', 0) for row in data['rows'])}",
    }
    for row in data["rows"]:
        name = f"{row['kernel']}/{row['shape']}"
        if row["improved"]:
            found[name] = speedup(row)
        found[f"{name}.null"] = null(row)
    return found


def _of_model() -> dict[str, str]:
    data, fit = result("timing-model"), result("timing-model-fit")["summary"]
    return {
        "kernels": f"{len(data['rows'])}",
        "tau": f"{data['summary']['median_kendall_tau']:.2f}",
        "useless": f"{sum(row['kendall_tau'] < USELESS for row in data['rows'])}",
        "fit.held_out": f"{100 * fit['held_out_mape']:.0f} %",
        "fit.all": f"{100 * fit['mape_fitted_on_all']:.0f} %",
        "fit.published": f"{100 * fit['mape_published']:.0f} %",
    }


def _of_prerank() -> dict[str, str]:
    data = result("timing-model-prerank")
    saved = [row["saved"]["4"] for row in data["rows"]]
    return {
        "kernels": f"{len(saved)}",
        "saved": f"{100 * data['summary']['median_saved']['4']:.0f} %",
        "worse": f"{sum(s < 0 for s in saved)}",
    }


def _of_validator() -> dict[str, str]:
    summary = result("validator")["summary"]
    names = ("kernels", "accepted", "unsupported", "false_rejections", "planted", "caught")
    return {name: f"{summary[name]:,}" for name in names} | {"pinned": f"{summary['pinned_instructions']}"}


def _of_mutants() -> dict[str, str]:
    summary = result("validator-mutants")["summary"]
    old = summary["was_approved"]
    found = {
        "run": f"{summary['mutants_run']:,}",
        "approved": f"{summary['approved_run']:,}", "approved_right": f"{summary['approved_and_right']:,}",
        "approved_wrong": f"{summary['approved_but_wrong']}",
        "refused": f"{summary['mutants_run'] - summary['approved_run']:,}",
        "refused_right": f"{summary['refused_and_right']:,}",
        "refused_wrong": f"{summary['refused_and_wrong']:,}",
        "corrected_wrong": f"{len(old['wrong'])}", "corrected_right": f"{old['outcomes'].get('right', 0)}",
    }  # fmt: skip
    for edits in ("wide", "near"):
        sets = [one for one in summary["sets"] if one["edits"] == edits]
        for name in ("mutants_planned", "mutants_run", "approved_run", "approved_planned"):
            found[f"{edits}.{name}"] = f"{sum(one[name] for one in sets):,}"
        refused = sum(one["mutants_planned"] - one["approved_planned"] for one in sets)
        found[f"{edits}.refused"] = f"{refused:,}"
        run = sum(one["mutants_run"] - one["approved_run"] for one in sets)
        found[f"{edits}.refused_run"] = f"{run:,}"
    return found


def _of_cluster() -> dict[str, str]:
    data = result("cluster")
    found = {
        f"{row['kernel']}.{row['workers']}": f"{row['evaluations_per_second']:.0f}" for row in data["rows"]
    }
    least = data["summary"]["least_times_one"]
    return found | {f"least.{n}": f"{times:.2f}" for n, times in least.items() if n != "1"}


def _of_cheats() -> dict[str, str]:
    summary = result("cheats")["summary"]
    return {
        "cheats": f"{summary['cheats']}", "caught": f"{summary['cheats_caught']}",
        "honest": f"{summary['honest']}",
    }  # fmt: skip


def _of_agreement() -> dict[str, str]:
    summary = result("agreement")["summary"]
    return {
        "variants": f"{summary['variants']}",
        "judged": f"{summary['judged_keep'] + summary['judged_regenerate']:,}",
        "refused": f"{summary['refused_keep'] + summary['refused_regenerate']}",
    }


def _of_codes() -> dict[str, str]:
    summary = result("agreement")["summary"]
    names = ("worst", "best", "geomean")
    return {name: f"{summary[f'modelled_{name}']:.3f}" for name in names} | {
        "kernels": f"{summary['modelled_kernels']}"
    }


def _of_modes() -> dict[str, str]:
    """AutoTuning over the best plain launch, and over the best of all modes, in the selection run."""
    from sassafras.gemm.dataset import shipped

    logs: dict[str, list[tuple[float, float]]] = {}
    for entry in shipped():
        last = {name: us for name, (us, rung) in entry.ours.items() if rung >= 2}
        plain = min(us for name, us in last.items() if "+" not in name)
        baseline = entry.baseline_us()
        assert baseline is not None
        pair = math.log(baseline / plain), math.log(baseline / min(last.values()))
        for band in (entry.shape.band, "all"):
            logs.setdefault(band, []).append(pair)
    found = {}
    for band, pairs in logs.items():
        for name, of in zip(("plain", "best"), zip(*pairs, strict=True), strict=True):
            found[f"{name}.{band}"] = f"{math.exp(sum(of) / len(of)):.3f}"
    return found


def _of_hgemm() -> dict[str, str]:
    data = result("hgemm-offline")
    whole = data["summary"]
    found = _of_modes() | {
        "null": f"{whole['null_geomean']:.3f}",
        "null_lowest": f"{whole['null_lowest']:.3f}",
        "null_highest": f"{whole['null_highest']:.3f}",
        "all.mean": f"{whole['mean_vs_lt_autotune']:.3f}x",
        "all.cold": f"{whole['cold_geomean_vs_lt_autotune']:.3f}x",
        "all.cold_plain": f"{whole['cold_geomean_vs_lt_autotune']:.3f}",
        "all.geomean_plain": f"{whole['geomean_vs_lt_autotune']:.3f}",
        "all.portfolio": f"{whole['portfolio_geomean_vs_lt_autotune']:.3f}x",
        "all.portfolio_torch": f"{whole['portfolio_geomean_vs_torch']:.3f}x",
        "all.portfolio_worst": f"{whole['portfolio_worst_vs_lt_autotune']:.3f}x",
        "all.rms": f"{whole['worst_rms_ratio']:.4f}",
        "all.wall": f"{whole['wall_p50_portfolio_us']:.1f}",
        "all.wall_torch": f"{whole['wall_p50_torch_us']:.1f}",
    }
    for name, band in (("all", None), ("small", "<1e8"), ("medium", "1e8-1e9")):
        of = data["summary"]["bands"][band] if band else whole
        found |= {
            f"{name}.shapes": f"{of['shapes']:,}",
            f"{name}.won": f"{round(of['win_rate_vs_lt_autotune'] * of['with_ours'])}",
            f"{name}.won_share": f"{100 * of['win_rate_vs_lt_autotune']:.0f} %",
            f"{name}.geomean": f"{of['geomean_vs_lt_autotune']:.3f}x",
            f"{name}.worst": f"{of['worst_vs_lt_autotune']:.3f}x",
        }
    for row in data["rows"]:
        if row["shape"] == "64x64x64":
            found |= {"64x64x64.ours": f"{row['ours']:.2f}", "64x64x64.lt": f"{row['lt_autotune']:.2f}"}
    return found


def _of_matmul() -> dict[str, str]:
    """CPU time of a call beside torch.matmul's, microseconds; random shapes checked."""
    data, random = result("matmul-overhead"), result("hgemm-random")["summary"]
    rows = {who: [row for row in data["rows"] if row["case"].endswith(who)] for who in (" ours", " torch")}
    found = {"checks": f"{random['checks']:,}", "wrong": f"{random['wrong']}"} | {
        "rms": f"{random['worst_rms_ratio']:.4f}", "choosing": f"{data['summary']['choosing_us']:.0f}",
    }  # fmt: skip
    for who, name in ((" ours", "ours"), (" torch", "served_by_torch")):
        for call in ("sassafras", "sassafras_out"):
            more = [row[f"{call}_over_torch_us"] for row in rows[who]]
            found[f"{name}.{call}.worst"] = f"{max(more):+.1f}"
            found[f"{name}.{call}"] = f"{statistics.median(row[f'{call}_us'] for row in rows[who]):.1f}"
        found[f"{name}.torch"] = f"{statistics.median(row['torch_us'] for row in rows[who]):.1f}"
    return found


def _of_splits() -> dict[str, str]:
    """Few tiles, long k, after and before sums had more loads under way."""
    of = result("hgemm-splits")["summary"]
    return {
        "shapes": f"{of['shapes']}", "faster": f"{of['faster_than_recorded']}",
        "slower": f"{of['slower_than_recorded']}",
        "long": f"{of['speedup_long']:.2f}", "long_before": f"{of['recorded_speedup_long']:.2f}",
        "gain": f"{of['speedup_long'] / of['recorded_speedup_long']:.2f}",
    }  # fmt: skip


def _of_server() -> dict[str, str]:
    """Isolated calls of HGEMM."""
    of = result("hgemm-server")["summary"]
    found = {
        "shapes": f"{of['shapes']}", "ours": f"{of['geomean_vs_lt_autotune']:.3f}",
        "portfolio": f"{of['portfolio_geomean_vs_lt_autotune']:.3f}", "null": f"{of['null_geomean']:.3f}",
        "torch": f"{of['portfolio_geomean_vs_torch']:.3f}", "null_lowest": f"{of['null_lowest']:.2f}",
        "null_highest": f"{of['null_highest']:.2f}",
    }  # fmt: skip
    return found | {f"ours.{b}": f"{v['geomean_vs_lt_autotune']:.3f}" for b, v in of["bands"].items()}


def _of_offgrid() -> dict[str, str]:
    """Shapes that are never tuned."""
    of = result("hgemm-offgrid")["summary"]
    return {
        "shapes": f"{of['shapes']}", "tuned": f"{of['geomean_vs_lt_autotune']:.3f}",
        "portfolio": f"{of['portfolio_geomean_vs_lt_autotune']:.3f}",
        "worst": f"{of['portfolio_worst_vs_lt_autotune']:.3f}",
    }  # fmt: skip


def _of_epilogue() -> dict[str, str]:
    """Products with an epilogue, and batches."""
    of = result("matmul-epilogue")["summary"]
    names = ("geomean_vs_torch", "worst_vs_torch", "geomean_vs_lt_fused", "sassafras_geomean_vs_torch")
    return {name: f"{of[name]:.2f}" for name in names} | {
        "rows": f"{of['rows']}", "wins": f"{of['wins_vs_torch']}",
    }  # fmt: skip


def _of_samples() -> dict[str, str]:
    """Launches tested a second, and the share of what the launches alone allow."""
    data = result("samples")
    of, rows = data["summary"], sorted(data["rows"], key=lambda row: float(row["fraction_of_bound"]))
    found = {
        "kernels": f"{of['kernels']}", "half": f"{of['at_least_half']}", "mismatches": f"{of['mismatches']}",
        "samples": f"{of['samples']:,}", "lowest": f"{rows[0]['fraction_of_bound']:.2f}",
        "second": f"{rows[1]['fraction_of_bound']:.2f}", "highest": f"{rows[-1]['fraction_of_bound']:.2f}",
    }  # fmt: skip
    return found | {f"minutes.{k}": f"{s / 60:.1f}" for k, s in of["ten_million_take_s"].items()}


def _of_soak() -> dict[str, str]:
    """Kills on a GPU."""
    of = result("soak")["summary"]
    names = ("candidates", "kills_of_workers", "kills_of_the_search", "lost", "duplicated", "wrong_verdicts")
    return {name: f"{of[name]}" for name in names}


def _of_live() -> dict[str, str]:
    """Configurations outside the dataset, proposed by the policy and by a language model."""
    of, model = result("llm-live")["summary"], result("llm-live-gemm")["summary"]["sides"]
    rule, small = model["rule"], model["local:SmolLM2-135M-Instruct.Q4_1.gguf"]
    return {
        "shapes": f"{of['measured']}", "won": f"{of['policy_beats_control_by_2_percent']}",
        "lost": f"{of['control_beats_policy_by_2_percent']}",
        "median": f"{of['median_speedup_over_control']:.4f}",
        "rule.alone": f"{rule['alone_beats_control_by_2_percent']}",
        "rule.with": f"{rule['beats_control_by_2_percent']}",
        "model.alone": f"{small['alone_beats_control_by_2_percent']}",
        "model.alone_lost": f"{small['alone_control_beats_it_by_2_percent']}",
        "model.with": f"{small['beats_control_by_2_percent']}", "model.tried": f"{small['tried']}",
        "model.correct": f"{small['correct']}",
    }  # fmt: skip


def _of_deploy() -> dict[str, str]:
    """What an install() costs where nothing matches."""
    of = result("deploy-cost")["summary"]
    return {
        "launch": f"{of['launch_ratio']:.3f}", "launch_us": f"{of['launch_us_installed']:.1f}",
        "launch_low": f"{of['launch_ratio_range'][0]:.2f}",
        "launch_high": f"{of['launch_ratio_range'][1]:.2f}",
        "load": f"{of['load_ratio']:.2f}", "load_low": f"{of['load_ratio_range'][0]:.2f}",
        "load_high": f"{of['load_ratio_range'][1]:.2f}", "install_ms": f"{of['install_us'] / 1e3:.0f}",
    }  # fmt: skip


def _of_capture() -> dict[str, str]:
    """The example program, captured, tuned, deployed."""
    of = result("capture")["summary"]
    return {
        "expected": f"{of['expected']:.3f}", "end_to_end": f"{of['end_to_end']:.3f}",
        "low": f"{of['end_to_end_range'][0]:.3f}", "high": f"{of['end_to_end_range'][1]:.3f}",
    }  # fmt: skip


def _of_policy() -> dict[str, str]:
    """Methods by measurements: mean fraction of the best known speed; shapes held out."""
    data = result("llm-policy")
    found = {"steps": f"{data['rows'][0]['steps']}", "pairs": f"{data['environment']['pairs']:,}"}
    for method, by in data["summary"].items():
        for count, of in by.items():
            found[f"{method}.{count}"] = f"{of['mean_fraction_of_best']:.3f}"
    return found


def _of_grpo() -> dict[str, str]:
    """A small language model's GRPO: first and last quarter of both arms."""
    data = result("llm-grpo")
    found = {"steps": f"{sum(row['arm'] == 'rewarded' for row in data['rows'])}"}
    for arm in ("rewarded", "shuffled"):
        for part in ("first", "last"):
            found[f"{arm}.{part}"] = f"{data['summary'][f'{arm}_reward_{part}']:.2f}"
            found[f"{arm}.legal_{part}"] = f"{100 * data['summary'][f'{arm}_usable_{part}']:.0f} %"
    return found


def _of_choosers() -> dict[str, str]:
    """What choosers for shapes never tuned are worth on shapes held out."""
    found = {}
    summary = result("choosers")["summary"]
    both = [*summary["grid"].items(), *((f"off.{name}", of) for name, of in summary["off_grid"].items())]
    for name, of in both:
        found |= {
            f"{name}.geomean": f"{of['geomean_over_torch']:.3f}x",
            f"{name}.worst": f"{of['worst_over_torch']:.2f}x",
            f"{name}.slower": f"{of['slower_by_1_percent']}",
            f"{name}.fraction": f"{of['fraction_of_best']:.3f}",
            f"{name}.problems": f"{of['problems']:,}",
        }
    return found


def _of_latency() -> dict[str, str]:
    """What latencies.json says of the mined table."""
    of = result("latencies")["summary"]
    names = (
        "pairs", "measured", "never_failed", "blind", "held", "danger", "allowed_by_mined",
        "allowed_and_failed", "trusted_and_failed", "fault_one_below_trusted", "known_too_short_tried",
    )  # fmt: skip
    return {name: f"{of[name]:,}" for name in names} | {
        "tight": f"{100 * of['fault_one_below_trusted'] / of['trusted_and_failed']:.0f} %"
    }


#: figures by the first part of their names
GROUPS: dict[str, Callable[[], dict[str, str]]] = {
    "schedules": _of_schedules, "cluster": _of_cluster, "model": _of_model, "prerank": _of_prerank,
    "validator": _of_validator,
    "mutants": _of_mutants, "cheats": _of_cheats, "agreement": _of_agreement, "codes": _of_codes,
    "hgemm": _of_hgemm, "latency": _of_latency, "matmul": _of_matmul, "splits": _of_splits,
    "deploy": _of_deploy, "capture": _of_capture, "server": _of_server, "offgrid": _of_offgrid,
    "epilogue": _of_epilogue, "samples": _of_samples, "soak": _of_soak, "live": _of_live,
    "policy": _of_policy, "choosers": _of_choosers, "grpo": _of_grpo,
}  # fmt: skip


def figures() -> dict[str, str]:
    """Every figure by name, as pages print it; those are left out whose result file does not hold them."""
    found: dict[str, str] = {}
    for group, make in GROUPS.items():
        try:
            found |= {f"{group}.{name}": value for name, value in make().items()}
        except (KeyError, OSError) as error:
            print(f"no figures of {group}: {error!r}", file=sys.stderr)
    return found
