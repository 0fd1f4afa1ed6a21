"""Whether a row of C has the same bits whatever other rows are there, and which configurations sum alike."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.configs import registry  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, drawn, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
N, K, ROWS = 512, 4096, 64


def by_instance(dtype: str, layout: str = "tn") -> dict[Any, list[Any]]:
    """Instance -> its plain configurations for ROWS rows, or for 8 where it runs no more."""
    found: dict[Any, list[Any]] = {}
    every = registry.configurations() if dtype == "fp16" else registry.other_configurations()
    for config in every:
        able = any(config.why_illegal(Shape(m, N, K)) is None for m in (ROWS, 8))
        if able and (config.layout, config.dtype) == (layout, dtype):
            found.setdefault(config.instance, []).append(config)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_neighbours(engine: Any, dtype: str) -> None:
    """Of one configuration: rows alone, few, at other places. Written down: which configurations agree."""
    a, w = drawn(ROWS, N, K, DTYPES[dtype], 11)
    agreeing: dict[bytes, list[str]] = {}
    compared = 0
    for configs in by_instance(dtype).values():
        for config in configs[:: max(1, len(configs) // 4)]:
            rows = ROWS if config.why_illegal(Shape(ROWS, N, K)) is None else 8
            whole = engine.bind(config, a[:rows], w.t())().clone()
            agreeing.setdefault(whole[:8].view(torch.int16).cpu().numpy().tobytes(), []).append(config.name)
            for first, count in ((0, 1), (5, 3), (1, 7), (17, 16), (30, 33)):
                if first + count <= rows and config.why_illegal(Shape(count, N, K)) is None:
                    part = engine.bind(config, a[first : first + count].clone(), w.t())()
                    assert torch.equal(part, whole[first : first + count]), (config.name, first, count)
                    compared += 1
    classes = sorted(agreeing.values(), key=len, reverse=True)
    print(f"{dtype}: {len(classes)} orders of sums; the largest: {[len(names) for names in classes[:8]]}")
    if folder := os.environ.get("SASSAFRAS_GPU_RESULTS"):
        report = {"dtype": dtype, "n": N, "k": K, "classes": classes}
        (Path(folder) / f"sums-{dtype}.json").write_text(json.dumps(report))
    assert compared > 20
