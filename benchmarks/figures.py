"""The figures that README and docs quote, each made from a file in benchmarks/results/ (or a shipped table).

    python benchmarks/figures.py            # every name with its value
    python benchmarks/figures.py --check    # where a page says otherwise; exit code 1 if any does
    python benchmarks/figures.py --write    # bring the pages up to date, after a result file has changed

A paragraph names its figures in a comment at its end, in the order in which they stand in it:
``<!--figures: 14 = schedules.faster; 1.022x = schedules.geomean-->``; a table stands between
``<!--table schedules-->`` and ``<!--end-->``. Comments do not show where Markdown is rendered.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLES_OF_LATENCY = ("sm_90", "sm_80", "sm_86", "sm_89")
#: below this rank correlation the timing model is called useless for a kernel
USELESS = 0.3
#: rows of the README's table
SHOWN = 7
SHOWN_LATENCIES = 24

Row = dict[str, Any]
_MARKS = re.compile(r"(?P<text>(?:(?!\n\n|-->).)*)(?P<open><!--figures: )(?P<list>.*?)-->", re.DOTALL)
_TABLE = re.compile(r"<!--table (?P<name>[\w-]+)-->\n(?P<text>.*?)<!--end-->", re.DOTALL)


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


def _schedule_rows(*, odd: bool = False) -> list[Row]:
    """Variants that a call of ordinary size selects, or those that only odd sizes select."""
    return [row for row in result("schedule-suite")["rows"] if row["odd"] is odd]


def _improved(*, odd: bool = False) -> list[Row]:
    return [row for row in _schedule_rows(odd=odd) if row["improved"]]


def _unchanged() -> list[Row]:
    return [row for row in _schedule_rows() if not row["improved"]]


# -- single figures -----------------------------------------------------------------------------------------


def _of_schedules() -> dict[str, str]:
    data = result("schedule-suite")
    summary = data["summary"]
    found = {
        "kernels": f"{len(_schedule_rows())}",
        "faster": f"{len(_improved())}",
        "odd": f"{len(_schedule_rows(odd=True))}",
        "odd.faster": f"{len(_improved(odd=True))}",
        "odd.geomean": f"{summary['geomean_speedup_odd']:.3f}x",
        "unchanged": f"{len(_unchanged())}",
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
    "hgemm": _of_hgemm, "latency": _of_latency,
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


# -- tables -------------------------------------------------------------------------------------------------


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    titles = head.split(" | ")
    lines = [f"| {head} |", "|" + "---|" * len(titles)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def best_schedules() -> str:
    """The README's: the largest speed-ups, and what stayed as it was."""
    best = sorted(_improved(), key=lambda row: -row["speedup"])[:SHOWN]
    rows = [
        [
            title(row),
            f"{row['baseline_us']:.2f} us",
            speedup(row, "**"),
            null(row),
        ]
        for row in best
    ]
    rest = list(dict.fromkeys(title(row) for row in _unchanged()))
    if rest:
        rows.append([", ".join(rest), "", "1.00x: nothing beat it", "1.000"])
    return _table("kernel | baseline | speed-up | null experiment", rows)


def schedules(*, odd: bool = False) -> str:
    """The rows of schedule-suite.json."""
    rows = []
    for row in _schedule_rows(odd=odd):
        won = speedup(row, "**") if row["improved"] else "1.00x, nothing beat it"
        stopped = row["search_seconds"] < 0.9 * row["seconds"]
        rows.append([
            row["kernel"], row["shape"], f"{row['baseline_us']:.2f}", row["ptxas"], won, null(row),
            f"{row['evaluations_per_second']:.0f}",
            f"{row['evaluations']:,}" + (f" in {row['search_seconds']:.0f} s" if stopped else ""),
            f"{row['failed_after_validation']}",
        ])  # fmt: skip
    head = "kernel | shape | baseline, us | ptxas | speed-up | null | evaluations/s | evaluations | wrong"
    return _table(head, rows)


def timing_model() -> str:
    """Every row of timing-model.json."""
    names = ("kendall_tau", "ceiling", "tau_all_pairs", "ceiling_all_pairs")
    rows = [
        [
            row["kernel"],
            row["shape"],
            *(f"{row[name]:.2f}" for name in names),
            f"{100 * row['ratio_mape']:.1f} %",
        ]
        for row in result("timing-model")["rows"]
    ]  # fmt: skip
    return _table("kernel | shape | tau | ceiling | tau, all | ceiling, all | error of ratios", rows)


