"""The HGEMM benchmark on two Ray nodes, one of which dies; kernels compiled on their CPUs."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app
from sassafras.cluster import Pool, connected
from sassafras.cluster.gemm import ClusterCrew
from sassafras.core import CompileError, DeviceError, SassafrasError
from sassafras.gemm.bench import runs
from sassafras.gemm.bench.journal import journals, read
from sassafras.gemm.bench.options import Options
from sassafras.gemm.build.cubins import cached_path
from sassafras.gemm.configs.registry import INSTANCES
from sassafras.gemm.problem.shape import Shape

from .conftest import Nodes

#: as many that the node dies long before they are done, wherever they run
SHAPES = tuple(Shape(*extents) for extents in itertools.product((64, 128, 256), repeat=3))
OPTIONS = Options(configs=12, finalists=2, seconds=0.01, walls=4, cold=False)


def ray_is_connected() -> bool:
    import ray

    return bool(ray.is_initialized())


def _compile_on_cpus(nodes: Nodes, folder: Path) -> None:
    """On the CPUs that no worker holds; the driver does none of it."""
    said: list[str] = []
    with Pool(nodes.address, device="model", workers=1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sassafras.cluster.gemm.cubin", lambda *a: pytest.fail("the driver compiled"))
        assert pool.spare_cpus() == 3
        crew = ClusterCrew(pool)
        for _ in range(2):
            crew.prepare(folder, said.append, INSTANCES[:2])
        assert said[0].startswith("2 kernels compiled") and said[1].startswith("0 kernels compiled")
        for instance in INSTANCES[:2]:
            assert cached_path(instance, folder).read_bytes()[:4] == b"\x7fELF"
        with pytest.raises(SassafrasError, match="no instance has this name") as caught:
            pool.map(_compiled, ["lean_of_no_family"])
        assert not isinstance(caught.value, (DeviceError, CompileError))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_a_killed_node_costs_no_shape(nodes: Nodes, tmp_path: Path) -> None:
    if shutil.which("nvcc"):  # on these nodes too: starting others takes longer than all of it
        _compile_on_cpus(nodes, tmp_path / "cubins")
    with connected(nodes.address):  # pools made meanwhile share it
        with Pool(nodes.address, device="model", workers=1) as pool:
            assert pool.size == 1
        assert ray_is_connected()
    assert not ray_is_connected()
    said: list[str] = []

    def watch(text: str) -> None:
        if not said:  # the first record of all
            nodes.kill()
        said.append(text)

    with Pool(nodes.address, device="model") as pool:
        assert pool.size == 4
        crew = ClusterCrew(pool)
        settings = runs.RunSettings(tmp_path, OPTIONS, crew=crew, dry=True, say=watch)
        rows, summary = runs.run(SHAPES, settings, processes=2)
        assert pool.lost >= 1 and crew.environment()["device"]
    assert any("lost its worker and is done again" in text for text in said)
    assert summary["measured"] == len(SHAPES) and summary["pending"] == summary["failed"] == 0
    assert [row["shape"] for row in rows] == [str(shape) for shape in SHAPES]
    for stem in ("hgemm-select", "hgemm-offline-0", "hgemm-offline-1"):
        (path,) = journals(tmp_path, stem)  # results of all nodes in one file
        found = read(path)[1:]
        assert sorted(record["shape"] for record in found) == sorted(map(str, SHAPES)), "each exactly once"
        assert not any("error" in record for record in found)
    where = {
        number: {
            record["shape"]: record["on"]
            for record in read(journals(tmp_path, f"hgemm-offline-{number}")[0])[1:]
        }
        for number in (0, 1)
    }
    assert where[0] == where[1], "no row mixes two workers"
    # what the cluster did is known to this host alone, too
    alone = runs.RunSettings(tmp_path, OPTIONS, dry=True, say=lambda text: None)
    again, _ = runs.run(SHAPES, alone, processes=2)
    assert again == rows


def _compiled(name: str) -> bytes:
    from sassafras.cluster.gemm import compiled

    return compiled(name)


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    run = CliRunner()
    common = ["tune", "--products", "64x64x64", "--dry-run", "--out", str(tmp_path)]
    done = run.invoke(app, [*common, "--workers", "2"])
    assert done.exit_code == 2 and "--workers is for --cluster" in done.output
    done = run.invoke(app, [*common, "--gpus", "2", "--cluster", "auto"])
    assert done.exit_code == 2 and "--gpus is for this host" in done.output
