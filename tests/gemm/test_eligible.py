"""What goes past torch's dispatcher: the one list; and that everything else is torch's, on host memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm import matmul as room  # noqa: E402
from sassafras.gemm.dispatch.driver import Driver  # noqa: E402
from sassafras.gemm.dispatch.engine import Engine  # noqa: E402
from sassafras.gemm.table import Table  # noqa: E402
from tests.gemm import semantics, stand_in  # noqa: E402
from tests.gemm.semantics_modes import CASES  # noqa: E402

Install = Callable[[str], Engine]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest, library: Path, cache: Path) -> Iterator[Engine]:
    """Every problem that one of our kernels can run is served by it."""
    driver, side = Driver(str(library)), stand_in.torch_side(strict=room._strict)
    made = Engine(driver, side, cache=cache, background=False, table=Table({"gpu": "NVIDIA H200"}, []))
    made._stored = lambda instance: b"\x7fELF"  # type: ignore[method-assign]
    made.everything = True
    if request.param == "python":
        made.launcher = stand_in.make("python", driver, side, cache)
    room.use(made, device="cpu")
    yield made
    room.use(None)


def ours(engine: Engine) -> int:
    return int(engine.launcher.counts()["ours"]) + int(engine.fused.counts["hits"])


@pytest.mark.parametrize("name", CASES)
def test_whatever_torch_means(engine: Engine, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        semantics.alike(name, room.matmul, "cpu")
