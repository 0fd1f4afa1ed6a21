"""Products of a program: recorded, tuned on the modelled clock, kept in a table, served from it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.bench import program  # noqa: E402
from sassafras.gemm.bench.journal import read  # noqa: E402
from sassafras.gemm.configs.names import parse  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.loading import load_table  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import Problem  # noqa: E402
from sassafras.gemm.matmul.recorder import Recorder, recorded  # noqa: E402
from sassafras.gemm.problem.shape import Product, Shape  # noqa: E402
from sassafras.gemm.select.table import ProductRow, TableRow, TunedTable  # noqa: E402
from tests.cli.in_process import sassafras as command_line  # noqa: E402
from tests.gemm.test_matmul import TN, Install, cache, half, install, launches, library, table  # noqa: E402
from tests.shared import python_path  # noqa: E402

__all__ = ["cache", "install", "library"]  # fixtures
ROOT = Path(__file__).parents[2]
KINDS = [
    Product(Shape(1, 4096, 4096), "tn"),
    Product(Shape(17, 1024, 512), "tn", "bf16", bias=True, addend=True),
    Product(Shape(64, 512, 512), "nt"),
    Product(Shape(64, 1024, 512), "nn", "bf16", activation="gelu", scaled=True),
]


def row(product: Product, member: str = "ours", us: float = 1.0) -> ProductRow:
    ours = ((parse(TN), us),) if member == "ours" else ()
    lt = {"layout": "tn", "blob": "00" * 64, "workspace": 0} if member == "lt" else None
    return ProductRow(product, 3, member, ours, us, 2.0, 1.5, lt, 7 if lt else None)


# --- the table -------------------------------------------------------------------------------------------


def test_products_keep_their_rows_in_a_table(tmp_path: Path) -> None:
    for product in KINDS:
        assert Product.from_json(json.loads(json.dumps(product.to_json()))) == product
        assert Problem.of(product).product == product
    rows = [row(KINDS[0]), row(KINDS[1], "torch"), row(KINDS[0]._replace(dtype="bf16"), "lt")]
    shipped = TableRow(Shape(64, 64, 64), "tn", ((parse(TN), 1.0),), 2.0)
    TunedTable({"gpu": "NVIDIA H200"}, [shipped], rows).save(tmp_path / "a.json")
    found = TunedTable.load(tmp_path / "a.json")
    assert found.products == {r.product: r for r in rows} and list(found.rows.values()) == [shipped]
    found.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    # a reader of the format's earlier files finds all that it knows of
    text = json.loads((tmp_path / "a.json").read_text())
    assert text["header"]["sassafras_hgemm_table"] == 2 and len(text["rows"]) == 1
    times = [{key: us} for key in ("us", "torch_us", "before_us") for us in (0, -1.0, float("nan"), "x")]
    for spoilt in ({"ours": [[99, 1.0]]}, {"ours": [[0, 0]]}, {"member": "other"}, *times):
        other = {**text, "products": [{**text["products"][0], **spoilt}]}
        (tmp_path / "c.json").write_text(json.dumps(other))
        with pytest.raises(SassafrasError, match="not a table"):
            TunedTable.load(tmp_path / "c.json")
    m, n, k, layout, ours, torch_us, lt_us, lt = text["rows"][0]
    for bad in (0, -1, float("nan"), "x"):
        for at in ([[0, bad]], torch_us, lt_us), (ours, bad, lt_us), (ours, torch_us, bad):
            (tmp_path / "c.json").write_text(json.dumps({**text, "rows": [[m, n, k, layout, *at, lt]]}))
            with pytest.raises(SassafrasError, match="not a table"):
                TunedTable.load(tmp_path / "c.json")


def test_tables_that_are_installed_at_a_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "gpu.table.json"
    products = [Product(Shape(m, 64, 64), "tn") for m in range(1, 25)]

    def some(mine: list[Product]) -> None:
        for product in mine:
            TunedTable({"gpu": "NVIDIA H200"}, (), [row(product)]).install(path)

    threads = [threading.Thread(target=some, args=(products[at::6],)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*TunedTable.load(path).products} == {*products}
    with pytest.raises(SassafrasError, match=r"cannot be kept there: File exists .*SASSAFRAS_GEMM_TABLE"):
        TunedTable({}, ()).install(path / "below a file")


def test_products_of_a_program_lie_on_top_of_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "shared.json"
    monkeypatch.setenv("SASSAFRAS_GEMM_TABLE", str(path))
    shipped = len(load_table_without(monkeypatch))
    for header, count in (
        ({"gpu": "NVIDIA H200", "cublaslt": 1}, 1),
        ({"gpu": "NVIDIA H100 80GB HBM3"}, 0),
        ({"gpu": "NVIDIA H200", "modelled": True}, 0),
    ):
        TunedTable(header, (), [row(KINDS[0])]).save(path)
        said: list[str] = []
        found = load_table("NVIDIA H200", said.append)
        assert found is not None and len(found.products) == count and len(found) == shipped > 0
        assert found.header["cublaslt"] != 1, "cuBLASLt's version is that of the rows"
        assert bool(said) == (count == 0)
    TunedTable({"gpu": "NVIDIA H200"}, table().rows.values()).save(path)
    alone = load_table("NVIDIA H200")
    assert alone is not None and len(alone) == len(table()), "a table with rows replaces what is shipped"


def load_table_without(monkeypatch: pytest.MonkeyPatch) -> TunedTable:
    with monkeypatch.context() as inner:
        inner.delenv("SASSAFRAS_GEMM_TABLE")
        found = load_table("NVIDIA H200")
    assert found is not None
    return found


def test_a_tuned_product_is_served_as_it_was_tuned(install: Install, library: Path) -> None:
    """128 x 128 x 128 in tn is no row, and 64 x 64 x 64 is ours by its row: the program's tuning decides."""
    here = Product(Shape(32, 48, 64), "tn"), Product(Shape(64, 64, 64), "tn")
    tuned = TunedTable({"gpu": "NVIDIA H200"}, table().rows.values(), [row(here[0]), row(here[1], "torch")])
    for launcher in ("compiled", "python"):
        install(launcher, table=tuned)
        before = launches(library)
        room.matmul(half(32, 64), half(48, 64).t())
        assert launches(library) == before + 1
        room.matmul(half(64, 64), half(64, 64).t())
        assert launches(library) == before + 1, "torch, though ours leads back to back"
        served = {p["shape"]: p["why"] for p in room.status()["problems"]}
        assert served["32x48x64"] == "tuned in a program: ours is the fastest"
        assert served["64x64x64"] == "tuned in a program: torch is the fastest"
        assert room.status()["gpus"]["0"]["tuned_products"] == 2


