"""A program's products on a GPU: recorded in all its ways of calling, tuned in seconds, served afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.bench import context  # noqa: E402
from sassafras.gemm.bench.journal import read  # noqa: E402
from sassafras.gemm.build.cubins import build, default_cache  # noqa: E402
from sassafras.gemm.problem.shape import Product, Shape  # noqa: E402
from tests.gpu.test_matmul_epilogue import built  # noqa: E402

__all__ = ["built"]  # a fixture
ROOT = Path(__file__).parents[2]

#: three layers at one row, and at 64; says who serves them
LAYERS = ((4096, 4096), (1024, 4096), (4096, 2048))
PROGRAM = (
    f"LAYERS = {LAYERS}"
    + """
import json
import sys
import torch
import sassafras
from sassafras.gemm.matmul import api

api._set_up()
api.settle()  # Python's launcher, which serves until then, cannot call cuBLASLt
with open(sys.argv[1], "a") as file:
    file.write("run\\n")
layers = [torch.nn.Linear(k, n, bias=False) for n, k in LAYERS]
model = sassafras.accelerate(torch.nn.ModuleList(layers).half().cuda().eval())
with torch.no_grad():
    for rows, count in ((1, 20), (64, 2)):
        for layer in model:
            x = torch.randn(rows, layer.in_features, device="cuda", dtype=torch.float16)
            exact = x.double() @ layer.weight.double().t()
            for _ in range(count):
                y = layer(x)
            assert (y.double() - exact).abs().max() < 1e-2 * exact.abs().max()
print(json.dumps([p["why"] for p in api.status()["problems"]]))
"""
)


@pytest.fixture
def weight(built: Any) -> Any:
    """Of a layer whose product is `LAYER`."""
    return torch.randn(1024, 512, device="cuda").half()


LAYER = Product(Shape(16, 1024, 512), "tn")


def test_eager_compiled_and_captured_calls_are_counted(weight: Any) -> None:
    x, bias = torch.randn(16, 512, device="cuda").half(), torch.randn(1024, device="cuda").half()
    layer = torch.compile(lambda x: sassafras.linear(x, weight, bias, "relu") * 2, fullgraph=True)
    relu = LAYER._replace(bias=True, activation="relu")
    with torch.no_grad():
        sassafras.linear(x, weight)
        layer(x)
        with sassafras.record() as counted:
            for _ in range(5):
                sassafras.linear(x, weight)
                layer(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = sassafras.linear(x, weight)
            for _ in range(7):
                graph.replay()
    assert counted.calls == {LAYER: 5 + 1 + 7, relu: 5}
    torch.cuda.synchronize()
    assert torch.allclose(y, torch.nn.functional.linear(x, weight), rtol=1e-2, atol=1e-1)
    graph.replay()
    assert counted.calls[LAYER] == 13, "nothing counts afterwards"


def test_graphs_of_torch_compile_are_counted(weight: Any) -> None:
    """Inductor's own graphs: calls that warm up, the capture, replays."""
    layer = torch.compile(lambda x: sassafras.linear(x, weight) * 2, mode="reduce-overhead", fullgraph=True)
    x = torch.randn(16, 512, device="cuda").half()
    with torch.no_grad(), sassafras.record() as counted:
        for _ in range(20):
            layer(x)
    assert 20 <= counted.calls[LAYER] <= 22


@pytest.fixture
def own(tmp_path: Path, built: Any) -> dict[str, str]:
    """An environment with a cache of its own that has the kernels and no table."""
    kinds = [Product(Shape(m, n, k), "tn") for m in (1, 64) for n, k in LAYERS]
    build(context.instances(built._engine.gpu(0).chooser, kinds))
    shutil.copytree(default_cache(), tmp_path / "cache", ignore=shutil.ignore_patterns("*.table.json"))
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "SASSAFRAS_GEMM_CACHE": str(tmp_path / "cache"),
    }


def tuned(tmp_path: Path, *options: str) -> list[str]:
    place = ["--out", str(tmp_path / "out"), *options, "--"]
    program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "runs")]
    return [sys.executable, "-m", "sassafras", "tune", *place, *program]


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_three_layers_are_tuned_in_thirty_seconds_and_a_second_process_uses_it(
    tmp_path: Path, own: dict[str, str]
) -> None:
    begin = time.monotonic()
    said = run(tuned(tmp_path, "--budget", "30s"), own)
    took = time.monotonic() - begin
    assert "6 of 6 products tuned" in said
    assert took < 30 + 30, f"{took:.0f} s with two processes that load torch"
    (path,) = (tmp_path / "out").glob("*.products.json")
    found = json.loads(path.read_text())
    assert {"gpu", "sms", "driver", "cublaslt", "torch", "kernels"} <= set(found["header"])
    for row in found["products"]:
        assert row["us"] <= row["torch_us"] and row["us"] <= row["before_us"]
        assert row["calls"] == (20 if row["shape"].startswith("1x") else 2)
    program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "runs")]
    why = json.loads(run(program, own).splitlines()[-1])
    assert len(why) == 6 and all(text.startswith("tuned in a program: ") for text in why), why
    # named by the variable, it serves where nothing was tuned
    for table in (tmp_path / "cache").glob("*.table.json"):
        table.unlink()
    again = json.loads(run(program, {**own, "SASSAFRAS_GEMM_TABLE": str(path)}).splitlines()[-1])
    assert again == why
    plain = json.loads(run(program, own).splitlines()[-1])
    assert not any(text.startswith("tuned in a program") for text in plain)


@pytest.mark.slow
def test_a_kill_loses_one_product(tmp_path: Path, own: dict[str, str]) -> None:
    journal = tmp_path / "out" / "program.gpu0.jsonl"
    killed = subprocess.Popen(tuned(tmp_path), env=own, start_new_session=True, stdout=subprocess.DEVNULL)
    while not (journal.is_file() and journal.read_bytes().count(b"\n") > 2):  # empty when just made
        assert killed.poll() is None
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = read(journal)[1:]
    assert "6 of 6 products tuned" in run(tuned(tmp_path), own)
    assert read(journal)[1 : 1 + len(kept)] == kept
    assert (tmp_path / "runs").read_text() == "run\n", "the program is not run a second time"


#: records itself, and uses the result at once
ITSELF = (
    f"LAYERS = {LAYERS[1:]}"
    + """
import json
import sys
import torch
import sassafras
from sassafras.gemm.matmul import api

weights = [torch.randn(n, k, device="cuda").half() for n, k in LAYERS]
def calls():
    for weight in weights:
        sassafras.linear(torch.randn(1, weight.shape[1], device="cuda").half(), weight)
calls()
api.settle()
with sassafras.record():
    calls()
found = sassafras.tune(budget="30s", out=sys.argv[1])
calls()
print(json.dumps([found.to_json(), [p["why"] for p in api.status()["problems"]]]))
"""
)


def test_a_process_tunes_what_it_calls(tmp_path: Path, own: dict[str, str]) -> None:
    said = run([sys.executable, "-c", ITSELF, str(tmp_path / "itself")], own)
    found, why = json.loads(said.splitlines()[-1])
    assert found["tuned"] == found["products"] == found["calls"] == 2 and not found["modelled"]
    assert 0 < found["after_s"] <= found["before_s"]
    assert len(why) == 2 and all(text.startswith("tuned in a program: ") for text in why), why
