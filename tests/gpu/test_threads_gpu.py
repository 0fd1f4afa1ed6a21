"""Concurrent calls of `sassafras.matmul` on a GPU; streams that are destroyed; graphs that are dropped."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

from sassafras.gemm.configs import registry  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402

THREADS = 6
#: of each thread, by launcher; each round is a product that is checked
ROUNDS = {"compiled": 10_000, "python": 2_000}


def configuration(shape: Shape, layout: str, suits: Callable[[Any, Any], bool]) -> Any:
    """A configuration that needs what is asked for."""

    every = [mode for c in registry.legal(shape) if c.layout == layout for mode in c.in_modes()]
    legal = [c for c in every if suits(c, c.launch(shape))]
    return min(legal, key=lambda c: (c.estimate_us(shape), c.name))


#: shape, layout, what its kernel has to need
PROBLEMS = (
    (Shape(64, 128, 512), "tn", lambda c, launch: c.FAMILY == "small"),
    (Shape(128, 256, 512), "nn", lambda c, launch: c.FAMILY == "split_k"),
    (Shape(64, 64, 4096), "tn", lambda c, launch: c.FAMILY == "split_k" and c.ranges > 1),
    (Shape(64, 192, 4096), "nn", lambda c, launch: c.mode.pdl and launch.then is None),
    (Shape(384, 640, 1024), "tn", lambda c, launch: c.FAMILY == "persistent"),
    (Shape(128, 128, 4096), "nn", lambda c, launch: launch.then is not None),
    (Shape(67, 71, 333), "tn", lambda c, launch: c.FAMILY == "unaligned"),
)


@pytest.fixture(params=["compiled", "python"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module on an engine of its own, with one of the launchers; its chooser knows `PROBLEMS` alone."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs a Hopper GPU")
    from sassafras.core import ToolMissing
    from sassafras.gemm.build import launcher as launchers
    from sassafras.gemm.build.cubins import build
    from sassafras.gemm.matmul import api
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TableRow, TunedTable

    chosen = [(shape, layout, configuration(shape, layout, suits)) for shape, layout, suits in PROBLEMS]
    build(i for _, _, config in chosen for i in config.instances)
    before = api._engine, api._device, api._launch
    if request.param == "python":

        def no_compiler(*_: Any) -> Any:
            raise ToolMissing("this test wants the Python launcher")

        monkeypatch.setattr(launchers, "build", no_compiler)
        monkeypatch.setattr(launchers, "loaded", lambda: None)
    api.use(None)
    api._set_up()
    api.settle()
    assert api.status()["launcher"] == request.param, api.status()["notes"]
    rows = [TableRow(shape, layout, ((config, 1.0),), 1e4) for shape, layout, config in chosen]
    api._engine.gpu(0).chooser = Selector(TunedTable({}, rows))
    yield api
    torch.cuda.synchronize()
    api._engine, api._device, api._launch = before


class Problem:
    """Operands of small integers: every order of summation gives the same bits."""

    def __init__(self, shape: Shape, layout: str, seed: int) -> None:
        generator = torch.Generator(device="cuda")
        generator.manual_seed(seed)

        def small(*extents: int) -> Any:
            return torch.randint(-2, 3, extents, generator=generator, device="cuda").half()

        self.a = small(shape.m, shape.k)
        self.b = small(shape.k, shape.n) if layout == "nn" else small(shape.n, shape.k).t()
        self.c = (self.a.float() @ self.b.float()).half()


def problems(seed: int) -> list[Problem]:
    return [Problem(shape, layout, seed + i) for i, (shape, layout, _) in enumerate(PROBLEMS)]


def together(work: Callable[[int], None]) -> list[str]:
    """`THREADS` threads, which begin at once; what they raised."""
    faults: list[str] = []
    begin = threading.Barrier(THREADS)

    def guarded(number: int) -> None:
        try:
            begin.wait(60)
            work(number)
        except BaseException as error:
            faults.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


def test_threads_get_right_products(room: Any) -> None:
    """First calls at once, mixed problems, plans that are dropped meanwhile; every product is checked."""
    engine = room._engine
    kind = room.status()["launcher"]
    rounds, wrong = ROUNDS[kind], torch.zeros(THREADS, dtype=torch.int64, device="cuda")
    sets = [problems(100 * number) for number in range(THREADS)]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        draw = np.random.default_rng(number)
        stream = torch.cuda.Stream()
        outs = [torch.empty_like(p.c) for p in sets[number]]
        with torch.cuda.stream(stream):
            for turn in range(rounds):
                index = int(draw.integers(len(PROBLEMS))) if turn else number % len(PROBLEMS)
                p = sets[number][index]
                c = room.matmul(p.a, p.b, outs[index]) if turn % 3 == 0 else room.matmul(p.a, p.b)
                wrong[number] += (c != p.c).any()
                if turn % 500 == 499:
                    stream.synchronize()
                    if number < 2:
                        engine.launcher.forget()  # the next calls of everyone are first ones
                if turn % 2000 == 1999:
                    room.settle()
        stream.synchronize()

    begin = time.perf_counter()
    faults = together(work)
    torch.cuda.synchronize()
    members = {p["shape"]: p["member"] for p in room.status()["problems"]}
    counts = room.status()["counts"]
    print(
        f"{kind}: {THREADS * rounds} products by {THREADS} threads, {int(wrong.sum())} wrong, "
        f"{time.perf_counter() - begin:.0f} s; {counts}"
    )
    assert not faults and not wrong.any(), (faults, wrong.tolist())
    assert set(members.values()) == {"ours"} and len(members) == len(PROBLEMS), room.status()
    assert counts["refused"] == 0 and counts["hits"] > 0.9 * THREADS * rounds


def with_workspace(room: Any) -> Problem:
    """A problem of two launches that share a workspace, served."""
    index = 5
    p = Problem(*PROBLEMS[index][:2], seed=7)
    room.matmul(p.a, p.b)
    room.settle()
    assert torch.equal(room.matmul(p.a, p.b), p.c)
    return p


def test_streams_that_are_destroyed_while_they_work(room: Any) -> None:
    """A handle is used again, perhaps while its old stream's launches wait."""
    driver = pytest.importorskip("cuda.bindings.driver")
    p = with_workspace(room)
    handles, ids = set(), set()
    busy = torch.empty(1 << 26, dtype=torch.float32, device="cuda")
    outs = [torch.empty_like(p.c) for _ in range(300)]
    torch.cuda.synchronize()
    kept, reused = [], 0
    for number, out in enumerate(outs):
        code, made = driver.cuStreamCreate(1)
        assert int(code) == 0
        handle = int(made)
        reused += handle in handles
        handles.add(handle)
        ids.add(int(driver.cuStreamGetId(made)[1]))
        stream = torch.cuda.ExternalStream(handle)
        with torch.cuda.stream(stream):
            if number % 10 == 0:
                busy.fill_(number)  # what follows waits while others come
            kept.append(room.matmul(p.a, p.b, out))
        assert int(driver.cuStreamDestroy(made)[0]) == 0
    torch.cuda.synchronize()
    print(f"{len(outs)} streams, {reused} handles used again, {len(ids)} ids")
    assert all(torch.equal(out, p.c) for out in outs)
    assert len(ids) == len(outs)


def test_each_threads_own_stream(room: Any) -> None:
    """Handle 2 means another stream in every thread: launches with scratch are torch's there, and right."""
    p = with_workspace(room)
    outs = [[torch.empty_like(p.c) for _ in range(200)] for _ in range(THREADS)]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(2)):
            for out in outs[number]:
                room.matmul(p.a, p.b, out)

    hits = room.status()["counts"]["hits"]
    assert not together(work)
    torch.cuda.synchronize()
    assert all(torch.equal(out, p.c) for each in outs for out in each)
    assert room.status()["counts"]["hits"] == hits + THREADS * 200, "the plan was found"


def test_graphs_beside_each_other_and_dropped(room: Any) -> None:
    """Replayed at once on two streams; the workspaces of graphs that are gone are given to others."""
    p = with_workspace(room)
    for _ in range(30):
        graphs, outs = [], []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs.append([room.matmul(p.a, p.b) for _ in range(3)])
            graphs.append(graph)
        streams = [torch.cuda.Stream() for _ in graphs]
        for _ in range(20):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, p.c) for each in outs for out in each)
        del graph, graphs, outs
        gc.collect()
        torch.cuda.synchronize()
