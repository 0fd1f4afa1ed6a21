"""``sassafras optimize --captured FOLDER``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .console import print_json, print_table, stderr


def tune(
    captured: Path, *, kernels: int, runner_ups: int, out: Path, quiet: bool, json: bool, **options: Any
) -> None:
    """Tune what a capture holds, print a table and what the program can expect."""
    import json as format_

    from sassafras.api.optimize_captured import optimize_captured

    from .progress import Show

    with Show(quiet=quiet) as show:
        report = optimize_captured(
            captured,
            most=kernels,
            runner_ups=runner_ups,
            out=out,
            progress=show.progress,
            stage=show.stage,
            **options,
        )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "captured-report.json"
    path.write_text(format_.dumps(report.to_json(), indent=2, sort_keys=True) + "\n")
    if json:
        print_json(report.to_json())
        return
    word = "modelled" if report.modelled else "speed-up"
    rows = [
        [
            row.label,
            "runner-up" if row.runner_up else f"{100 * row.share:.1f} %",
            f"{row.launches:,}",
            "" if row.ratio is None else f"{row.ratio:.3f}x {row.interval or ''}".strip(),
            row.detail,
        ]
        for row in report.rows
    ]
    print_table("", ["kernel", "share", "launches", word, "notes"], rows)
    print(report.conclusion())
    stderr().print(f"wrote {path}", style="dim", markup=False)
