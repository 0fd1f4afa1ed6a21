"""Figures by name, each made from a file of benchmarks/results/ or a shipped table. Pages quote them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache

import figure_beyond
import figure_gemm
import figure_strategies
from figure_results import Row, result

#: below this rank correlation the timing model is called useless for a kernel
USELESS = 0.3


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
        # (the goal was 14 %: the best published simulator's, on an A6000)
        "fit.missed": f"{100 * (fit['held_out_mape'] - 0.14):.0f}",
        "fit.all": f"{100 * fit['mape_fitted_on_all']:.0f} %",
        "fit.published": f"{100 * fit['mape_published']:.0f} %",
    }


def _of_redraws() -> dict[str, str]:
    data = result("redraws")
    of, rows = data["summary"], data["rows"]
    found = {
        "kernels": f"{of['kernels']}", "inside": f"{of['inside']}", "confirmed": f"{of['confirmed']}",
        "coverage": f"{100 * of['coverage']:.0f} %", "widest": f"{100 * of['widest_half_width']:.2f} %",
    }  # fmt: skip
    for row in rows:
        name = row["kernel"]
        found[name] = _with(f"{row['modelled']:.3f}x", row["modelled_low"], row["modelled_high"])
        if row.get("measured_speedup_low") is not None:
            ends = row["measured_speedup_low"], row["measured_speedup_high"]
            found[f"{name}.measured"] = _with(f"{row['measured_speedup']:.3f}x", *ends)
    return found


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


def _of_scoreboards() -> dict[str, str]:
    summary = result("scoreboards")["summary"]
    return {key: f"{summary[key]:,}" for key in ("relied_asked", "relied_wrong", "wrong")}


def _of_queues() -> dict[str, str]:
    summary = result("queues")["summary"]
    found = {"kernels": f"{summary['kernels']:,}"}
    for name, kind, key in (
        ("stg_lds", "queued", "reads of STG: LDS"), ("stg_shfl", "queued", "reads of STG: SHFL"),
        ("shfl_lds", "queued", "reads of SHFL: LDS"), ("lds_shfl", "queued", "reads of LDS: SHFL"),
        ("waw_lds", "queued", "results of LDS: LDS"), ("waw_shfl", "queued", "results of LDS: SHFL"),
        ("ldg_ldg", "vouched_by_one_kind", "reads of LDG: LDG"),
        ("shfl_stg", "vouched_by_one_kind", "reads of SHFL: STG"),
        ("stg_sts", "vouched_by_one_kind", "reads of STG: STS"),
    ):  # fmt: skip
        found[name] = f"{summary[kind][key]['count']:,}"
        found[f"{name}_kernels"] = f"{summary[kind][key]['kernels']:,}"
    return found


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


def _of_candidates() -> dict[str, str]:
    """Approved candidates of divergent kernels, run cold on a GPU."""
    summary = result("candidates-gpu")["summary"]
    found = {"wrong": f"{summary['approved_but_wrong']}", "fresh": f"{summary['fresh_processes']['run']}"}
    for space in ("blocks", "control", "renaming"):
        found[f"{space}.run"] = f"{summary[space]['candidates']:,}"
        found[f"{space}.kernels"] = f"{summary[space]['kernels']}"
        found[f"{space}.different"] = f"{summary[space]['second_different']}"
    return found


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
    """Configurations outside the dataset, proposed by the policy."""
    of = result("llm-live")["summary"]
    return {
        "shapes": f"{of['measured']}", "won": f"{of['policy_beats_control_by_2_percent']}",
        "lost": f"{of['control_beats_policy_by_2_percent']}",
        "median": f"{of['median_speedup_over_control']:.4f}",
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
    "redraws": _of_redraws,
    "validator": _of_validator, "queues": _of_queues, "scoreboards": _of_scoreboards,
    "mutants": _of_mutants, "cheats": _of_cheats, "candidates": _of_candidates,
    "agreement": _of_agreement, "codes": _of_codes,
    "latency": _of_latency,
    "deploy": _of_deploy, "capture": _of_capture,
    "samples": _of_samples, "soak": _of_soak, "live": _of_live,
    "policy": _of_policy, "beyond": figure_beyond.values,
    "strategies": figure_strategies.values,
    **figure_gemm.GROUPS,
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