# --- the recorder ----------------------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest, install: Install) -> Planner:
    return install(request.param)


def test_calls_are_counted_with_what_they_ask_for(engine: Planner) -> None:
    x, weight, bias, rest = half(4, 64), half(48, 64), half(48), half(4, 48)
    plain = Product(Shape(4, 48, 64), "tn")
    with sassafras.record() as counted, torch.no_grad():
        for _ in range(3):
            sassafras.linear(x, weight)
        sassafras.linear(x, weight, bias, "gelu", rest)
        sassafras.matmul(x, weight.t(), out=torch.empty_like(rest))
        sassafras.matmul(half(2, 2, 64), half(64, 48))
        sassafras.matmul(half(2, 4, 64), half(2, 64, 48))
        sassafras.matmul(torch.randn(4, 64), torch.randn(64, 48))  # FP32 is torch's
    assert counted.calls == {
        plain: 4,
        plain._replace(bias=True, activation="gelu", addend=True): 1,
        plain._replace(layout="nn"): 1,
    }
    assert counted.others == 1
    sassafras.linear(x, weight)
    assert counted.calls[plain] == 4, "nothing counts afterwards"


def test_nothing_is_in_the_way_of_a_call_that_is_not_recorded(engine: Planner) -> None:
    with sassafras.record():
        assert room._launch is not engine.launcher
    assert room._launch is engine.launcher and room._launch_linear == engine.launcher.linear


