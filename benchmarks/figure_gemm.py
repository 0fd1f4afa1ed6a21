"""Figures of HGEMM and of `sassafras.matmul` by name; see `figure_values.py`."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable

from figure_results import Row, result


def _mean(rows: Iterable[Row], column: str = "speedup") -> float:
    return math.exp(statistics.fmean(math.log(row[column]) for row in rows))


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
    few = [
        row for row in data["rows"]
        if row["band"] == "1e9-1e10" and row["k"] > 2048 and -(-row["m"] // 128) * -(-row["n"] // 128) < 32
    ]  # fmt: skip
    found |= {"few": f"{len(few)}", "few.geomean": f"{_mean(few):.2f}"}
    found["few.worst"] = f"{min(row['speedup'] for row in few):.2f}"
    for band in whole["bands"]:  # of the larger of FLOP / 790 TFLOP/s and bytes / 4.3 TB/s
        reached = []
        for row in data["rows"]:
            m, n, k = row["m"], row["n"], row["k"]
            if row["band"] == band:
                least = max(2 * m * n * k / 790e6, 2 * (m * n + k * (m + n)) / 4.3e6)
                reached.append({"share": least / row["ours"]})
        found[f"{band}.roofline"] = f"{100 * _mean(reached, 'share'):.0f}"
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


def _of_five() -> dict[str, str]:
    """A sample of the shapes in five fresh processes, beside one process on the same shapes."""
    of = result("hgemm-offline-five")
    names = {row["shape"] for row in of["rows"]}
    one = [row for row in result("hgemm-offline")["rows"] if row["shape"] in names]
    won = sum(row["speedup_low"] > 1.005 for row in one)
    return {
        "shapes": str(of["summary"]["measured"]), "geomean": f"{of['summary']['geomean_vs_lt_autotune']:.3f}",
        "won": f"{100 * of['summary']['win_rate_vs_lt_autotune']:.0f} %",
        "one.geomean": f"{_mean(one):.3f}",
        "one.won": f"{100 * won / len(one):.0f} %",
    }  # fmt: skip


def _of_trigger() -> dict[str, str]:
    """A successor that may start at once, over one that may start behind the wait."""
    of = result("hgemm-trigger")["summary"]
    least, most = of["at once, extremes"]
    return {
        "shapes": str(of["all"]["shapes"]), "at_once": f"{of['all']['at once']:.3f}",
        "faster": str(of["at once is faster"]), "slower": str(of["at once is slower"]),
        "least": f"{least:.2f}", "most": f"{most:.2f}",
        "tiny": f"{of['bands']['<1e8']['at once']:.3f}", "small": f"{of['bands']['1e8-1e9']['at once']:.3f}",
    }  # fmt: skip


def _of_second() -> dict[str, str]:
    """k split by two launches."""
    of = result("hgemm-second")["summary"]
    return {
        "shapes": str(of["shapes"]), "ours": f"{of['pair_over_ours']:.3f}",
        "lt": f"{of['pair_over_lt']:.3f}", "beats": str(of["beats_ours"]),
    }  # fmt: skip


def _of_server(name: str = "hgemm-server") -> dict[str, str]:
    """Isolated calls of HGEMM."""
    of = result(name)["summary"]
    found = {
        "shapes": f"{of['shapes']}", "measured": f"{of['measured']}",
        "ours": f"{of['geomean_vs_lt_autotune']:.3f}",
        "portfolio": f"{of['portfolio_geomean_vs_lt_autotune']:.3f}", "null": f"{of['null_geomean']:.3f}",
        "torch": f"{of['portfolio_geomean_vs_torch']:.3f}", "null_lowest": f"{of['null_lowest']:.2f}",
        "null_highest": f"{of['null_highest']:.2f}",
    }  # fmt: skip
    return found | {
        f"ours.{b}": f"{v['geomean_vs_lt_autotune']:.3f}" for b, v in of["bands"].items() if v["measured"]
    }


def _of_offgrid(name: str = "hgemm-offgrid") -> dict[str, str]:
    """Shapes that are never tuned."""
    of = result(name)["summary"]
    rows = result(name)["rows"]
    odd = [row for row in rows if row["n"] % 8 or row["k"] % 8]
    return {
        "odd": f"{_mean(odd):.2f}", "layers": f"{_mean(row for row in rows if row not in odd):.2f}",
        "shapes": f"{of['shapes']}", "tuned": f"{of['geomean_vs_lt_autotune']:.3f}",
        "portfolio": f"{of['portfolio_geomean_vs_lt_autotune']:.3f}",
        "worst": f"{of['portfolio_worst_vs_lt_autotune']:.3f}",
        "torch": f"{of['portfolio_geomean_vs_torch']:.3f}",
        "worst_torch": f"{min(row['torch'] / row['portfolio'] for row in rows):.3f}",
    } | _by_layout(rows)  # fmt: skip


def _of_rounds() -> dict[str, str]:
    """The portfolio's lower ends, measured with more rounds: shapes up to 1e12 FLOP, and above."""
    found = {}
    for name, file in (("few", "hgemm-rounds"), ("large", "hgemm-rounds-large")):
        rows = [row for row in result(file)["rows"] if "portfolio_speedup_low" in row]
        found |= {
            f"{name}.shapes": f"{len(rows)}",
            f"{name}.low": f"{min(row['portfolio_speedup_low'] for row in rows):.3f}",
            f"{name}.below": f"{sum(row['portfolio_speedup_low'] < 0.99 for row in rows)}",
            f"{name}.null_below": f"{sum(row['null_low'] < 0.99 for row in rows)}",
            f"{name}.median": f"{min(row['portfolio_speedup'] for row in rows):.3f}",
            f"{name}.null_low": f"{min(row['null_low'] for row in rows):.3f}",
        }  # fmt: skip
    return found


