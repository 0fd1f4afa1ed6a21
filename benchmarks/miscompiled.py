"""Published miscompilations of ptxas from `reproducers/`, by every release found here: rows of audit.json.

    SASSAFRAS_PTXAS=a/ptxas:b/ptxas python benchmarks/miscompiled.py                 # the audit's rows
    SASSAFRAS_PTXAS=a/ptxas:b/ptxas python benchmarks/miscompiled.py --differential  # one GPU
    python benchmarks/miscompiled.py --cubins FOLDER    # assembled here, for --differential elsewhere

The audit reads each reproducer as every release assembles it (`benchmarks/audit.py` writes these rows, too).
Where releases compute different things, there is no hazard to find: a reproducer with a workload (``.toml``)
is run on a GPU, and its outputs are compared bit by bit with the newest release's. New rows take the place of
earlier ones of their kind. ``sassafras ptxas-options`` compares releases for any workload in this way.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, command_line, gpu_count, write

Row = dict[str, Any]
REPRODUCERS = Path(__file__).parent / "reproducers"
#: how a row was found
AUDIT, DIFFERENTIAL = "audit", "differential run"
#: reproducer -> (how it is found, the first release in which it is right); 99: the PTX itself is wrong
RIGHT = {
    "triton-9433": (AUDIT, (99,)),
    "triton-11781": (AUDIT, (13, 3)),
    "triton-11660": (AUDIT, (13, 4)),
    "triton-11581": (DIFFERENTIAL, (13, 2)),
}


def releases() -> dict[str, Path]:
    """ptxas by release, oldest first."""
    from sassafras.sass.tools import find_all

    found = {tool.version: tool.path for tool in reversed(find_all("ptxas"))}
    return {name: found[name] for name in sorted(found, key=_number)}


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def assembled(name: str, ptxas: Path) -> bytes:
    """The cubin of a reproducer for sm_90a."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.cubin")
        call = [ptxas, "-arch=sm_90a", REPRODUCERS / f"{name}.ptx", "-o", out]
        subprocess.run(call, check=True, timeout=60)
        return out.read_bytes()


def _row(name: str, by: str, release: str, finding: str | None) -> Row:
    """What one release makes of a reproducer; `expected` is what the publication says."""
    how, right = RIGHT[name]
    expected = how == by and _number(release) < right
    ok = (finding is not None) == expected
    row: Row = {"reproducer": name, "by": by, "release": release, "finding": finding}
    return row | {"expected": expected, "ok": ok}


def audits() -> list[Row]:
    """What the audit says of each reproducer, by release."""
    from sassafras.validate.audit import audit

    rows = []
    for release, ptxas in releases().items():
        for name in RIGHT:
            found = audit(assembled(name, ptxas))
            rows.append(_row(name, AUDIT, release, str(found.hazards[0]) if found.hazards else None))
    return rows


def cubins(folder: Path | None) -> dict[str, dict[str, bytes]]:
    """Cubins of each reproducer that is run, by release, oldest first; from `folder`, or assembled here."""
    names = [name for name, (how, _) in RIGHT.items() if how == DIFFERENTIAL]
    if folder is None:
        found = releases()
        return {name: {release: assembled(name, found[release]) for release in found} for name in names}
    kept: dict[str, dict[str, bytes]] = {}
    for name in names:
        paths = {path.stem.removeprefix(f"{name}-"): path for path in folder.glob(f"{name}-*.cubin")}
        kept[name] = {release: paths[release].read_bytes() for release in sorted(paths, key=_number)}
    return kept


def differences(found: dict[str, dict[str, bytes]]) -> Iterator[Row]:
    """What each release's cubin computes, beside the newest's; needs a GPU.

    Raises:
        SystemExit: one release alone is here, or the newest is too old to be right.
    """
    from sassafras.core import Candidate
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.targets import load

    for name, by_release in found.items():
        newest = max(by_release, key=_number, default="0")
        if len(by_release) < 2 or _number(newest) < RIGHT[name][1]:
            raise SystemExit(
                f"error: {name} needs an older ptxas and one of {RIGHT[name][1]}: SASSAFRAS_PTXAS or --cubins"
            )
        with tempfile.TemporaryDirectory() as folder, CudaDevice() as gpu:
            shutil.copy(REPRODUCERS / f"{name}.toml", folder)
            Path(folder, "newest.cubin").write_bytes(by_release[newest])
            workload = load(f"{folder}/{name}.toml")
            baseline = workload.build(workload.cases[0], gpu.arch)
            gpu.open(workload, workload.cases[0], baseline)
            for release, cubin in by_release.items():
                outcome = gpu.run(Candidate(baseline.with_cubin(cubin), {"origin": release}))
                finding = None if outcome.verdict.ok else f"{outcome.verdict}: {outcome.detail}, by {newest}"
                yield {**_row(name, DIFFERENTIAL, release, finding), "gpu": gpu.name}


def counted(rows: Sequence[Row]) -> Row:
    """Counts for the summary."""
    published = [row for row in rows if "reproducer" in row]
    found = [row for row in published if row["finding"]]
    return {
        "reproduced": sorted({row["reproducer"] for row in found}),
        "reproduced_by_audit": sorted({row["reproducer"] for row in found if row["by"] == AUDIT}),
        "reproducers_as_expected": sum(row["ok"] for row in published),
        "reproducers_run": len(published),
    }


def main() -> int:
    """See the module; 0 when each release does as published."""
    parser = command_line(__doc__)
    parser.add_argument("--differential", action="store_true", help="run on a GPU, compare releases")
    parser.add_argument(
        "--cubins", type=Path, help="folder of cubins: written, or run instead of new ones by --differential"
    )
    options = parser.parse_args()
    if options.cubins and not options.differential:
        options.cubins.mkdir(parents=True, exist_ok=True)
        for name, by_release in cubins(None).items():
            for release, cubin in by_release.items():
                (options.cubins / f"{name}-{release}.cubin").write_bytes(cubin)
        return 0
    if options.differential and not gpu_count():
        print("no GPU here")
        return 2
    rows = list(differences(cubins(options.cubins))) if options.differential else audits()
    for row in rows:
        print("ok  " if row["ok"] else "FAIL", row["reproducer"], row["release"], row["finding"])
    by = rows[0]["by"]
    old = json.loads((RESULTS / "audit.json").read_text(encoding="utf-8"))
    rows = [*(row for row in old["rows"] if "reproducer" not in row or row.get("by", AUDIT) != by), *rows]
    environment, again = old["environment"], "; python benchmarks/miscompiled.py"
    if by == AUDIT:
        environment = {**environment, "ptxas": list(releases())}
    command = old["command"].partition(";")[0] + again
    if any(row.get("by") == DIFFERENTIAL for row in rows):
        command += f"{again} --differential"
    summary = {**old["summary"], **counted(rows)}
    write("audit", rows, summary, environment, seed=old["seed"], out=options.out, command=command)
    return 0 if all(row["ok"] for row in rows if "reproducer" in row) else 1


if __name__ == "__main__":
    raise SystemExit(main())