def test_layers_gradients_and_compiled_programs_are_counted(engine: Planner) -> None:
    x, weight = half(32, 64).requires_grad_(), half(48, 64)
    forward = Product(Shape(32, 48, 64), "tn")
    with sassafras.record() as counted:
        sassafras.matmul(x, weight.t()).backward(half(32, 48))
    assert counted.calls[forward] == 1 and counted.calls.total() == 2, "and the gradient of x"
    compiled = torch.compile(lambda x: sassafras.linear(x, weight) + 1, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), sassafras.record() as counted:
        for _ in range(3):
            compiled(x.detach())
    assert counted.calls == {forward: 3}


def test_threads_lose_no_call(engine: Planner) -> None:
    weight, threads, each = half(48, 64), 6, 150

    def work(rows: int) -> None:
        x = half(rows, 64)
        for _ in range(each):
            sassafras.linear(x, weight)

    with sassafras.record() as counted:
        running = [threading.Thread(target=work, args=(1 + n % 2,)) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert sorted(counted.calls.values()) == [threads // 2 * each] * 2


def test_replays_of_a_graph_count(engine: Planner) -> None:
    """The class stands for torch's, which needs a GPU."""

    class Graph:
        played = 0

        def capture_begin(self, pool: Any = None) -> None: ...

        def capture_end(self) -> None: ...

        def replay(self) -> None:
            self.played += 1

    counted, graph, key = Recorder(), Graph(), tuple(Problem.of(KINDS[0]))
    counted.watch_graphs(Graph)
    counted.count(key)
    graph.capture_begin(pool=None)
    counted.count(key)
    counted.count(key)
    graph.capture_end()
    for _ in range(10):
        graph.replay()
    assert counted.calls == {KINDS[0]: 1 + 2 + 10 * 2} and graph.played == 10
    counted.leave_graphs(Graph)
    graph.replay()
    assert counted.calls.total() == 23 and "replay" in Graph.__dict__


def test_a_call_that_torch_serves_counts_once(install: Install) -> None:
    far = TableRow(Shape(15, 48, 64), "tn", ((parse(TN), 1e3),), 1.0)
    install(table=TunedTable({"gpu": "NVIDIA H200"}, [far]))
    x, weight = half(15, 64).requires_grad_(), half(48, 64)
    with sassafras.record() as counted:
        for _ in range(3):
            sassafras.linear(x, weight, activation="relu")
    assert [*counted.calls.values()] == [3]


def test_a_folder_that_takes_no_record_is_said_once(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the program goes on; so does a forked one, whose parent's calls are not its own."""
    (tmp_path / "file").write_text("")
    one = Recorder(tmp_path / "file" / "folder")
    with pytest.warns(RuntimeWarning, match="SASSAFRAS_GEMM_RECORD=.*cannot be recorded there: Not a dir"):
        one.count(tuple(Problem.of(KINDS[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.count(tuple(Problem.of(KINDS[1])))
        one.save()
    assert one.calls.total() == 2
    (tmp_path / "file").unlink()
    if (child := os.fork()) == 0:
        one.count(tuple(Problem.of(KINDS[0])))
        one.save()
        os._exit(0)
    os.waitpid(child, 0)
    one.save()
    found = {path.stem: recorded([path])[0] for path in (tmp_path / "file" / "folder").iterdir()}
    assert found == {str(child): {KINDS[0]: 1}, str(os.getpid()): {KINDS[0]: 1, KINDS[1]: 1}}


def test_a_fork_counts_while_another_thread_does() -> None:
    """The thread is not in the child, which waited for it for ever."""
    one = Recorder()
    with one._lock:
        if (child := os.fork()) == 0:
            one.count(tuple(Problem.of(KINDS[0])))
            os._exit(one.calls.total())
    end = time.monotonic() + 20
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.02)
    if found == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert os.WIFEXITED(found[1]) and os.WEXITSTATUS(found[1]) == 1 and found[0] == child


def test_a_record_stays_in_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that changed its folder left part of its calls in the one that was named."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    one = Recorder(Path("records"))
    one.count(tuple(Problem.of(KINDS[0])))
    monkeypatch.chdir(tmp_path / "elsewhere")
    one.count(tuple(Problem.of(KINDS[1])))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert recorded([*(tmp_path / "records").iterdir()])[0] == {KINDS[0]: 1, KINDS[1]: 1}


def test_records_of_several_processes_are_added(tmp_path: Path) -> None:
    for number in (1, 2):
        one = Recorder(tmp_path)
        for _ in range(3):
            one.count(tuple(Problem.of(KINDS[0])))
        one.save()
        (tmp_path / f"{os.getpid()}.json").rename(tmp_path / f"{number}.json")
    assert recorded(sorted(tmp_path.glob("*.json"))) == (Counter({KINDS[0]: 6}), {"others": 0})
    (tmp_path / "3.json").write_text("{")
    with pytest.raises(SassafrasError, match=r"3\.json"):
        recorded([tmp_path / "3.json"])


# --- the tuning ------------------------------------------------------------------------------------------


def test_every_kind_of_product_is_tuned_within_the_budget(tmp_path: Path) -> None:
    calls = {product: 10 - at for at, product in enumerate(KINDS)}
    seen: list[str] = []
    begin = time.monotonic()
    found = program.tune_products(calls, tmp_path, budget="60s", dry=True, progress=seen.append)
    assert time.monotonic() - begin < 60 and len(found.rows) == len(KINDS) and found.modelled
    assert [text.split(" of ")[0] for text in seen] == ["1", "2", "3", "4"]
    assert "4 products | about 0:00 left | " in seen[-1]
    for tuned in found.rows:
        served = {"torch": tuned.torch_us, "ours": tuned.ours[0][1] if tuned.ours else None}
        assert tuned.us == served.get(tuned.member, tuned.us) and tuned.calls == calls[tuned.product]
        assert tuned.us <= tuned.torch_us and tuned.us <= tuned.before_us
        if tuned.member != "torch":
            assert tuned.torch_us / tuned.us >= 1.01
    assert {tuned.member for tuned in found.rows} >= {"ours"}
    total = sum(tuned.calls * tuned.us for tuned in found.rows)
    assert found.seconds() == pytest.approx(total * 1e-6)
    written = json.loads(found.path.read_text())
    assert {"kernels", "driver", "cublas", "modelled", "summary"} <= set(written["header"])
    assert TunedTable.load(found.path).products == {tuned.product: tuned for tuned in found.rows}


def test_a_budget_that_is_over_leaves_the_rest_for_the_next_time(tmp_path: Path) -> None:
    said: list[str] = []
    calls = dict.fromkeys(KINDS, 1)
    first = program.tune_products(calls, tmp_path, budget="0.01s", dry=True, say=said.append)
    assert not first.rows and "4 products are left" in said[-1]
    assert len(program.tune_products(calls, tmp_path, dry=True).rows) == 4
    with pytest.raises(SassafrasError, match="tuned for a time"):
        program.tune_products({KINDS[0]: 1}, tmp_path, budget="30e", dry=True)
    with pytest.raises(SassafrasError, match="other conditions"):
        program.tune_products({KINDS[0]: 1}, tmp_path, seed=1, dry=True)
    journal = tmp_path / "program.gpu0.jsonl"
    kept = journal.read_text()
    journal.write_text(re.sub('"torch_us": [0-9.]+', '"torch_us": 0', kept, count=1))
    with pytest.raises(SassafrasError, match=r"a damaged record: .*0 is no time.*remove its line"):
        program.tune_products(calls, tmp_path, dry=True)
    journal.write_text(kept)
    journal.write_text(journal.read_text().replace('"modelled": true', '"modelled": false', 1))
    with pytest.raises(SassafrasError, match="other conditions"):
        program.tune_products(calls, tmp_path, dry=True)


def test_a_tuning_goes_on_from_a_damaged_journal_or_says_so(tmp_path: Path) -> None:
    path, calls = tmp_path / "program.gpu0.jsonl", {KINDS[0]: 1, KINDS[2]: 1}
    program.tune_products(calls, tmp_path, dry=True)
    header, first, second = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"", header[:30], header + b"\xff\n" + first, header + first + second[:40] + b"\n3\n"):
        path.write_bytes(damaged)
        assert len(program.tune_products(calls, tmp_path, dry=True).rows) == 2
    record = json.loads(first)
    for wrong in ({"ours": [1]}, {"ours": None}, {"us": "fast"}, {"member": None}):
        record = {**json.loads(first), **wrong}
        if record["member"] is None:
            del record["member"]
        path.write_bytes(header + json.dumps(record).encode() + b"\n" + second)
        with pytest.raises(SassafrasError, match=r"1x4096.*a damaged record: .*remove its line"):
            program.tune_products(calls, tmp_path, dry=True)


def test_a_folder_of_another_gpu_is_refused_with_nothing_left_to_do(tmp_path: Path) -> None:
    """A shared folder: its results are another machine's, which are not this one's."""
    path, calls = tmp_path / "program.gpu0.jsonl", {KINDS[2]: 1}
    program.tune_products(calls, tmp_path, dry=True)
    assert len(program.tune_products(calls, tmp_path, dry=True).rows) == 1
    first, *rest = path.read_text().splitlines(keepends=True)
    header = json.loads(first)["header"]
    path.write_text(json.dumps({"header": {**header, "gpu": "NVIDIA H100"}}) + "\n" + "".join(rest))
    with pytest.raises(SassafrasError, match=r"other conditions .*--fresh"):
        program.tune_products(calls, tmp_path, dry=True)


def test_a_process_is_told_what_its_tuning_lacks(
    engine: Planner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "_LAST", [])
    with pytest.raises(SassafrasError, match="nothing was recorded"):
        sassafras.tune(out=tmp_path)
    with sassafras.record():
        pass
    with pytest.raises(SassafrasError, match=r"no product was recorded .*accelerate"):
        sassafras.tune(out=tmp_path)


@pytest.fixture
def command(library: Path, cache: Path, tmp_path: Path) -> Iterator[list[str]]:
    own = [sys.executable, "-m", "tests.gemm.program_on_host", str(library), str(cache)]
    yield [
        *(sys.executable, "-m", "sassafras", "tune", "--dry-run", "--out", str(tmp_path / "out")),
        *("--", *own, str(tmp_path / "runs")),
    ]


ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path(ROOT / "src", ROOT)}


def test_a_program_is_recorded_and_tuned_and_a_kill_loses_one_product(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run in a process of its own, to be killed, and the others in this one."""
    journal, runs = tmp_path / "out" / "program.gpu0.jsonl", tmp_path / "runs"
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    killed = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while not (journal.is_file() and journal.read_bytes().count(b"\n") > 1):  # empty when just made
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = read(journal)[1:]
    tune = command[3:]
    status, printed, errors = command_line(*tune)
    assert status == 0, errors
    assert "3 of 3 products tuned (modelled)" in printed
    assert read(journal)[1 : 1 + len(kept)] == kept and runs.read_text() == "run\n"
    by_calls = {
        (text["shape"], text["bias"], text["addend"], text["dtype"]): text["calls"]
        for text in products_of(tmp_path)
    }
    assert by_calls == {
        ("4x1024x512", False, False, "fp16"): 4,
        ("4x1024x512", True, True, "fp16"): 2,
        ("64x128x256", False, False, "bf16"): 1,
    }
    _, printed, _ = command_line(tune[0], "--fresh", "--json", *tune[1:])
    assert json.loads(printed)["tuned"] == 3 and runs.read_text() == "run\nrun\n"
    status, printed, errors = command_line(tune[0], "--quiet", *tune[1:])
    (line,) = printed.splitlines()  # the result alone
    assert status == 0 and "3 of 3 products tuned (modelled)" in line and "wrote" not in errors
    status, _, errors = command_line(*tune, "more")
    assert status == 2 and "what another program calls" in errors


def products_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "out").glob("*.products.json")
    found: list[dict[str, Any]] = json.loads(path.read_text())["products"]
    return found


def test_a_program_without_products_is_told_what_to_do(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        status, _, errors = command_line("tune", "--dry-run", "--out", tmp_path, *words)
        assert status == 2, errors
        return errors

    assert "sassafras.accelerate(model)" in said("--", sys.executable, "-c", "pass")
    assert "no product of sassafras" in said("--", "true")  # found by its name alone
    for text, words in (
        ("", "not a record of products"),
        ('{"products": [', "remove it, and record again"),
        ('{"products": [], "others": 0}', "what another program calls"),
    ):
        (tmp_path / "program.json").write_text(text)
        assert words in (errors := said("--", "true")) and "Traceback" not in errors
    (tmp_path / "program.json").unlink()
    assert "--bands is for --products only" in said("--bands", "<1e8", "--", sys.executable, "-c", "pass")
