"""Merges the recordings of several processes into one capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sassafras.core import WorkloadError
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole
from sassafras.frontend.captured import FORMAT
from sassafras.frontend.captured.files import NAME, Captured, contents, parse, read

from .roles import roles


def merge(folder: str | Path) -> Captured:
    """Write ``captured.json`` from the parts in `folder`; the parts stay.

    Raises:
        WorkloadError: nothing was recorded, or the file cannot be written.
    """
    folder = Path(folder)
    parts: list[dict[str, Any]] = []
    damaged: dict[str, int] = {}
    for path in sorted(folder.glob("part-*.json")):
        try:
            found = json.loads(contents(path))
            if found["format"] == FORMAT:
                parse(folder, _index(folder, [found]))
                parts.append(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            damaged[f"{path.name} is damaged and was left out"] = 1
    if not parts:
        raise WorkloadError(
            "no Triton kernel was launched",
            where=str(folder),
            hint=next(
                iter(damaged),
                "is the program's Python this environment's, and does it launch @triton.jit kernels?",
            ),
        )
    index = _index(folder, parts)
    index["problems"].update(damaged)
    path = folder / NAME
    with os_errors("cannot write the capture", path, WorkloadError):
        # keys stay in order: a signature's is that of the parameters
        write_whole(path, json.dumps(index, indent=1) + "\n")
    return read(path)


def _index(folder: Path, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written of these parts, which stay as they are."""
    variants: dict[str, dict[str, Any]] = {}
    problems: dict[str, int] = {}
    for part in parts:
        for text, count in part["problems"].items():
            problems[text] = problems.get(text, 0) + count
        for row in part["variants"]:
            _add(variants, row)
    for row in variants.values():
        row["shapes"] = list(row["shapes"].values())
        row["roles"], row["problem"] = _judge(folder, row)
    longest = max(parts, key=lambda part: part["last"] - part["first"])
    return {
        "format": FORMAT,
        "triton": longest["triton"],
        "program": longest["program"],
        "processes": len(parts),
        "gpu": next((part["gpu"] for part in parts if part["gpu"]), ""),
        "wall_s": longest["last"] - longest["first"],
        "problems": problems,
        "variants": [variants[digest] for digest in sorted(variants)],
    }


def _add(variants: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    mine = variants.setdefault(row["digest"], {**row, "shapes": {}, "uncounted": 0})
    mine["uncounted"] += row["uncounted"]
    mine["cooperative"] = bool(mine.get("cooperative") or row.get("cooperative"))
    if row["config"]:
        mine["config"] = row["config"]
    if row["bench_us"] is not None:
        mine["bench_us"] = min(row["bench_us"], mine["bench_us"] or row["bench_us"])
    for shape in row["shapes"]:
        kept = mine["shapes"].get(shape["id"])
        if kept is None:
            mine["shapes"][shape["id"]] = dict(shape)
        else:
            for key in ("count", "in_graph", "timed", "gpu_us"):
                kept[key] += shape[key]


def _judge(folder: Path, row: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Roles of the pointers, and why the kernel cannot be made a workload."""
    try:
        text = (folder / f"{row['digest']}.ttir").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    found = roles(text)
    problem = ""
    if "tt.print" in text:
        problem = "the kernel prints (tl.device_print): remove that for the search"
    if row.get("cooperative"):
        problem = "it is launched cooperatively, or with programmatic dependent launch"
    for shape in row["shapes"]:
        for name, value in shape["args"].items():
            if isinstance(value, dict) and "unsupported" in value:
                problem = f"argument {name!r} is a {value['unsupported']}"
                if value["unsupported"] == "TensorDescriptor":
                    problem = (
                        f"argument {name!r} is a tensor descriptor made on the host: pass the tensor, and "
                        "make it in the kernel with tl.make_tensor_descriptor"
                    )
            elif isinstance(value, dict) and value.get("strides") and min(value["strides"], default=0) < 0:
                problem = f"argument {name!r} has negative strides"
    return dict(found or {}), problem
