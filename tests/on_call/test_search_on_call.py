"""A launch begins a search; its winner takes over; whatever goes wrong, the program does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

import sassafras
from sassafras import deploy
from sassafras.core import SearchError
from sassafras.deploy.records import read_statuses
from sassafras.store import Store
from tests.deploy import stock
from tests.deploy.boundary import Driver, sha
from tests.deploy.conftest import forget, launch

from .conftest import WORKER, wait

#: the worker's first use on a machine compiles for a while
pytestmark = pytest.mark.timeout(900)
BUDGET = "6e"


@triton.jit
def pair(both, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(both[1] + i, tl.load(both[0] + i, mask=i < n), mask=i < n)


def searches(folder: Path) -> list[str]:
    """Functions that workers have searched; the pid of each worker stays out."""
    path = folder / "searches"
    return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []


def test_the_winner_takes_over_and_the_next_start_begins_with_it(
    driver: Driver, calls: Any, folder: Path, store: Path, tmp_path: Path
) -> None:
    sassafras.install(store, tune=BUDGET, status_dir=tmp_path / "status")
    compiled = launch(stock.scale)
    original = sha(compiled.kernel)
    assert driver.loads == [("scale", original)] and driver.launches == [1001]  # at once, the compiler's
    found = wait("scale")
    assert found.state == "done" and "1.100x" in found.detail and found.budget == BUDGET, found
    assert driver.loads == [("scale", original)]  # nothing is loaded behind the program's back
    launch(stock.scale)  # the last with the old handle; the tuned cubin is loaded beside it
    launch(stock.scale)
    with Store.open(store, readonly=True) as opened:
        (winner,) = opened.winners()
    assert (winner.original, winner.gpu) == (original, "NVIDIA H200")
    assert driver.loads == [("scale", original), ("scale", winner.tuned)]
    assert driver.launches == [1001, 1001, 1002]
    assert compiled.kernel == compiled.asm["cubin"] and sha(compiled.kernel) == original
    told = deploy.status()
    assert [k.tuned for k in told.kernels] == [False, True] and "done      scale" in str(told)
    end = time.monotonic() + 20
    while True:  # the file has each state just after the process has it
        (other,) = read_statuses(tmp_path / "status")
        if other.searches == told.searches or time.monotonic() > end:
            break
        time.sleep(0.05)
    assert other.searches == told.searches
    # another start: the first launch runs the tuned cubin, and nothing is searched
    deploy.uninstall()
    forget(stock)
    driver.loads.clear()
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    assert driver.loads == [("scale", winner.tuned)]
    assert "the store had a tuned cubin" in wait("scale").detail
    assert len(set(searches(folder))) == 1


def test_only_the_decorated_kernel_is_searched(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_STORE", str(store))
    assert sassafras.autotune(budget=BUDGET)(stock.shift) is stock.shift
    launch(stock.scale)
    launch(stock.shift)
    assert wait("shift").state == "done"
    assert [s.name for s in deploy.status().searches] == ["shift"]
    launch(stock.shift)
    assert [k.name for k in deploy.status().tuned] == ["shift"]


def test_an_autotuned_kernel_keeps_its_choice_and_the_close_ones_are_searched_too(
    driver: Driver, calls: Any, folder: Path, store: Path
) -> None:
    sassafras.install(store, tune="8e")
    launch(stock.tuned_by_triton)  # the driver's stand-in finds both configurations equally fast
    assert len(driver.loads) == 2
    found = wait("tuned_by_triton")
    assert found.state == "done" and found.detail.count("1.100x") == 2, found
    with Store.open(store, readonly=True) as opened:
        originals = {winner.original for winner in opened.winners()}
    assert originals == {digest for _, digest in driver.loads}
    before = len(driver.launches)
    for _ in range(2):
        launch(stock.tuned_by_triton)
    assert len(driver.loads) == 3 and driver.launches[before:] == [driver.launches[before - 1], 1003]


def test_nothing_is_exchanged_or_searched_while_a_graph_is_captured(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    state = {"capturing": True}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["capturing"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    sassafras.install(store, tune=BUDGET)
    for _ in range(3):
        launch(stock.scale)
    assert not deploy.status().searches and len(driver.loads) == 1
    state["capturing"] = False
    launch(stock.scale)
    assert wait("scale").state == "done"
    state["capturing"] = True
    for _ in range(3):
        launch(stock.scale)
    assert len(driver.loads) == 1 and set(driver.launches) == {1001}
    state["capturing"] = False
    for _ in range(2):
        launch(stock.scale)
    assert len(driver.loads) == 2 and driver.launches[-1] == 1002


@pytest.mark.parametrize("how", ["denied", "disabled", "installed otherwise"])
def test_what_was_found_is_not_exchanged_where_it_was_forbidden_since(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    assert wait("scale").state == "done"
    if how == "denied":
        deploy.deny("scale")
    elif how == "disabled":
        monkeypatch.setenv("SASSAFRAS_DISABLE", "1")
    else:
        deploy.uninstall()
        sassafras.install(store.with_name("other.sqlite"), tune=BUDGET)
        monkeypatch.setenv("SASSAFRAS_TUNE", "off")
    for _ in range(3):
        launch(stock.scale)
    assert len(driver.loads) == 1 and set(driver.launches) == {1001}


def test_what_waits_ends_with_the_deployment(driver: Driver, calls: Any, folder: Path, store: Path) -> None:
    (folder / "busy").touch()
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    launch(stock.shift)
    wait("scale", "waiting")
    deploy.uninstall()
    assert [(s.state, s.detail) for s in deploy.status().searches] == [("refused", "stopped")] * 2


def test_trials_of_one_autotuning_are_kept_at_a_time(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_TUNE", "off")
    sassafras.install(store, tune=BUDGET)
    for n in range(1000, 6000, 1000):  # each is tuned apart; all choose a kernel that was launched before
        launch(stock.tuned_by_triton, n)
    assert sum(map(len, calls._trials.values())) <= 2  # there are two configurations


def test_off_by_the_environment(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_TUNE", "off")
    sassafras.install(store, tune=BUDGET)
    for _ in range(2):
        launch(stock.scale)
    time.sleep(0.5)
    assert not deploy.status().searches and not store.exists() and not searches(folder)


def test_a_worker_killed_in_the_middle_costs_nothing_but_its_search(
    driver: Driver, calls: Any, folder: Path, store: Path
) -> None:
    (folder / "hang").touch()
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    end = time.monotonic() + 240
    while not (folder / "hangs").exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(int((folder / "searches").read_text().split()[0]), signal.SIGKILL)
    found = wait("scale")
    assert (found.state, "signal 9" in found.detail) == ("refused", True), found
    launch(stock.scale)
    assert driver.launches == [1001, 1001] and len(driver.loads) == 1
    # its claim is no one's any more: the next start searches
    (folder / "hang").unlink()
    deploy.uninstall()
    deploy.engine.ENGINE.searches = {}
    forget(stock)
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    assert wait("scale").state == "done" and len(searches(folder)) >= 2


def test_a_busy_gpu_is_waited_for_and_then_given_up(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "busy").touch()
    monkeypatch.setattr(calls, "patience_s", 1.5)
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    found = wait("scale")
    assert found.state == "refused" and "gave up after 1.5 s: the GPU is in use" in found.detail
    assert not searches(folder)


def test_a_store_that_cannot_be_written_is_said_and_harms_nothing(
    driver: Driver, calls: Any, folder: Path, store: Path
) -> None:
    store.write_bytes(b"SQLite format 3\0" + bytes(5000))
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    found = wait("scale")
    assert found.state == "refused" and str(store) in found.detail, found
    launch(stock.scale)
    assert len(driver.loads) == 1


def test_bad_budgets_are_errors_at_once(calls: Any, store: Path) -> None:
    with pytest.raises(SearchError, match="cannot read the budget 'soon'"):
        sassafras.install(store, tune="soon")
    with pytest.raises(SearchError, match="cannot read the budget ''"):
        sassafras.autotune(budget="")


def test_a_settled_launch_costs_one_look(driver: Driver, calls: Any, folder: Path, store: Path) -> None:
    def events() -> list[str]:
        seen: list[str] = []
        sys.setprofile(
            lambda frame, event, arg: seen.append(frame.f_code.co_name) if event == "call" else None
        )
        try:
            launch(stock.scale)
        finally:
            sys.setprofile(None)
        return seen

    launch(stock.scale)
    without = events()
    forget(stock)
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    wait("scale")
    launch(stock.scale)
    more = events()
    for name in without:
        more.remove(name)
    assert more == ["run"], more


#: two of these run at once on one store; or one, whose forks end as programs do while it searches
PROGRAM = """
import os, sys, time
from tests.deploy import conftest, stock
from tests.deploy.boundary import H200, Driver
from triton.runtime import driver
import sassafras
from sassafras.deploy import gpu
from sassafras.on_call.calls import CALLS
made = Driver()
driver.set_active(made)
gpu.gpu_name = lambda device: H200
CALLS.worker = "tests.on_call.measuring"
sassafras.install(sys.argv[1], tune="6e")
conftest.launch(stock.scale)
end = time.monotonic() + 400
while time.monotonic() < end and not any(s.state in ("done", "refused") for s in sassafras.status().searches):
    if sys.argv[2] == "forks":
        if not (child := os.fork()):
            sys.exit()
        os.waitpid(child, 0)
    time.sleep(0.05)
