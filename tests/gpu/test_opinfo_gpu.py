"""torch's own samples of mm, addmm, bmm and matmul on a GPU: as torch, as shipped and by our kernels alone.

Each test writes ``opinfo-<type>-<way>.json`` into ``$SASSAFRAS_GPU_RESULTS``, if that is set.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

from tests.gemm import opinfo, semantics  # noqa: E402
from tests.gemm.semantics_modes import CASES  # noqa: E402


@pytest.fixture
def room() -> Iterator[Any]:
    """The module, with the compiled launcher built."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.matmul import api

    if api._engine is None:
        api._set_up()
    api.settle()
    api._engine.forget()
    yield api
    api._engine.everything = False
    api._engine.forget()


def served(room: Any) -> int:
    """Launches of our kernels."""
    return int(room._engine.launcher.counts()["ours"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("way", ["shipped", "everything"])
def test_samples(room: Any, dtype: str, way: str) -> None:
    kind = torch.float16 if dtype == "fp16" else torch.bfloat16
    room._engine.everything = way == "everything"
    rows: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for settled in (False, True):  # torch stands in for what the first pass asks to be compiled
            for wide in (False, True):
                for sample in opinfo.samples(room, "cuda", kind, wide):
                    before = served(room)
                    try:
                        opinfo.compare(sample)
                    except AssertionError as error:
                        faults.append(f"{'settled' if settled else 'first'}: {error}")
                    if settled:
                        row = rows.setdefault(
                            sample.name, {"operator": sample.name, "samples": 0, "eligible": 0, "served": 0}
                        )
                        row["samples"] += 1
                        row["eligible"] += opinfo.eligible(sample)
                        row["served"] += opinfo.eligible(sample) and served(room) > before
            room.settle()
    totals = {name: sum(row[name] for row in rows.values()) for name in ("samples", "eligible", "served")}
    print(f"{dtype} {way}: {totals['served']} of {totals['eligible']} eligible samples are served by ours, "
          f"{totals['samples']} samples")  # fmt: skip
    if folder := os.environ.get("SASSAFRAS_GPU_RESULTS"):
        found = {"dtype": dtype, "way": way, **totals, "faults": faults, "rows": list(rows.values())}
        (Path(folder) / f"opinfo-{dtype}-{way}.json").write_text(json.dumps(found, indent=1))
    assert not faults, "\n".join(faults[:20])
    assert totals["eligible"] > 30
    if way == "everything":
        assert totals["served"] >= 0.3 * totals["eligible"], room.status()["notes"]


@pytest.mark.parametrize("way", ["shipped", "everything"])
def test_errors(room: Any, way: str) -> None:
    room._engine.everything = way == "everything"
    for dtype in (torch.float16, torch.bfloat16):
        for name, given in opinfo.wrong("cuda", dtype):
            mine, theirs = (opinfo.raised(partial(f, *given)) for f in (room.matmul, torch.matmul))
            assert mine == theirs, (name, mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_whatever_torch_means(room: Any, name: str) -> None:
    room._engine.everything = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # by torch, and by ours once they are compiled
            semantics.alike(name, room.matmul, "cuda")
            room.settle()
