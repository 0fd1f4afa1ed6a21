"""The result file of a run over mutants: written whole, on the way and at the end."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import validator_digest, without_gpu, write

from sassafras.sass.tools import find_all

from .learning import digest
from .shares import Item

Row = dict[str, Any]


def summary(rows: list[Row], folders: int, seconds: float) -> Row:
    """Totals over kernels. A row's ``folder`` is the number of the folder that it came from."""
    judged = [r for r in rows if "left_out" not in r]
    why = Counter(d["why"] for r in judged for d in r["disagreements"])
    per_folder = {}
    for n in range(folders):
        mine = [r for r in judged if r["folder"] == n]
        per_folder[f"folder {n + 1}"] = {
            "subfolders": len({str(Path(r["cubin"]).parent) for r in mine}),
            "kernels": len(mine), "mutants": sum(r["mutants"] for r in mine),
        }  # fmt: skip
    kinds: Counter[str] = sum((Counter(r["kinds"]) for r in judged), Counter())
    planted: Counter[str] = sum((Counter(r["planted"]) for r in judged), Counter())
    total = {k: sum(r[k] for r in judged) for k in (
        "instructions", "mutants", "approved", "equal", "different", "idle", "same_bytes", "repeated"
    )}  # fmt: skip
    return {
        "kernels": len(judged), **{k: total[k] for k in ("instructions", "mutants", "approved", "equal")},
        "disagreements": total["different"], "disagreements_by_reason": dict(why),
        "idle_not_counted": total["idle"],
        "same_bytes_not_counted": total["same_bytes"] + total["repeated"],
        # a disagreement is settled on a GPU, by another script; until then it is not known to be wrong
        "approved_but_wrong": None if why else 0, "run_on_gpu": 0,
        "planted_copies": planted["copies"], "planted_copies_proved": planted["proved"],
        "edits": dict(sorted(kinds.items())), "sources": per_folder, "seconds": round(seconds, 1),
        "mutants_per_second": round(total["mutants"] / max(1.0, seconds), 1),
        "left_out": {f"{r['cubin']}: {r['kernel']}": r["left_out"] for r in rows if "left_out" in r},
    }  # fmt: skip


class Results:
    """Rows by kernel as they come, and their file.

    Args:
        folders: how many folders of cubins there are.
        command, seed, workers: of this run.
        out: the folder of the result file.
    """

    def __init__(self, folders: int, command: str, seed: int, workers: int, out: Path) -> None:
        self.rows: dict[Item, Row] = {}
        self._folders, self._command, self._seed, self._out = folders, command, seed, out
        Path(out).mkdir(parents=True, exist_ok=True)
        self._environment = {
            **without_gpu(), "workers": workers,
            "validator": validator_digest(), "second_model": digest(),
            "nvdisasm": [t.version for t in find_all("nvdisasm")],
        }  # fmt: skip

    @property
    def mutants(self) -> int:
        """Counted so far."""
        return sum(row.get("mutants", 0) for row in self.rows.values() if "left_out" not in row)

    def write(self, seconds: float) -> tuple[Path, Row]:
        """Replace the file by what is known now: (file, summary)."""
        rows = [self.rows[item] for item in sorted(self.rows, key=lambda i: (i.folder, i.shown, i.name))]
        made = summary(rows, self._folders, seconds)
        shown = [{k: v for k, v in row.items() if k not in ("kinds", "folder")} for row in rows]
        with tempfile.TemporaryDirectory(dir=self._out, prefix=".part-") as apart:
            part = write("mutants-run", shown, made, self._environment, seed=self._seed, out=apart,
                         command=self._command)  # fmt: skip
            path = part.replace(Path(self._out, part.name))
        return path, made
