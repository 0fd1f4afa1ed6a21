"""What is said of it: to the process itself, to another one, and on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sassafras import deploy
from sassafras.deploy import records
from sassafras.deploy.records import read_statuses

from . import stock
from .boundary import H200, Driver, sha
from .conftest import forget, kernel_of, launch, retuned, save


@pytest.fixture
def store(driver: Driver, tmp_path: Path) -> Path:
    kernel = kernel_of(launch(stock.scale))
    save(tmp_path / "store.sqlite", kernel, retuned(kernel.cubin))
    forget(stock)
    driver.loads.clear()
    return tmp_path / "store.sqlite"


def sassafras(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sassafras", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False,
    )  # fmt: skip


def test_importing_is_light() -> None:
    program = (
        "import sys, sassafras, sassafras.deploy; sassafras.install, sassafras.status, sassafras.uninstall;"
        "heavy = ('torch', 'triton', 'numba', 'cuda', 'numpy', 'sqlite3', 'elftools');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_process_reads_what_was_loaded(
    driver: Driver, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "status"
    monkeypatch.setattr(sys, "argv", ["/some/where/serve.py", "--token=secret"])
    deploy.install(store, status_dir=folder)
    launch(stock.scale)
    launch(stock.shift)
    (told,) = read_statuses(folder)
    mine = deploy.status()
    assert told.kernels == mine.kernels and told.active and told.store == str(store)
    assert [(k.name, k.loaded) for k in told.kernels] == driver.loads
    assert (told.process["pid"], told.process["alive"]) == (os.getpid(), True)
    assert "secret" not in next(folder.iterdir()).read_text()
    done = sassafras("status", folder, "--store", store, "--json")
    shown = json.loads(done.stdout)
    assert [k["loaded"] for k in shown["processes"][0]["kernels"]] == [d for _, d in driver.loads]
    assert shown["store"] == {"path": str(store), "state": "ok", "tuned": {H200: 1}}
    text = sassafras("status", folder, "--store", store).stdout
    assert f"serve.py (pid {os.getpid()}, running)" in text and driver.loads[0][1][:16] in text
    deploy.uninstall()
    (told,) = read_statuses(folder)
    assert not told.active and told.reason == "uninstalled" and len(told.kernels) == 2


def test_a_damaged_or_foreign_status_file_harms_nothing(driver: Driver, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "status"
    deploy.install(store, status_dir=folder)
    launch(stock.scale)
    (path,) = folder.iterdir()
    path.write_text(path.read_text() + '{"event": "loaded", "name": "cut of')
    (folder / "other.jsonl").write_text("not ours\n")
    (told,) = read_statuses(folder)
    assert len(told.kernels) == 1


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (0, {"pid": None}),
        (0, {"pid": 10**30}),
        (1, {"deny": 3}),
        (2, {"original": None}),
        (2, {"speedup": "x"}),
    ],
)
def test_a_status_of_other_types_is_shown_as_far_as_it_is_one(
    driver: Driver, store: Path, tmp_path: Path, line: int, change: dict[str, object]
) -> None:
    deploy.install(store, status_dir=tmp_path / "status")
    launch(stock.scale)
    (path,) = (tmp_path / "status").iterdir()
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["process", "state", "loaded"]
    rows[line] |= change
    path.write_text("\n".join(map(json.dumps, rows)) + "\n" + "[" * 100_000)
    (told,) = read_statuses(tmp_path / "status")
    assert f"of {int(line == 0)} loaded" in str(told)


def test_a_status_that_cannot_be_written_stops_nothing(driver: Driver, store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    deploy.install(store, status_dir=tmp_path / "file" / "status")
    launch(stock.scale)
    assert deploy.status().kernels[0].tuned
    assert "the status file cannot be written" in deploy.status().reason


def test_status_where_there_is_nothing(tmp_path: Path) -> None:
    done = sassafras("status", SASSAFRAS_STORE=str(tmp_path / "none.sqlite"), SASSAFRAS_DENY="a,b")
    assert done.returncode == 0
    (line,) = (line for line in done.stdout.splitlines() if "there is no store here" in line)
    assert line.count(".sqlite") == 1, "its place is named once"
    assert "SASSAFRAS_DENY=a,b" in done.stdout
    assert not (tmp_path / "none.sqlite").exists()
    done = sassafras("status", tmp_path / "nowhere")
    assert done.returncode == 2 and "there is no such folder" in done.stderr


def test_an_unsupported_triton_is_left_alone(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton
    from triton.compiler.compiler import CompiledKernel

    own = CompiledKernel._init_handles
    for version in ("3.5.1", "3.10.0", "4.0", "2.1.0", "nonsense"):
        monkeypatch.setattr(triton, "__version__", version)
        told = deploy.install()
        assert not told.active and "not one that this was checked on (3.6 to 3.9)" in told.reason
        assert CompiledKernel._init_handles is own
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda self: None)
    told = deploy.install()
    assert not told.active and "in another way than expected" in told.reason


#: a program that knows nothing of us; its driver is the tests' stand-in for CUDA
PROGRAM = """
import sys
from triton.runtime import driver
from tests.deploy.boundary import Driver
from tests.deploy import stock
from tests.deploy.conftest import launch
made = Driver()
driver.set_active(made)
launch(stock.scale)
print(made.loads[0][1], sys.argv[1:], "sitecustomize" in sys.modules)
"""


def test_run_installs_without_touching_the_program(
    driver: Driver, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's name cannot be known here, so that the lookup ends there; see tests/gpu for the rest."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.theirs = True; print('theirs')\n")
    root = Path(__file__).resolve().parents[2]
    done = sassafras(
        "run", "--store", store, "--status", tmp_path / "status",
        "--", sys.executable, tmp_path / "program.py", "--debug", "--store", "x",
        PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), str(root)]),
        TRITON_CACHE_DIR=str(tmp_path / "triton-cache"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs, line = done.stdout.splitlines()[-2:]
    original = kernel_of(launch(stock.scale)).digest
    assert theirs == "theirs" and line == f"{original} ['--debug', '--store', 'x'] True"
    (told,) = read_statuses(tmp_path / "status")
    assert told.active and told.process["program"] == "program.py" and told.process["alive"] is False
    assert told.kernels[0].original == original
    assert "libcuda" in told.kernels[0].reason or "cuInit" in told.kernels[0].reason or told.kernels[0].gpu


def test_a_program_without_triton_pays_for_no_import(tmp_path: Path) -> None:
    done = sassafras(
        "run", "--status", tmp_path, "--", sys.executable, "-c",
        "import sys; print([m for m in ('triton','numpy','sqlite3','torch') if m in sys.modules])",
    )  # fmt: skip
    assert done.stdout.strip() == "[]" and list(tmp_path.iterdir()) == []


def test_a_status_that_cannot_be_written_is_said_before_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in (tmp_path / "file", "this is a file"), (tmp_path / "file" / "x", "Not a directory"):
        done = sassafras("run", "--status", folder, "--", sys.executable, "-c", "print('ran')")
        assert done.returncode == 0 and done.stdout == "ran\n"
        assert f"no status is written: {folder}: results cannot be written there: {why}" in done.stderr


def test_run_says_what_it_sets_and_what_it_cannot_run() -> None:
    out = sassafras("run", "--print-env", "--deny", "a b").stdout
    assert "export SASSAFRAS_AUTOINSTALL=1" in out and "export SASSAFRAS_DENY='a b'" in out
    done = sassafras("run", "--", "/no/such/program")
    assert done.returncode == 2 and "cannot run it" in done.stderr
    assert sassafras("run").returncode == 2


def test_tuned_cubin_and_override_file(driver: Driver, store: Path, tmp_path: Path) -> None:
    import triton

    original = launch(stock.scale).asm["cubin"]
    tuned = deploy.tuned_cubin(original, H200, store=store)
    assert tuned == retuned(original)
    assert deploy.tuned_cubin(original, "NVIDIA A100-SXM4-80GB", store=store) == original
    assert deploy.tuned_cubin(original, H200, kernel="other", store=store) == original
    assert deploy.tuned_cubin(original, H200, store=tmp_path / "none") == original
    assert deploy.tuned_cubin(b"anything", H200, store=store) == b"anything"
    assert [k.tuned for k in deploy.status().kernels][:2] == [True, False]
    path = deploy.override_file(original, tmp_path / "files", H200, store=store)
    assert path is not None and Path(path).stem == sha(tuned)
    assert deploy.override_file(original, tmp_path / "files", "other", store=store) is None
    # through Triton's own door
    config = triton.Config({"BLOCK": 256}, num_warps=4, ir_override=path)
    again = triton.autotune([config], key=["n"])(stock.scale)
    driver.loads.clear()
    compiled = launch(again)
    assert compiled.asm["cubin"] == tuned and {d for _, d in driver.loads} == {sha(tuned)}


def test_a_forked_child_tells_of_itself_only(driver: Driver, store: Path, tmp_path: Path) -> None:
    deploy.install(store, status_dir=tmp_path / "status")
    launch(stock.scale)
    pid = os.fork()
    if pid == 0:
        try:
            fine = deploy.status().active and deploy.status().kernels == ()
            forget(stock)
            launch(stock.scale)
            fine = fine and len(deploy.status().kernels) == 1
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    told = {status.process["pid"]: len(status.kernels) for status in read_statuses(tmp_path / "status")}
    assert told == {os.getpid(): 1, pid: 1}


def test_threads_that_write_first_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = records.process
    monkeypatch.setattr(records, "process", lambda: (time.sleep(0.02), real())[1])
    journal, begin = records.LaunchJournal(tmp_path), threading.Barrier(6)

    def work(number: int) -> None:
        begin.wait()
        journal.write("state", {"number": number})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["process", *["state"] * 6] and not journal.problem
    assert sorted(line["number"] for line in lines[1:]) == list(range(6))
