"""Which tables serve a GPU: shipped, calibrated, tuned on this machine, or named by the environment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from sassafras.core import SassafrasError
from sassafras.core.files import code_digest, is_file

from ..build.cubins import default_cache
from ..configs.backward import PART
from ..select import table as tables
from ..select.dataset import slug
from ..select.gpus import GpuFacts, tables_of
from ..select.table import TunedTable
from .driver import Driver


def load_table(
    gpu: str,
    say: Callable[[str], None] = lambda text: None,
    facts: GpuFacts | None = None,
    lt_version: int | None = None,
) -> TunedTable | None:
    """``$SASSAFRAS_GEMM_TABLE`` alone, or what is shipped with what was tuned here on top; None without any.

    For a GPU that was never tuned the nearest one's table is loaded (`gpus.tables_of`), or what
    `sassafras tune --calibrate` made of it here. Where the variable names a file of a program's products
    alone, it comes on top of the others.

    Args:
        say: is told what is there and not used.
        facts: of the GPU, by which the nearest one, and its calibration, are found.
        lt_version: of cuBLASLt, if it is there: a calibration beside another one is not used.

    Raises:
        SassafrasError: the file that the variable names cannot be used.
    """
    found: TunedTable | None = None
    named: TunedTable | None = None
    near = tables_of(gpu, facts)
    if given := os.environ.get("SASSAFRAS_GEMM_TABLE"):
        whole = _named(Path(given))
        named = whole.of_gpu(gpu)
        if len(named.products) < len(whole.products):
            of = "modelled" if whole.header.get("modelled") else f"timed on {whole.header.get('gpu')}"
            say(f"products in {given} are not used: they were {of}")
        if whole.rows or not whole.products:
            return named
    start = _calibrated(facts, lt_version, say) if facts and near != gpu else None
    backward = tables.shipped_path(tables_of(gpu, facts, PART), PART)
    for path in (backward, tables.shipped_path(near), tuned_path(gpu)):
        if start is not None and path == tables.shipped_path(near):
            found = start if found is None else found.merged(start)
        elif is_file(path):
            try:
                loaded = TunedTable.load(path).of_gpu(gpu)
            except SassafrasError:
                continue  # a damaged file of the cache must not break a user's program
            found = loaded if found is None else found.merged(loaded)
    if named is None or not named.products:
        return found
    return named if found is None else found.merged(named)


def _named(path: Path) -> TunedTable:
    try:
        return TunedTable.load(path)
    except SassafrasError as error:
        raise SassafrasError(error.what, where=f"SASSAFRAS_GEMM_TABLE={path}") from error


def _calibrated(facts: GpuFacts, lt_version: int | None, say: Callable[[str], None]) -> TunedTable | None:
    """The table that a calibration of this GPU made, if driver and cuBLASLt are those of then."""
    path = calibrated_path(facts)
    if not is_file(path):
        return None
    try:
        found = TunedTable.load(path)
    except SassafrasError:
        return None
    for name, now in (("driver", Driver.version()), ("cublaslt", lt_version)):
        if now and found.header.get(name) != now:
            was = f"{name} is {now}, it was {found.header.get(name)}"
            say(f"the calibration of {facts.name} is not used: {was} (sassafras tune --calibrate)")
            return None
    return found


def tuned_path(gpu: str) -> Path:
    """Where `sassafras tune --products` leaves what it measured on this machine."""
    return default_cache() / f"{slug(gpu)}.table.json"


def calibrated_path(facts: GpuFacts) -> Path:
    """Where `sassafras tune --calibrate` leaves the table that it corrected for this machine's GPU."""
    return default_cache() / f"{slug(facts.name)}-{facts.multiprocessors}.calibrated.table.json"


def deciding_digest(gpu: str, facts: GpuFacts | None) -> str:
    """SHA-256 of all that decides who serves a product on a GPU: this package, and `load_table`'s files."""
    digest = hashlib.sha256(f"{code_digest('gemm')} {gpu} {facts} {Driver.version()}".encode())
    named = os.environ.get("SASSAFRAS_GEMM_TABLE")
    for path in (Path(named) if named else None, tuned_path(gpu), calibrated_path(facts) if facts else None):
        try:
            digest.update(path.read_bytes() if path else b"none")
        except OSError:  # `load_table` says what is wrong with it
            digest.update(b"none")
    return digest.hexdigest()
