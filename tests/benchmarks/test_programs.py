"""`benchmarks/programs/` without a GPU: what is printed, and the configurations that a Mamba layer keeps."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

#: as small as a package with an autotuned kernel can be; its __init__ must not run
KERNEL = """
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"])
@triton.jit
def doubled(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
"""


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts can be imported; the package that one enters goes again."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS / "programs"), str(BENCHMARKS), *sys.path])
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


def test_the_decoder_prints_its_blocks_and_the_checksum_of_its_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import decoder_step

    monkeypatch.setattr(decoder_step, "LAYERS", 1)
    decoder_step.main(["--device", "cpu", "--steps", "1"])
    *steps, rms, checksum = capsys.readouterr().out.splitlines()
    assert len(steps) == 12 and all(re.fullmatch(r"step ([0-9.]+) us", line) for line in steps)
    model, x = decoder_step.made(decoder_step.SMALL["llama-3-8b"], 1, 16, 512, False, torch.bfloat16, "cpu")
    output = model(x)
    assert rms == f"rms {float(output.float().square().mean().sqrt()):.6g}"
    digest = hashlib.sha256(output.view(torch.int16).numpy().tobytes()).hexdigest()
    assert checksum == f"checksum {digest}"


def test_the_checksum_is_of_all_outputs_of_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    import harness

    count, wide = torch.zeros(1, dtype=torch.int32), torch.arange(6.0).reshape(2, 3)
    harness.run(lambda: [count.add_(1), wide.T], 3, "cpu")
    assert int(count) == 3 * (harness.BLOCKS + harness.WARM)
    expected = hashlib.sha256(count.numpy().tobytes() + wide.numpy().T.tobytes()).hexdigest()
    assert capsys.readouterr().out.endswith(f"rms 45 3.02765\nchecksum {expected}\n")


def test_a_choice_that_was_kept_is_the_next_process_s_choice(tmp_path: Path) -> None:
    import harness
    import mamba_layer

    folder = tmp_path / "mamba_ssm" / "ops" / "triton"
    folder.mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("raise ImportError('run')\n")
    (folder / "double.py").write_text(KERNEL)
    with pytest.raises(SystemExit, match="no folder"):
        harness.enter(tmp_path, "liger_kernel")
    harness.enter(tmp_path, "mamba_ssm")
    from mamba_ssm.ops.triton.double import doubled

    key = (48, "torch.float32")
    doubled.cache[key] = doubled.configs[1]
    kept = json.loads(json.dumps(mamba_layer.chosen()))
    doubled.cache.clear()
    assert mamba_layer.chosen() == {}
    mamba_layer.take(kept)
    assert doubled.cache == {key: doubled.configs[1]}
    mamba_layer.take({"doubled": {repr((9, "torch.float32")): "BLOCK: 1"}, "gone": {"()": ""}})
    assert list(doubled.cache) == [key], "a configuration that there is no longer is chosen anew"
