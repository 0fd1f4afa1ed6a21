"""The example's workload is the call that its stock program makes: otherwise nothing would be deployed."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

from sassafras import deploy
from sassafras.targets import load

from .boundary import Driver, Tensor, sha
from .conftest import retuned, save

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_program_loads_what_the_workload_builds(driver: Driver, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the stock program uses it")
    workload = load(f"{EXAMPLES / 'deploy_demo.py'}:workload")
    built = [workload.build(case, "sm_90a") for case in workload.cases]
    assert len({kernel.digest for kernel in built}) == 2

    def launched() -> list[str]:
        driver.loads.clear()
        # as `python deploy_stock.py` would define it, in a module of another name
        program: dict[str, Any] = runpy.run_path(str(EXAMPLES / "deploy_stock.py"), run_name="not_main")
        program["softmax_kernel"][(512,)](Tensor(), Tensor(address=1 << 20), 2047, BLOCK=2048)
        return [digest for _, digest in driver.loads]

    assert sorted(launched()) == sorted(kernel.digest for kernel in built)
    # what a search would have saved, with exactly the kernel that the frontend made
    for kernel in built:
        save(tmp_path / "store.sqlite", kernel, retuned(kernel.cubin))
    deploy.install(tmp_path / "store.sqlite")
    assert sorted(launched()) == sorted(sha(retuned(kernel.cubin)) for kernel in built)


def test_the_demo_notices_what_does_not_fit() -> None:
    spec = importlib.util.spec_from_file_location("deploy_demo", EXAMPLES / "deploy_demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    good = {
        "run": "without, cold", "loaded": ["a"], "told": [], "outputs": {"4": "o"},
        "graph_equals_eager": True, "error": 0.0, "cache": {"f": "1"},
    }  # fmt: skip
    install = good | {"run": "install, cold", "loaded": ["b"], "told": ["b"]}
    assert list(demo.check([good, install], {"a": "b"})) == []
    for change in (
        {"loaded": ["a"]}, {"told": []}, {"outputs": {"4": "p"}}, {"graph_equals_eager": False},
        {"error": 1.0}, {"cache": {"f": "2"}}, {"cache": {}},
    ):  # fmt: skip
        assert list(demo.check([good, install | change], {"a": "b"})), change
    assert list(demo.check([good, good], {}))
    launcher = {"cache": {"f": "1", "launcher.so": "1"}}
    first, cold = good | launcher, install | {"cache": {"f": "1", "launcher.so": "2"}}
    warm = cold | {"run": "install, warm"}
    assert list(demo.check([first, cold, warm], {"a": "b"})) == []
    assert list(demo.check([first, cold, warm | launcher], {"a": "b"}))
    assert list(demo.check([first, cold | {"cache": {"f": "1"}}], {"a": "b"}))
