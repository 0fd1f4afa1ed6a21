"""What beyond-reordering.json says, as tables of the pages; until it is measured they say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from figure_results import ROOT, Row, result

#: in their order, with what a reader calls them; a step of the ladder has the spaces before it, too
STEPS = {
    "swaps": "(a) swaps", "control": "(b) and control codes", "renaming": "(c) and renaming",
    "blocks": "(d) and over branches",
}  # fmt: skip
SINGLE = {"knobs": "best of ptxas over the frontend's own", "identity": "ptxas's order, codes from scratch"}
NAME = "beyond-reordering"
NOT_YET = "Not measured yet.\n"

Table = Callable[[str, Iterable[Iterable[str]]], str]


def measured() -> bool:
    """Whether there is a result file."""
    return (ROOT / "benchmarks" / "results" / f"{NAME}.json").is_file()


def rows(stage: str, gemm: bool = False) -> list[Row]:
    """The rows of a stage that have a figure, of the suite or of HGEMM kernels."""
    return [
        r
        for r in result(NAME)["rows"]
        if r["stage"] == stage and "speedup" in r and r["kernel"].startswith("gemm:") is gemm
    ]


def ladder(table: Table) -> str:
    """Every step with its geometric mean, that of CuAsmRL's six, the best kernel, and the null's mean."""
    if not measured():
        return NOT_YET
    lines = [[words, *_step(rows(stage))] for stage, words in SINGLE.items()]
    for n, words in enumerate(STEPS.values(), 1):
        lines.append([words, *_step(_cumulative(list(STEPS)[:n]))])
    for stage, words in (("identity", SINGLE["identity"]), ("swaps", "swaps"), ("control", "control codes")):
        lines.append([f"HGEMM winners: {words}", *_step(rows(stage, gemm=True))])
    return table("step | kernels | faster | geometric mean | CuAsmRL's six | best | null", lines)


def kernels(table: Table) -> str:
    """Every kernel of the suite: what was measured at each step; bold where it lies above the null's."""
    if not measured():
        return NOT_YET
    by = {(r["kernel"], r["stage"]): r for r in result(NAME)["rows"]}
    lines = []
    for kernel in dict.fromkeys(k for k, _ in by if not k.startswith("gemm:")):
        some = next(r for (k, _), r in by.items() if k == kernel)
        cells = [_cell(by.get((kernel, stage))) for stage in (*SINGLE, *STEPS)]
        lines.append([kernel, str(some.get("shape", "")), *cells, _null(by, kernel)])
    return table("kernel | shape | knobs | identity | swaps | control | renaming | blocks | null", lines)


def winners(table: Table) -> str:
    """The HGEMM kernels likewise."""
    if not measured():
        return NOT_YET
    by = {(r["kernel"], r["stage"]): r for r in result(NAME)["rows"]}
    lines = []
    for kernel in dict.fromkeys(k for k, _ in by if k.startswith("gemm:")):
        shape, _, config = kernel.removeprefix("gemm:").partition("/")
        some = next((r for (k, _), r in by.items() if k == kernel and r.get("baseline_us")), {})
        us = f"{some['baseline_us']:.2f}" if some else ""
        cells = [_cell(by.get((kernel, stage))) for stage in ("identity", "swaps", "control")]
        lines.append([shape, f"`{config}`", us, *cells, _null(by, kernel)])
    return table("shape | configuration | us | identity | swaps | control | null", lines)


def limits(table: Table) -> str:
    """What a perfect schedule could gain by the timing model, and what the profiler says of each kernel."""
    bounds = {r["kernel"]: r for r in result("beyond-bounds")["rows"]}
    seen = result(NAME)["summary"].get("limits", {}) if measured() else {}
    best = {}
    for stage in STEPS:
        for r in [*rows(stage), *rows(stage, gemm=True)] if measured() else []:
            best[r["kernel"]] = max(best.get(r["kernel"], 1.0), float(r["speedup"]))
    lines = []
    for kernel in dict.fromkeys([*bounds, *seen]):
        bound, profiled = bounds.get(kernel), seen.get(kernel)
        shares = (
            "".join(f"{profiled[n]:.0f}, " for n in ("compute", "dram", "l2", "issue") if n in profiled)
            if (profiled)
            else ""
        )
        lines.append([
            kernel if not kernel.startswith("gemm:") else f"`{kernel}`",
            f"{bound['bound_speedup']:.2f}, {bound['limited_by']}"
            if bound and "bound_speedup" in bound
            else "beyond the model",
            f"{best[kernel]:.3f}x" if kernel in best else "not measured yet",
            profiled["limit"] if profiled else "not measured yet", shares.removesuffix(", "),
        ])  # fmt: skip
    head = "kernel | bound (modelled), by | best measured | limit (ncu) | % of peak: compute, DRAM, L2, issue"
    return table(head, lines)


