"""The Triton kernels of rows in Triton's interpreter, against torch; ragged extents, any strides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = """
import torch
import triton.runtime.interpreter as interpreter

patch = interpreter._patch_lang_tensor

def patched(tensor, *rest):  # NumPy 2.4 makes no number of an array of one: no loop up to an argument
    patch(tensor, *rest)
    tensor.__index__ = lambda self: int(self.handle.data.item())

interpreter._patch_lang_tensor = patched
from sassafras.gemm.matmul import row_kernels as rows

torch.manual_seed(0)
for m, n, k in ((1, 5, 7), (33, 70, 65), (64, 16, 32)):
    a, b = torch.randn(m, k + 3)[:, :k], torch.randn(n, k).t()
    c = torch.full((m, n), float("nan"))
    rows.product_kernel[(3,)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), n, ROWS=16, COLUMNS=32, K=16, BAND=2, PROGRAMS=3
    )
    assert torch.allclose(c, a @ b, atol=1e-4), (m, n, k)
for columns in (1, 40, 64, 150):
    x = 9 * torch.randn(5, columns)
    y, mean, factor = torch.empty_like(x), torch.empty(5), torch.empty(5)
    rows.log_softmax_kernel[(5,)](x, y, columns, BLOCK=64)
    assert torch.allclose(y, torch.log_softmax(x, -1), atol=1e-4)
    rows.mean_kernel[(5,)](x, mean, columns, BLOCK=64)
    assert torch.allclose(mean, x.mean(-1), atol=1e-5)
    weight = torch.randn(columns)
    for given in (True, False):
        rows.rms_norm_kernel[(5,)](x, weight, y, factor, columns, 1e-5, WEIGHT=given, BLOCK=64)
        wanted = torch.nn.functional.rms_norm(x, (columns,), weight if given else None, 1e-5)
        assert torch.allclose(y, wanted, atol=1e-4)
        assert torch.allclose(factor, (x.square().mean(-1) + 1e-5).rsqrt(), rtol=1e-4)
print("right")
"""


def test_kernels_are_right_for_ragged_rows(tmp_path: Path) -> None:
    path = tmp_path / "program.py"  # the interpreter reads the source
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "right", done.stderr[-2000:]
