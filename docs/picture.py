"""Draws docs/images/results.svg from the result files: HGEMM by size, forward passes, schedules that won.

python docs/picture.py            # write the picture
python docs/picture.py --check    # exit code 1 if the picture is stale
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "docs" / "images" / "results.svg"
WIDTH, HEIGHT, TOP, BOTTOM = 1240, 400, 78, 340
BANDS = ("<1e8", "1e8-1e9", "1e9-1e10", "1e10-1e11", "1e11-1e12", ">1e12")
STYLE = """
  .page{fill:#fff} .value{stroke:#fff} .ink{fill:#1f2328} .soft{fill:#59636e} .grid{stroke:#d1d9e0}
  .one{stroke:#59636e} .dot{fill:#0b6e99;fill-opacity:.18} .bar{fill:#0b6e99} .line{stroke:#0b6e99}
  @media (prefers-color-scheme:dark){
  .page{fill:#0d1117} .value{stroke:#0d1117} .ink{fill:#e6edf3} .soft{fill:#9198a1} .grid{stroke:#30363d}
  .one{stroke:#9198a1} .dot{fill:#58b9e0;fill-opacity:.22} .bar{fill:#58b9e0} .line{stroke:#58b9e0}}
  text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
  .title{font-size:17px;font-weight:600} .end{text-anchor:end} .mid{text-anchor:middle}
  .value{font-weight:600;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
"""


def text(x: float, y: float, words: str, style: str) -> str:
    """One line of text at (x, y) in pixels."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str, width: float = 1) -> str:
    """A straight line; ends in pixels."""
    at = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {at} class="{style}" stroke-width="{width}"/>'


def hgemm(left: float, right: float) -> list[str]:
    """The left part: one dot a shape, its FLOP against its speed-up, and each band's geometric mean."""
    rows = json.loads((RESULTS / "hgemm-offline.json").read_text(encoding="utf-8"))["rows"]
    flop = [2.0 * row["m"] * row["n"] * row["k"] for row in rows]
    ratio = [row["speedup"] for row in rows]
    low, high = math.log10(min(flop)) - 0.1, math.log10(max(flop)) + 0.1
    most = max(ratio) * 1.04

    def across(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * (right - left)

    def up(value: float) -> float:
        return BOTTOM - math.log(value / 0.85) / math.log(most / 0.85) * (BOTTOM - TOP)

    out = [
        text(left - 38, 32, "HGEMM over cuBLASLt-AutoTuning, H200", "title ink"),
        text(
            left - 38,
            54,
            f"{len(rows):,} shapes; lines: geometric mean of a band",
            "soft",
        ),
    ]
    for tick in (1.0, 1.25, 1.5, 2.0):
        out.append(line(left, up(tick), right, up(tick), "one" if tick == 1 else "grid"))
        out.append(text(left - 8, up(tick) + 4, f"{tick:g}x", "soft end"))
    out += [text(across(10.0**n), BOTTOM + 20, f"1e{n}", "soft mid") for n in range(6, 13) if low < n < high]
    out.append(text((left + right) / 2, BOTTOM + 42, "floating-point operations", "soft mid"))
    for size, value in zip(flop, ratio, strict=True):
        out.append(f'<circle cx="{across(size):.1f}" cy="{up(value):.1f}" r="2.4" class="dot"/>')
    for band in BANDS:
        sizes = [size for size, row in zip(flop, rows, strict=True) if row["band"] == band]
        mean = statistics.geometric_mean([row["speedup"] for row in rows if row["band"] == band])
        first, last = across(min(sizes)), across(max(sizes))
        out.append(line(first, up(mean), last, up(mean), "line", 3))
        out.append(text((first + last) / 2, up(mean) - 18, f"{mean:.2f}x", "value ink mid"))
    return out


def forwards(left: float, right: float) -> list[str]:
    """The middle: one dot a model and type, by tokens, and the geometric mean of each number of tokens."""
    data = json.loads((RESULTS / "model-forward.json").read_text(encoding="utf-8"))
    rows = [r for r in data["rows"] if r["contestant"] == "sassafras_compile" and not r["vocabulary"]]
    every = sorted({row["tokens"] for row in rows})
    step, most = (right - left) / len(every), max(row["over_compile"] for row in rows) * 1.04

    def up(value: float) -> float:
        return BOTTOM - math.log(value / 0.96) / math.log(most / 0.96) * (BOTTOM - TOP)

    gpu = data["environment"]["gpu"].split()[1]
    out = [
        text(left - 38, 32, f"Models over torch.compile, {gpu}", "title ink"),
        text(left - 38, 54, f"{len({r['model'] for r in rows})} models, FP16 and BF16; lines: means", "soft"),
    ]
    for tick in (1.0, 1.1, 1.2):
        out.append(line(left, up(tick), right, up(tick), "one" if tick == 1 else "grid"))
        out.append(text(left - 8, up(tick) + 4, f"{tick:g}x", "soft end"))
    for place, tokens in enumerate(every):
        ratios = [row["over_compile"] for row in rows if row["tokens"] == tokens]
        x, mean = left + step * (place + 0.5), statistics.geometric_mean(ratios)
        out += [f'<circle cx="{x:.1f}" cy="{up(r):.1f}" r="4" class="dot"/>' for r in ratios]
        out.append(line(x - 12, up(mean), x + 12, up(mean), "line", 3))
        out.append(text(x, up(max(ratios)) - 10, f"{mean:.2f}x", "value ink mid"))
        out.append(text(x, BOTTOM + 20, str(tokens), "soft mid"))
    out.append(text((left + right) / 2, BOTTOM + 42, "tokens", "soft mid"))
    return out


def schedules(left: float, right: float, most: int = 11) -> list[str]:
    """The right part: the largest measured schedule speed-ups, with 95 % intervals."""
    rows = json.loads((RESULTS / "schedule-suite.json").read_text(encoding="utf-8"))["rows"]
    regular = [row for row in rows if not row["odd"]]
    won = sorted((row for row in regular if row["improved"]), key=lambda row: -row["speedup"])
    zero, scale = left + 222, (right - left - 270) / (max(row["speedup"] for row in won) - 1)
    step = (BOTTOM - TOP) / most
    out = [
        text(left, 32, f"Schedules over ptxas, {len(regular)} variants, H200", "title ink"),
        text(left, 54, f"{len(won)} became faster; the {most} largest, with 95 % intervals", "soft"),
    ]
    for place, row in enumerate(won[:most]):
        y = TOP + step * (place + 0.5)
        end, low, high = (zero + (row[key] - 1) * scale for key in ("speedup", "speedup_low", "speedup_high"))
        label = f"{row['kernel'].replace('_', ' ')} {row['shape']}"
        out.append(text(zero - 8, y + 4, label, "ink end"))
        out.append(f'<rect x="{zero}" y="{y - 7:.1f}" width="{end - zero:.1f}" height="14" class="bar"/>')
        out.append(line(low, y, high, y, "one", 3))
        out.append(text(max(end, high) + 6, y + 4, f"{row['speedup']:.3f}x", "value ink"))
    out.append(line(zero, TOP, zero, BOTTOM, "one"))
    out.append(text(zero, BOTTOM + 20, "1.00x", "soft mid"))
    return out


def picture() -> str:
    """The whole picture as SVG text."""
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = "<title>Measured speed-ups of HGEMM kernels, decoding models and instruction schedules</title>"
    page = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="page"/>'
    head = [frame, title, f"<style>{STYLE}</style>", page]
    parts = [*head, *hgemm(62, 400), *forwards(482, 770), *schedules(808, 1220), "</svg>", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        raise SystemExit(TARGET.read_text(encoding="utf-8") != picture())
    TARGET.write_text(picture(), encoding="utf-8")
