"""Which bytes the driver gets, through Triton's real JIT, compiler, cache and `CompiledKernel`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from triton.compiler.compiler import CompiledKernel

import sassafras
from sassafras import deploy
from sassafras.deploy import engine, triton_load
from sassafras.store import Store

from . import stock
from .boundary import H200, Driver, sha
from .conftest import forget, kernel_of, launch, retuned, save


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def tune(driver: Driver, store: Path, fn: Any = stock.scale, **more: Any) -> tuple[str, str]:
    """Compile a kernel, put a tuned cubin for it into the store; digests of both."""
    compiled = launch(fn)
    kernel = kernel_of(compiled)
    tuned = retuned(kernel.cubin)
    save(store, kernel, tuned, **more)
    forget(stock)
    driver.loads.clear()
    deploy.engine.ENGINE.loaded.clear()
    return sha(kernel.cubin), sha(tuned)


def reason() -> str:
    return deploy.status().kernels[-1].reason


def test_a_matching_kernel_runs_the_tuned_bytes_and_others_their_own(driver: Driver, store: Path) -> None:
    original, tuned = tune(driver, store)
    assert sassafras.install(store).active
    compiled, other = launch(stock.scale), launch(stock.shift)
    assert driver.loads == [("scale", tuned), ("shift", sha(other.asm["cubin"]))]
    assert sha(compiled.asm["cubin"]) == sha(compiled.kernel) == original  # what Inductor would pickle
    told = sassafras.status()
    assert [(k.name, k.loaded) for k in told.kernels] == driver.loads
    assert [k.tuned for k in told.kernels] == [True, False]
    assert (told.kernels[0].gpu, told.kernels[0].speedup) == (H200, 1.1)
    assert told.kernels[1].reason == "not in the store"
    assert "1 of 2 loaded kernels" in str(told)


def test_warm_cache_and_later_process_without_us(driver: Driver, store: Path, tmp_path: Path) -> None:
    original, tuned = tune(driver, store)
    cache = tmp_path / "triton-cache"
    before = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert len(before) >= 5
    deploy.install(store)
    launch(stock.scale)  # a new CompiledKernel from the warm cache
    assert driver.loads == [("scale", tuned)]
    assert {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()} == before
    deploy.uninstall()
    forget(stock)
    launch(stock.scale)
    assert driver.loads[1:] == [("scale", original)]


def test_cold_cache_is_filled_byte_for_byte_as_without_us(
    driver: Driver, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tuned = tune(driver, store)
    contents = []
    for name in ("without", "with"):
        folder = tmp_path / "triton-cache"  # the files name their own folder: use the same one
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        if name == "with":
            deploy.install(store)
        forget(stock)
        launch(stock.scale)
        contents.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert driver.loads[-1] == ("scale", tuned)
    assert contents[0] == contents[1] and len(contents[0]) >= 5


def test_autotuned_kernels_too(driver: Driver, store: Path) -> None:
    original, tuned = tune(driver, store, stock.tuned_by_triton)
    deploy.install(store)
    launch(stock.tuned_by_triton)
    digests = dict(enumerate(d for _, d in driver.loads))
    assert len(digests) == 2 and tuned in digests.values() and original not in digests.values()
    # the launches that count ran the function of the module with the tuned bytes
    which = next(n for n, d in digests.items() if d == tuned)
    assert 1001 + which in driver.launches


def test_nothing_is_paid_per_launch(driver: Driver, store: Path) -> None:
    """Triton calls `_init_handles` at every launch: ours must do no more than its own does then."""

    def events(fn: Any) -> list[tuple[str, str]]:
        launch(fn)
        seen: list[tuple[str, str]] = []
        sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
        try:
            launch(fn)
        finally:
            sys.setprofile(None)
        return seen

    tune(driver, store)
    before = events(stock.scale), events(stock.shift)
    assert ("call", "_init_handles") in before[0]
    forget(stock)
    deploy.install(store)
    assert (events(stock.scale), events(stock.shift)) == before
    assert deploy.status().tuned


def test_install_twice_uninstall_twice(driver: Driver, store: Path) -> None:
    own = CompiledKernel._init_handles
    _, tuned = tune(driver, store)
    deploy.install(store)
    wrapped = CompiledKernel._init_handles
    deploy.install(store)
    assert CompiledKernel._init_handles is wrapped is not own
    launch(stock.scale)
    assert [k.loaded for k in deploy.status().kernels] == [tuned]
    deploy.uninstall()
    deploy.uninstall()
    assert CompiledKernel._init_handles is own
    assert not deploy.status().active
    assert [k.loaded for k in deploy.status().kernels] == [tuned]  # still what that kernel runs


def test_uninstall_under_somebody_elses_wrap(
    driver: Driver, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, tuned = tune(driver, store)
    own = CompiledKernel._init_handles
    deploy.install(store)
    ours = CompiledKernel._init_handles
    seen = []

    def theirs(self: Any) -> None:
        seen.append(self.name)
        ours(self)

    theirs.__wrapped__ = ours  # type: ignore[attr-defined]
    CompiledKernel._init_handles = theirs
    try:
        deploy.uninstall()
        assert CompiledKernel._init_handles is theirs
        launch(stock.scale)
        assert driver.loads == [("scale", original)] and seen == ["scale"]
        forget(stock)
        deploy.install(store)  # wraps theirs; the buried wrap of ours lets the load through
        launch(stock.scale)
        assert driver.loads[1:] == [("scale", tuned)]
        tunings = [k for k in deploy.status().kernels if k.tuned]
        assert len(tunings) == 1
        deploy.uninstall()
    finally:
        CompiledKernel._init_handles = own


def test_kernels_loaded_before_install_are_told_of(driver: Driver, store: Path) -> None:
    original, _ = tune(driver, store)
    launch(stock.scale)
    deploy.install(store)
    launch(stock.scale)
    assert [d for _, d in driver.loads] == [original]
    mine = [k for k in deploy.status().kernels if k.original == original]
    assert [(k.reason, k.tuned) for k in mine] == [("loaded before install()", False)]


def test_refresh_sees_a_new_winner(driver: Driver, store: Path) -> None:
    deploy.install(store)
    assert "there is no store here" in deploy.status().store_state
    original, tuned = tune(driver, store)
    launch(stock.scale)
    assert driver.loads == [("scale", original)]
    assert deploy.refresh().tuned_in_store == 1
    forget(stock)
    launch(stock.scale)
    assert driver.loads[1:] == [("scale", tuned)]


def test_kill_switch_deny_and_allow(driver: Driver, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, tuned = tune(driver, store)

    def loaded() -> str:
        forget(stock)
        launch(stock.scale)
        return driver.loads[-1][1]

    monkeypatch.setenv("SASSAFRAS_DISABLE", "1")
    assert not deploy.install(store).active and loaded() == original
    monkeypatch.delenv("SASSAFRAS_DISABLE")
    deploy.install(store)
    assert loaded() == tuned
    monkeypatch.setenv("SASSAFRAS_DISABLE", "1")  # pulled while it runs
    assert loaded() == original and reason() == "SASSAFRAS_DISABLE is set"
    assert not deploy.status().active
    monkeypatch.delenv("SASSAFRAS_DISABLE")
    deploy.deny("sca*")
    assert loaded() == original and reason() == "denied by name"
    deploy.allow("sca*")
    assert loaded() == tuned
    monkeypatch.setenv("SASSAFRAS_DENY", "other, scale")
    deploy.install(store)
    assert loaded() == original and deploy.status().deny == ("other", "scale")
    deploy.allow("scale")
    assert loaded() == tuned and deploy.refresh().deny == ("other",) and loaded() == tuned


def test_only_decorated_kernels_without_install(
    driver: Driver, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(driver, store, stock.shift)
    _, tuned = tune(driver, store, stock.tuned_by_triton)
    monkeypatch.setenv("SASSAFRAS_STORE", str(store))
    assert deploy.tuned(stock.tuned_by_triton) is stock.tuned_by_triton
    launch(stock.tuned_by_triton)
    assert tuned in [digest for _, digest in driver.loads]
    launch(stock.shift)
    assert not deploy.status().kernels[-1].tuned and reason() == "only decorated kernels are substituted"


def test_a_cubin_that_the_driver_refuses_falls_back(driver: Driver, store: Path) -> None:
    original, tuned = tune(driver, store)

    def refuse(cubin: bytes) -> None:
        if sha(cubin) == tuned:
            raise RuntimeError("Triton Error [CUDA]: device kernel image is invalid")

    driver.refuse = refuse
    deploy.install(store)
    compiled = launch(stock.scale)
    assert driver.loads == [("scale", original)] and sha(compiled.kernel) == original
    assert "loading the tuned cubin failed" in reason() and "image is invalid" in reason()
    assert driver.launches[-1] == compiled.function


def test_an_error_of_the_programs_own_stays_its_own(driver: Driver, store: Path) -> None:
    tune(driver, store)

    def refuse(cubin: bytes) -> None:
        raise RuntimeError("out of memory")

    driver.refuse = refuse
    deploy.install(store)
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        launch(stock.scale)
    assert caught.value.__context__ is None  # no trace of our attempt
    assert deploy.status().kernels == ()


@pytest.mark.timeout(60)
def test_a_signal_handler_may_launch_in_the_middle_of_a_load(
    driver: Driver, store: Path, tmp_path: Path
) -> None:
    _, tuned = tune(driver, store)
    forget(stock)
    deploy.install(store, status_dir=tmp_path / "status")
    with triton_load._guard, engine.ENGINE._journal._lock:  # where the signal finds this thread
        launch(stock.scale)
    assert driver.loads[-1][1] == tuned


def test_many_threads_load_once_each_and_are_told_right(driver: Driver, store: Path) -> None:
    _, tuned = tune(driver, store)
    warm = launch(stock.scale)
    forget(stock)
    deploy.install(store)
    group = {Path(p).name: p for p in warm.metadata_group.values()}
    kernels = [CompiledKernel(warm.src, group, warm.hash) for _ in range(6)]
    driver.loads.clear()
    deploy.engine.ENGINE.loaded.clear()
    start = threading.Barrier(24)
    failures: list[BaseException] = []

    def load(kernel: Any) -> None:
        try:
            start.wait()
            kernel._init_handles()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load, args=(kernels[n % 6],)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert driver.loads == [("scale", tuned)] * 6
    assert [k.loaded for k in deploy.status().kernels] == [tuned] * 6
    assert all(sha(k.kernel) == sha(warm.asm["cubin"]) for k in kernels)


def test_the_surest_of_several_winners(driver: Driver, store: Path) -> None:
    compiled = launch(stock.scale)
    kernel = kernel_of(compiled)
    first, second = retuned(kernel.cubin), retuned(retuned(kernel.cubin))
    assert len({first, second, kernel.cubin}) == 3
    save(store, kernel, first, speedup=1.05)
    save(store, kernel, second, speedup=1.2)
    save(store, kernel, first, speedup=1.5, gpu="NVIDIA H100 80GB HBM3")
    forget(stock)
    driver.loads.clear()
    deploy.install(store)
    launch(stock.scale)
    assert driver.loads == [("scale", sha(second))]


def test_a_modelled_winner_is_never_deployed(driver: Driver, store: Path) -> None:
    from sassafras.core import Candidate, Modelled

    kernel = kernel_of(launch(stock.scale))
    candidate = Candidate(kernel.with_cubin(retuned(kernel.cubin)))
    with Store.open(store) as opened:
        opened.save_modelled_winner(
            kernel,
            candidate,
            Modelled(candidate.digest, None, 90.0, 100.0),
            model=H200,
            workload="s",
            case="c",
        )
    forget(stock)
    driver.loads.clear()
    assert deploy.install(store).tuned_in_store == 0
    launch(stock.scale)
    assert driver.loads == [("scale", kernel.digest)]
