"""torch's own samples of mm, addmm, bmm and matmul on host memory: as torch, by torch or by our launches.

Launches are made on the driver's stand-in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.driver import Driver  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.torch_side import strict  # noqa: E402
from sassafras.gemm.select.table import TunedTable  # noqa: E402
from tests.gemm import opinfo, stand_in  # noqa: E402

Install = Callable[..., Planner]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)


@pytest.fixture
def install(library: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.setattr(room, "_warned", set())

    def make(launcher: str, *, everything: bool) -> Planner:
        driver = Driver(str(library))
        side = stand_in.torch_side(strict=strict)
        engine = Planner(
            driver, side, cache=cache, background=False, table=TunedTable({"gpu": "NVIDIA H200"}, [])
        )
        engine._stored = lambda instance: b"\x7fELF"  # type: ignore[method-assign]
        engine.everything = everything
        if launcher == "python":
            engine.launcher = stand_in.make("python", driver, side, cache)
        room.use(engine, device="cpu")
        return engine

    yield make
    room.use(None)


def served(engine: Planner) -> int:
    return int(engine.launcher.counts()["ours"])


@pytest.mark.parametrize(
    ("launcher", "dtype", "everything", "widths", "every"),
    [  # torch serves all of the first: every other sample
        ("compiled", torch.float16, False, (False,), 2), ("compiled", torch.float16, True, (False, True), 1),
        ("python", torch.bfloat16, True, (True,), 1),
    ],
    ids=["shipped-fp16", "compiled-fp16", "python-bf16"],
)  # fmt: skip
def test_samples(
    install: Install, launcher: str, dtype: Any, everything: bool, widths: tuple[bool, ...], every: int
) -> None:
    engine = install(launcher, everything=everything)
    eligible = ours = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for wide in widths:
            for sample in islice(opinfo.samples(room, "cpu", dtype, wide), 0, None, every):
                before = served(engine)
                opinfo.compare(sample)
                if opinfo.eligible(sample):
                    eligible += 1
                    ours += served(engine) > before
    print(f"{ours} of {eligible} eligible samples are served by our kernels")
    assert eligible > 20 and (ours >= 0.3 * eligible if everything else ours == 0)


@pytest.mark.parametrize("launcher", ["compiled", "python"])
def test_errors(install: Install, launcher: str) -> None:
    install(launcher, everything=True)
    for name, given in opinfo.wrong("cpu", torch.float16):
        mine, theirs = (opinfo.raised(partial(f, *given)) for f in (room.matmul, torch.matmul))
        assert mine == theirs, (name, mine, theirs)
