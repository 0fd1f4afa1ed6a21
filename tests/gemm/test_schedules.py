"""Tuned schedules as data: round trips on real cubins, refusals, and what loads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from sassafras.api import doctor
from sassafras.core import VALIDATOR_RULES, Kernel, SassafrasError
from sassafras.gemm.build import ahead_of_time, schedules
from sassafras.gemm.build.cubins import cached_path
from sassafras.gemm.build.schedules import HEADER, VARIABLE, applied, difference, scheduled
from sassafras.gemm.configs.names import parse
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator
from tests.kernels import matmul_cubin, softmax_cubin

GPU = "NVIDIA H200"
#: of Triton's ptxas 12.8, whose cubins do not name it
UNNAMED = "compiled by another release, tuned for CUDA 13.0"
CONFIG = "small_tn_m1n2s2/w1x1x1/c1"
MEASURED = {"gpu": GPU, "release": "13.0", "rules": VALIDATOR_RULES}


def reordered(cubin: bytes, name: str, control: str = "keep", moves: int = 60) -> bytes:
    """A legal schedule of a kernel, drawn by a seed."""
    space = ScheduleSpace(Kernel(cubin, name, "sm_90a", 128), control=control)
    state, rng = space.start(), np.random.default_rng(0)
    state = state if control == "keep" else space.tightened(state)
    for _ in range(moves):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
    made = space.emit(state)
    assert made != cubin and Validator(cubin, name).check(made).ok
    return made


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes, dict[str, Any]]:
    """A softmax, a schedule of it, and the row."""
    parent = softmax_cubin()
    tuned = reordered(parent, "softmax")
    return parent, tuned, difference(parent, tuned, "softmax") | MEASURED


def file_of(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in (HEADER, *rows)))
    return path


@pytest.mark.parametrize("control", ["keep", "regenerate"])
@pytest.mark.parametrize("make", [softmax_cubin, matmul_cubin])
def test_there_and_back(make: Callable[[], bytes], control: str) -> None:
    parent, name = make(), make.__wrapped__.__name__.removesuffix("_cubin")  # type: ignore[attr-defined]
    tuned = reordered(parent, name, control, 300)
    row = json.loads(json.dumps(difference(parent, tuned, name) | MEASURED))
    assert applied(parent, name, GPU, [row]) == schedules.Scheduled(tuned, True)
    assert len(json.dumps(row)) < 4096


def test_places_that_records_name_travel(pair: tuple[bytes, bytes, dict[str, Any]]) -> None:
    parent, _, row = pair
    assert row["records"], "a softmax's .nv.info lists its shuffles"
    assert applied(parent, "softmax", GPU, [row | {"records": []}]).why == "damaged data"


def test_what_is_no_schedule_is_not_written(pair: tuple[bytes, bytes, dict[str, Any]]) -> None:
    parent, tuned, row = pair
    with pytest.raises(SassafrasError, match="outside of the kernel's code"):
        difference(parent, tuned + b"\0", "softmax")
    with pytest.raises(SassafrasError, match="outside of the kernel's code"):
        difference(parent, bytes([*tuned[:-1], tuned[-1] ^ 1]), "softmax")
    other = bytearray(tuned)
    other[row["offset"] + 3] ^= 0x40
    with pytest.raises(SassafrasError, match="not one of the parent's"):
        difference(parent, bytes(other), "softmax")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"parent": "0" * 64}, UNNAMED),
        ({"rules": 2}, "validated by rules of another version"),
        ({"tuned": "0" * 64}, "damaged data"),
        ({"moves": "AAAA"}, "damaged data"),
        ({"moves": "*"}, "damaged data"),
        ({"moves": None}, "damaged data"),
        ({"offset": 1 << 40}, "damaged data"),
        ({"offset": -16}, "damaged data"),
        ({"slots": 3}, "damaged data"),
        ({"records": [[1 << 40, 1]]}, "damaged data"),
        ({"records": 5}, "damaged data"),
        ({"gpu": "NVIDIA H100 80GB HBM3"}, ""),
        ({"entry": "another"}, ""),
    ],
)
def test_anything_else_leaves_the_kernel_as_it_is(
    pair: tuple[bytes, bytes, dict[str, Any]], change: dict[str, Any], why: str
) -> None:
    parent, _, row = pair
    assert applied(parent, "softmax", GPU, [row | change]) == schedules.Scheduled(parent, False, why)


def test_a_second_compilers_row_does_not_hide_the_first(pair: tuple[bytes, bytes, dict[str, Any]]) -> None:
    parent, tuned, row = pair
    other = row | {"parent": "0" * 64, "release": "12.9"}
    assert applied(parent, "softmax", GPU, [other, row]).cubin == tuned
    assert applied(tuned, "softmax", GPU, [other, row]).why == UNNAMED.replace("CUDA", "CUDA 12.9 and")


def test_a_compilers_patch_release_is_no_part_of_its_code(pair: tuple[bytes, bytes, dict[str, Any]]) -> None:
    """NVRTC 13.0.48 and 13.0.88 name themselves in a note; their code of our kernels is equal."""
    parent, tuned, _ = pair
    notes = [b"ptxas\0Cuda compilation tools, release 13.0, V13.0.%d\0" % patch for patch in (48, 88)]
    row = difference(parent + notes[0], tuned + notes[0], "softmax") | {"gpu": GPU, "rules": VALIDATOR_RULES}
    assert row["release"] == "13.0" == schedules.release(parent + notes[1])
    for note in notes:
        assert applied(parent + note, "softmax", GPU, [row]) == schedules.Scheduled(tuned + note, True)
    later = parent + notes[1].replace(b"13.0", b"13.2")
    assert applied(later + b"\0", "softmax", GPU, [row]).why == "compiled by CUDA 13.2, tuned for CUDA 13.0"
    assert applied(parent + notes[0] + b"\0", "softmax", GPU, [row]).why == "tuned for another source"


def test_the_environment_decides(
    pair: tuple[bytes, bytes, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, tuned, row = pair
    monkeypatch.setattr(schedules, "SHIPPED", file_of(tmp_path / "shipped.jsonl", row))
    assert scheduled(parent, "softmax", GPU).cubin == tuned and schedules.entries(GPU) == ["softmax"]
    monkeypatch.setenv(VARIABLE, "off")
    assert scheduled(parent, "softmax", GPU) == schedules.Scheduled(parent, False, f"{VARIABLE}=off")
    monkeypatch.setenv(VARIABLE, str(file_of(tmp_path / "none.jsonl")))
    assert scheduled(parent, "softmax", GPU) == schedules.Scheduled(parent)
    (tmp_path / "cut.jsonl").write_text('{"sassafras_gemm_schedules": 1}\n{"gpu"')
    for name in ("cut.jsonl", "misspelt.jsonl"):
        monkeypatch.setenv(VARIABLE, str(tmp_path / name))
        found = scheduled(parent, "softmax", GPU)
        assert found.cubin == parent and found.why.startswith(f"{name}: no file of schedules")
        assert f"1 without: {name}" in schedules.words([found])
    with pytest.raises(SassafrasError, match="no file of schedules"):
        schedules.read(tmp_path / "cut.jsonl")


def test_the_package_has_the_file_and_todays_kernels_in_it() -> None:
    for row in schedules.read(schedules.SHIPPED):
        path = cached_path(ahead_of_time.registry.parse_instance(row["entry"]))
        assert path.stem.endswith(row["source"]), "its kernel's source has changed: search it again"
    package = Path(schedules.__file__).parents[3]
    assert schedules.SHIPPED.is_relative_to(package), "the wheel holds the package's folder"


def test_words_for_people(
    pair: tuple[bytes, bytes, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert schedules.words([schedules.Scheduled(b"")]) == ""
    parent, _, row = pair
    names = [
        parse(name).instance.name for name in (CONFIG, "small_nn_m1n2s1/w1x1x1/c1", "stream_tn_m8s4/c1")[:2]
    ]
    rows = [row | {"entry": name} for name in [*names, "of_another_version"]]
    monkeypatch.setenv(VARIABLE, str(file_of(tmp_path / "rows.jsonl", *rows)))
    assert ahead_of_time.scheduled(GPU, tmp_path) == "2 not compiled yet"
    cached_path(parse(CONFIG).instance, tmp_path).write_bytes(parent)
    assert ahead_of_time.scheduled(GPU, tmp_path) == "1 kernel with a tuned schedule; 1 not compiled yet"
    cached_path(ahead_of_time.registry.parse_instance(names[1]), tmp_path).write_bytes(b"\x7fELF")
    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "probe", lambda: {"gpu": GPU})
    (said,) = (found.version for found in doctor._schedules())
    assert said == f"1 kernel with a tuned schedule; 1 without: {UNNAMED}"


# --- where kernels are loaded -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    from tests.gemm import stand_in

    pytest.importorskip("torch")
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture
def loaded(
    library: Path, pair: tuple[bytes, bytes, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[list[bytes], Callable[[], Any]]]:
    """The cubins that reach the driver, and a product whose kernel's cubin is the pair's parent."""
    import torch

    from sassafras.gemm.matmul import api as room
    from sassafras.gemm.matmul.driver import Driver
    from sassafras.gemm.matmul.planner import Planner
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow, TunedTable
    from tests.gemm import stand_in

    config, (parent, _, row) = parse(CONFIG), pair
    rows = file_of(tmp_path / "rows.jsonl", row | {"entry": config.instance.name})
    monkeypatch.setattr(schedules, "SHIPPED", rows)
    cached_path(config.instance, tmp_path).write_bytes(parent)
    seen: list[bytes] = []

    class Watched(Driver):
        def load(self, ordinal: int, cubin: bytes, *more: Any, **named: Any) -> int:
            seen.append(cubin)
            return super().load(ordinal, cubin, *more, **named)

    table = TunedTable({"gpu": GPU}, [TableRow(Shape(32, 48, 64), "tn", ((config, 1.0),), 2.0)])
    driver, side = Watched(str(library)), stand_in.torch_side()
    engine = Planner(driver, side, cache=tmp_path, background=False, table=table)
    room.use(engine, device="cpu")
    a, b = torch.randn(32, 64).half(), torch.randn(48, 64).half()

    def product() -> Any:
        assert room.matmul(a, b.t()).shape == (32, 48)
        return room.status()["schedules"]

    yield seen, product
    room.use(None)


def test_the_tuned_code_is_loaded_and_the_cache_keeps_the_compilers(
    loaded: tuple[list[bytes], Callable[[], Any]], pair: tuple[bytes, bytes, dict[str, Any]], tmp_path: Path
) -> None:
    seen, product = loaded
    parent, tuned, _ = pair
    assert product() == product() == "1 kernel with a tuned schedule" and seen == [tuned]
    assert cached_path(parse(CONFIG).instance, tmp_path).read_bytes() == parent


def test_another_compilers_output_is_loaded_as_it_is(
    loaded: tuple[list[bytes], Callable[[], Any]], tmp_path: Path
) -> None:
    seen, product = loaded
    other = matmul_cubin()
    cached_path(parse(CONFIG).instance, tmp_path).write_bytes(other)
    assert product() == f"0 kernels with a tuned schedule; 1 without: {UNNAMED}"
    assert seen == [other]


def test_the_switch_loads_the_compilers(
    loaded: tuple[list[bytes], Callable[[], Any]],
    pair: tuple[bytes, bytes, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, product = loaded
    monkeypatch.setenv(VARIABLE, "off")
    assert product() == f"0 kernels with a tuned schedule; 1 without: {VARIABLE}=off"
    assert seen == [pair[0]]


def test_the_benchmark_times_the_code_that_is_served(
    pair: tuple[bytes, bytes, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sassafras.gemm.bench.contestants import Contestants

    parent, tuned, row = pair
    instance = parse(CONFIG).instance
    rows = file_of(tmp_path / "rows.jsonl", row | {"entry": instance.name})
    cached_path(instance, tmp_path).write_bytes(parent)

    def loaded(schedules_of: str) -> Any:
        monkeypatch.setenv(VARIABLE, schedules_of)
        stage = Contestants.__new__(Contestants)
        stage._functions, stage._cache = {}, tmp_path
        stage.gpu = SimpleNamespace(name=GPU, load=lambda code, name: code)  # type: ignore[assignment]
        return stage.function(instance)

    assert loaded(str(rows)) == tuned and loaded("off") == parent