def _by_layout(rows: list[Row]) -> dict[str, str]:
    """The portfolio over torch, each layout by itself: what a caller sees, who has one of them."""
    over = [row[f"torch_{at}"] / row[f"portfolio_{at}"] for row in rows for at in ("nn", "tn")
            if row.get(f"portfolio_{at}") and row.get(f"torch_{at}")]  # fmt: skip
    if not over:
        return {}
    return {
        "layouts": f"{len(over)}", "layouts.torch": f"{statistics.geometric_mean(over):.3f}",
        "layouts.worst": f"{min(over):.3f}", "layouts.below": f"{sum(ratio < 0.97 for ratio in over)}",
    }  # fmt: skip


def _of_epilogue() -> dict[str, str]:
    """Products with an epilogue, and batches."""
    of = result("matmul-epilogue")["summary"]
    names = ("geomean_vs_torch", "worst_vs_torch", "geomean_vs_lt_fused", "sassafras_geomean_vs_torch")
    return {name: f"{of[name]:.2f}" for name in names} | {
        "rows": f"{of['rows']}", "wins": f"{of['wins_vs_torch']}",
    }  # fmt: skip


def _of_backward() -> dict[str, str]:
    """A training step's products, and what the sweep of nt and tt found (its last rung)."""
    from sassafras.gemm.backward import PART
    from sassafras.gemm.dataset import shipped

    of = result("matmul-backward")["summary"]
    found = {"rows": f"{of['rows']}", "three": f"{of['three_products_geomean']:.3f}"}
    for product in ("forward", "dA", "dW", "step"):
        part = of[product]
        found |= {
            product: f"{part['geomean_vs_torch']:.3f}", f"{product}.worst": f"{part['worst_vs_torch']:.2f}",
            f"{product}.wins": f"{part['wins']}", f"{product}.ours": f"{part['ours']}",
        }  # fmt: skip
    data = shipped(part=PART)
    found |= {"shapes": f"{len(data)}", "pairs": f"{data.pairs:,}"}
    for layout in ("nt", "tt"):
        over: dict[str, list[float]] = {"lt_autotune": [], "torch": []}
        for entry in data:
            if ranked := entry.ranked(layout):
                for name, logs in over.items():
                    logs.append(math.log((entry.baseline_us(name, layout) or math.nan) / ranked[0][1]))
        for name, logs in over.items():
            found[f"{layout}.over_{name}"] = f"{math.exp(statistics.fmean(logs)):.3f}"
    return found


def _of_choosers() -> dict[str, str]:
    """What choosers for shapes never tuned are worth on shapes held out."""
    found = {}
    summary = result("choosers")["summary"]
    both = [*summary["grid"].items()]
    for prefix, part in (("off", "off_grid"), ("fifth", "unseen-fifth"), ("rare", "unseen-rare")):
        both += [(f"{prefix}.{name}", of) for name, of in summary[part].items()]
    for name, of in both:
        found |= {
            f"{name}.geomean": f"{of['geomean_over_torch']:.3f}x",
            f"{name}.worst": f"{of['worst_over_torch']:.2f}x",
            f"{name}.slower": f"{of['slower_by_1_percent']}",
            f"{name}.slower3": f"{of['slower_by_3_percent']}",
            f"{name}.unknown": f"{of['unknown']}",
            f"{name}.fraction": f"{of['fraction_of_best']:.3f}",
            f"{name}.problems": f"{of['problems']:,}",
        }
    return found


GROUPS: dict[str, Callable[[], dict[str, str]]] = {
    "hgemm": _of_hgemm, "matmul": _of_matmul, "splits": _of_splits, "server": _of_server,
    "second": _of_second, "trigger": _of_trigger, "five": _of_five,
    "server-100": functools.partial(_of_server, "hgemm-server-100"), "offgrid": _of_offgrid,
    "anew": functools.partial(_of_offgrid, "hgemm-offgrid-anew"),
    "third": functools.partial(_of_offgrid, "hgemm-offgrid-third"),
    "third-again": functools.partial(_of_offgrid, "hgemm-offgrid-third-again"),
    "fourth": functools.partial(_of_offgrid, "hgemm-offgrid-fourth"),
    "fourth-again": functools.partial(_of_offgrid, "hgemm-offgrid-fourth-again"),
    "fifth": functools.partial(_of_offgrid, "hgemm-offgrid-fifth"),
    "rare": functools.partial(_of_offgrid, "hgemm-offgrid-rare"), "rounds": _of_rounds,
    "server-100-small": functools.partial(_of_server, "hgemm-server-100-small"),
    "server-large": functools.partial(_of_server, "hgemm-server-large"),
    "epilogue": _of_epilogue, "backward": _of_backward, "choosers": _of_choosers,
}  # fmt: skip