def hgemm() -> str:
    """The bands of hgemm-offline.json, and all shapes."""
    summary = result("hgemm-offline")["summary"]
    rows = []
    for name, of in (*summary["bands"].items(), ("all", summary)):
        ratios = (
            "geomean_vs_lt_autotune", "worst_vs_lt_autotune", "cold_geomean_vs_lt_autotune",
            "portfolio_geomean_vs_lt_autotune", "portfolio_geomean_vs_torch",
        )  # fmt: skip
        ours, *others = (f"{of[ratio]:.3f}" for ratio in ratios)
        won = f"{100 * of['win_rate_vs_lt_autotune']:.0f} %"
        rows.append([name, f"{of['shapes']:,}", f"**{ours}**", won, *others])
    head = "FLOP | shapes | ours | won | worst | ours, cold | `sassafras.matmul` | the same over torch.matmul"
    return _table(head, rows)


def latencies() -> str:
    """What the shipped latency tables were mined from."""
    serves = {"sm_90": "sm_90, sm_90a"}
    rows = []
    for arch in TABLES_OF_LATENCY:
        of = latency(arch)
        rows.append([
            arch, serves.get(arch, arch), f"{of['cubins']}", f"{of['functions']}", f"{of['instructions']:,}",
            f"{of['rows']:,}", f"{100 * of['answered']:.0f} %",
        ])  # fmt: skip
    return _table("table | serves | cubins | kernels | instructions | rows | raw pairs answered", rows)


def measured_latencies() -> str:
    """The pairs of the corpus that are met most often, one a class, mined and measured."""
    from sassafras.sass.latency import LatencyTable
    from sassafras.sass.latency.classes import pair_class

    mined, both = (LatencyTable.load("sm_90", source=s) for s in ("mined", "measured"))
    most = sorted((k for k in mined.rows if k in both.measured), key=lambda k: -mined.rows[k].samples)
    one_each = {pair_class(k): k for k in reversed(most)}.values()
    rows = []
    for key in sorted(one_each, key=lambda k: -mined.rows[k].samples)[:SHOWN_LATENCIES]:
        kind, first, slot, second, other = key
        row, found = mined.rows[key], both.measured[key]
        rows.append([
            kind, f"{first} {slot}", f"{second} {other}", f"{row.samples:,}", f"{row.cycles}",
            f"{found.cycles}", f"{found.fault}", f"{found.trials:,}", f"{found.bound:.1e}",
            f"{both.needed(*key, 64)}",
        ])  # fmt: skip
    head = "kind | first | second | in corpus | mined | measured | wrong at | trials | bound | in use"
    return _table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "best-schedules": best_schedules, "schedules": schedules,
    "odd-schedules": functools.partial(schedules, odd=True), "timing-model": timing_model,
    "latencies": latencies, "measured-latencies": measured_latencies, "hgemm": hgemm,
}  # fmt: skip


# -- pages --------------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """README and the pages of docs/ (experiments are dated and stay as they were written)."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def updated(text: str) -> tuple[str, list[str]]:
    """A page with the figures of today, and what it said otherwise (or marked with an unknown name)."""
    known, wrong = figures(), list[str]()

    def marks(match: re.Match[str]) -> str:
        paragraph, at, listed = match["text"], 0, []
        for entry in match["list"].split(";"):
            said, _, name = (part.strip() for part in entry.partition("="))
            value = known.get(name)
            found = re.compile(rf"(?<![\d.,]){re.escape(said)}(?![\d%])").search(paragraph, at)
            if value is None:
                wrong.append(f"there is no figure {name!r}")
            elif found is None:
                wrong.append(
                    f"{said!r} ({name}) does not stand in its paragraph, after the figures before it"
                )
            elif said != value:
                wrong.append(f"{name} is {value}, not {said}")
            if value is not None and found is not None:
                paragraph = paragraph[: found.start()] + value + paragraph[found.end() :]
                at, said = found.start() + len(value), value
            listed.append(f"{said} = {name}")
        return f"{paragraph}{match['open']}{'; '.join(listed)}-->"

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            wrong.append(f"there is no table {name!r}")
            return match[0]
        made = TABLES[name]()
        if made != match["text"]:
            wrong.append(f"the table {name} is another")
        return f"<!--table {name}-->\n{made}<!--end-->"

    return _TABLE.sub(table, _MARKS.sub(marks, text)), wrong


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="say where pages and results differ")
    parser.add_argument("--write", action="store_true", help="write the results' figures into the pages")
    options = parser.parse_args(arguments)
    if not (options.check or options.write):
        for name, value in figures().items():
            print(f"{name:40} {value}")
        return 0
    count = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new, wrong = updated(text)
        for line in wrong:
            print(f"{page.relative_to(ROOT)}: {line}")
        count += len(wrong)
        if options.write and new != text:
            page.write_text(new, encoding="utf-8")
    return 1 if count and not options.write else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