def _cumulative(stages: Sequence[str]) -> list[Row]:
    """Of each kernel that was searched the best row of these stages."""
    best: dict[str, Row] = {}
    for stage in stages:
        for row in rows(stage):
            known = best.get(row["kernel"])
            if known is None or row["speedup"] > known["speedup"]:
                best[row["kernel"]] = row
    return list(best.values())


def _step(of: list[Row]) -> list[str]:
    if not of:
        return ["0", "", "", "", "", ""]
    from sassafras import suite

    six = [r for r in of if r["kernel"] in suite.paper_six()]
    nulls = [float(r["null"]) for r in of if r.get("null")]
    top = max(of, key=lambda r: float(r["speedup"]))
    name = top["kernel"] if not top["kernel"].startswith("gemm:") else top["shape"]
    faster = sum(bool(r["improved"]) for r in of)
    return [
        f"{len(of)}", f"{faster}", f"**{_mean(of)}**", _mean(six) if six else "",
        f"{top['speedup']:.3f}x, {name}", f"{_geomean(nulls):.4f}" if nulls else "",
    ]  # fmt: skip


def _mean(of: list[Row]) -> str:
    """Geometric mean, with the interval that follows from those of the kernels (independent ones)."""
    mean = _geomean([float(r["speedup"]) for r in of])
    halves = [(math.log(r["speedup_high"]) - math.log(r["speedup_low"])) / 2 for r in of]
    half = math.sqrt(sum(h * h for h in halves)) / len(of)
    return f"{mean:.4f}x [{mean * math.exp(-half):.4f}, {mean * math.exp(half):.4f}]"


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _cell(row: Row | None) -> str:
    """``**1.050x** [1.040, 1.060]``; in plain type what does not lie above the null's."""
    if row is None:
        return ""
    if "error" in row:
        return "failed"
    if "measured" not in row:
        return "1.00x" if "speedup" in row else "none"
    text = f"{row['measured']:.3f}x"
    bold = f"**{text}**" if row["improved"] else text
    return f"{bold} [{row['measured_low']:.3f}, {row['measured_high']:.3f}]"


def _null(by: dict[tuple[str, str], Row], kernel: str) -> str:
    """The widest null interval of the kernel's rows."""
    nulls = [r for (k, _), r in by.items() if k == kernel and r.get("null")]
    if not nulls:
        return ""
    low, high = min(r["null_low"] for r in nulls), max(r["null_high"] for r in nulls)
    return f"[{low:.3f}, {high:.3f}]"


def values() -> dict[str, str]:
    """Single figures, for the text of pages; none before anything was measured."""
    if not measured():
        return {}
    summary = result(NAME)["summary"]
    identity, of_gemm = rows("identity"), rows("identity", gemm=True)
    both = [float(r["speedup"]) for r in identity + of_gemm]
    steps = {stage: _cumulative(list(STEPS)[: n + 1]) for n, stage in enumerate(STEPS)}
    total = {r["kernel"]: float(r["speedup"]) for r in rows("knobs")}
    for r in steps["blocks"]:
        total[r["kernel"]] = total.get(r["kernel"], 1.0) * float(r["speedup"])
    swaps, tuned = rows("swaps"), rows("swaps", gemm=True)
    replaced = summary.get("replaced", {"evaluations": 0, "wrong_or_crashed_after_validation": 0})
    return {
        "evaluations": f"{summary['evaluations'] + replaced['evaluations']:,}",
        "wrong": str(sum(s["wrong_or_crashed_after_validation"] for s in (summary, replaced))),
        "kernels": f"{len(swaps)}", "winners": f"{len(tuned)}",
        "ladder": f"{_geomean([float(r['speedup']) for r in steps['blocks']]):.4f}x",
        "ladder-short": f"{_geomean([float(r['speedup']) for r in steps['blocks']]):.3f}x",
        "best": f"{max(float(r['speedup']) for r in steps['blocks']):.3f}x",
        "over-own": f"{_geomean(list(total.values())):.3f}x",
        "identity.kernels": f"{len(both)}", "identity.worst": f"{min(both):.3f}",
        "identity.within": f"{sum(abs(v - 1) <= 0.01 for v in both)}",
        "identity.geomean": f"{_geomean([float(r['speedup']) for r in identity]):.4f}",
        "identity.hgemm": f"{_geomean([float(r['speedup']) for r in of_gemm]):.4f}",
    }  # fmt: skip