for _ in range(2):
    conftest.launch(stock.scale)
print([s.state for s in sassafras.status().searches], len(made.loads), made.launches[-1])
print(sassafras.status())
"""


def test_two_processes_at_once_search_once(folder: Path, store: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(store), "two"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    ends = [each.communicate(timeout=600) for each in running]
    for out, err in ends:
        assert out.startswith("['done'] 2 1002"), (out, err)
    workers = {line.split()[0] for line in (folder / "searches").read_text().splitlines()}
    assert len(workers) == 1


def test_a_fork_that_ends_takes_nothing_of_the_search_along(
    folder: Path, store: Path, tmp_path: Path
) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(store), "forks"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert ran.stdout.startswith("['done'] 2 1002"), (ran.stdout, ran.stderr)
    assert not list(tmp_path.glob("sassafras-*"))


def test_a_launch_that_cannot_be_recorded_is_refused_and_runs(
    driver: Driver, calls: Any, folder: Path, store: Path
) -> None:
    from tests.deploy.boundary import Tensor

    sassafras.install(store, tune=BUDGET)
    pair[(4,)]((Tensor(), Tensor(address=8192)), 1000, BLOCK=256)
    found = wait("pair")
    assert found.state == "refused" and found.detail, found
    assert len(driver.launches) == 1 and not searches(folder)


def test_without_a_gpu_the_real_worker_says_so(
    driver: Driver, calls: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sassafras.cuda.environment import available

    if available()[0]:
        pytest.skip("there is a GPU")
    monkeypatch.setattr(calls, "worker", WORKER)
    sassafras.install(store, tune=BUDGET)
    launch(stock.scale)
    found = wait("scale")
    assert found.state == "refused" and "no usable GPU" in found.detail, found
    launch(stock.scale)
    assert len(driver.loads) == 1
