"""A tuned cubin is used only where everything that a launch relies on is the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sassafras import deploy
from sassafras.core import VALIDATOR_RULES, Kernel
from sassafras.deploy.check import resident_blocks
from sassafras.sass import Cubin
from sassafras.sass.eiattr import KPARAM_INFO

from . import stock
from .boundary import Driver, sha
from .conftest import forget, kernel_of, launch, retuned, save


def attempt(driver: Driver, tmp_path: Path, kernel: Kernel, tuned: bytes, **more: Any) -> tuple[str, str]:
    """Store this winner, run the program: the digest that was loaded, and the reason."""
    store = tmp_path / "store.sqlite"
    save(store, kernel, tuned, **more)
    deploy.uninstall()
    forget(stock)
    deploy.install(store)
    launch(stock.scale)
    return driver.loads[-1][1], deploy.status().kernels[-1].reason


@pytest.fixture
def kernel(driver: Driver) -> Kernel:
    return kernel_of(launch(stock.scale))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": "scale_2"}, "name"),
        ({"arch": "sm_100a"}, "architecture"),
        ({"threads": 256}, "threads a block"),
        ({"shared_bytes": 1024}, "dynamic shared memory"),
        ({"cluster": (2, 1, 1)}, "cluster size"),
        ({"scratch_bytes": 64}, "global scratch"),
    ],
)
def test_other_launch_facts(
    driver: Driver, tmp_path: Path, kernel: Kernel, change: dict[str, Any], what: str
) -> None:
    stored = replace(kernel, **change)
    loaded, reason = attempt(driver, tmp_path, stored, retuned(kernel.cubin))
    assert loaded == kernel.digest
    assert reason.startswith(f"other launch facts: {what} is ")


def with_registers(cubin: bytes, name: str, registers: int) -> bytes:
    at = Cubin.parse(cubin).regcount_slots[name]
    return cubin[:at] + registers.to_bytes(4, "little") + cubin[at + 4 :]


def test_more_registers_only_while_as_many_blocks_fit(driver: Driver, tmp_path: Path, kernel: Kernel) -> None:
    few = Cubin.parse(kernel.cubin).entries["scale"].registers
    assert few <= 24
    loaded, reason = attempt(driver, tmp_path, kernel, with_registers(kernel.cubin, "scale", 33))
    assert loaded == kernel.digest
    assert reason == f"33 registers a thread leave 12 blocks an SM, the original's {few} leave 16"
    loaded, reason = attempt(
        driver, tmp_path, kernel, with_registers(kernel.cubin, "scale", 300), speedup=1.2
    )
    assert loaded == kernel.digest and reason.startswith("the tuned cubin needs 300 registers")
    free = with_registers(kernel.cubin, "scale", 32)
    assert attempt(driver, tmp_path, kernel, free, speedup=1.3)[0] == sha(free)


@pytest.mark.parametrize(
    ("registers", "threads", "blocks"),
    # by cuOccupancyMaxActiveBlocksPerMultiprocessor's rules for sm_90: 255 registers, 256 a warp and portion
    [
        (32, 1024, 2),
        (33, 1024, 1),
        (64, 1024, 1),
        (65, 1024, 0),
        (128, 256, 2),
        (168, 384, 1),
        (255, 256, 1),
        (16, 32, 64),
    ],
)
def test_resident_blocks(registers: int, threads: int, blocks: int) -> None:
    assert resident_blocks(registers, threads) == blocks


def flip(cubin: bytes, at: int) -> bytes:
    return cubin[:at] + bytes([cubin[at] ^ 1]) + cubin[at + 1 :]


def test_other_parameters_constants_kernels_or_layout(driver: Driver, tmp_path: Path, kernel: Kernel) -> None:
    parsed = Cubin.parse(kernel.cubin)
    parameter = next(r for r in parsed.entries["scale"].info if r.attribute == KPARAM_INFO)
    constant = next(s for s in parsed.sections if s.name.startswith(".nv.constant0") and s.size)
    others = [
        (flip(kernel.cubin, parameter.offset + 6), "parameters or attributes of scale differ"),
        (flip(kernel.cubin, constant.offset), "constant, shared, global or local data differ"),
        (launch(stock.shift).asm["cubin"], "the tuned cubin holds other kernels"),
        (flip(kernel.cubin, 8), "the tuned cubin is for another architecture or of another layout"),
        (kernel.cubin[:500], "the cubin cannot be read: "),
        (b"not even an ELF", "the cubin cannot be read: "),
    ]
    for n, (tuned, why) in enumerate(others):
        loaded, reason = attempt(driver, tmp_path / str(n), kernel, tuned)
        assert loaded == kernel.digest and reason.startswith(why)


def test_no_speedup_no_samples(driver: Driver, tmp_path: Path, kernel: Kernel) -> None:
    tuned = retuned(kernel.cubin)
    loaded, reason = attempt(driver, tmp_path, kernel, tuned, speedup=1.001)
    assert loaded == kernel.digest and "no speed-up beyond the null" in reason
    loaded, reason = attempt(driver, tmp_path, kernel, tuned, speedup=0.9)
    assert loaded == kernel.digest and "no speed-up beyond the null" in reason


def test_a_refused_winner_does_not_hide_a_good_one(driver: Driver, tmp_path: Path, kernel: Kernel) -> None:
    good = retuned(kernel.cubin)
    store = tmp_path / "store.sqlite"
    save(store, kernel, with_registers(kernel.cubin, "scale", 255), speedup=1.5)
    save(store, kernel, good, speedup=1.1)
    forget(stock)
    deploy.install(store)
    launch(stock.scale)
    assert driver.loads[-1] == ("scale", sha(good))


def imported(tmp_path: Path, kernel: Kernel, tuned: bytes) -> Path:
    from sassafras.store import Store

    save(tmp_path / "theirs.sqlite", kernel, tuned)
    with Store.open(tmp_path / "theirs.sqlite", readonly=True) as theirs:
        theirs.export(tmp_path / "bundle.jsonl")
    with Store.open(tmp_path / "ours.sqlite") as ours:
        ours.import_(tmp_path / "bundle.jsonl")
    return tmp_path / "ours.sqlite"


def test_an_imported_winner_is_validated_before_its_first_use(
    driver: Driver, tmp_path: Path, kernel: Kernel
) -> None:
    """Removing a wait on a scoreboard passes every other check: only the validator sees it."""
    if not hasattr(pytest.importorskip("sassafras.validate"), "Validator"):
        pytest.skip("there is no validator yet")
    good, bad = retuned(kernel.cubin), without_wait(kernel.cubin)
    for n, (tuned, use) in enumerate([(good, True), (bad, False)]):
        (tmp_path / str(n)).mkdir()
        store = imported(tmp_path / str(n), kernel, tuned)
        deploy.uninstall()
        forget(stock)
        deploy.install(store)
        launch(stock.scale)
        reason = deploy.status().kernels[-1].reason
        if use:
            assert driver.loads[-1][1] == sha(tuned) and reason == "tuned (imported)"
        else:
            assert driver.loads[-1][1] == kernel.digest and "the validator refuses it" in reason
    # as asked: the same cubin without validation
    deploy.install(store, revalidate="never")
    forget(stock)
    launch(stock.scale)
    assert driver.loads[-1][1] == sha(bad)


@pytest.mark.parametrize(
    ("grounds", "why", "without_rules"),
    [
        ("legal", "the validator refuses it", False),
        # the output of ptxas that it is a schedule of is not kept; without rules it is no schedule
        ("none against the original; its schedule is proved against another", "could be proved again", True),
    ],
)
def test_what_earlier_rules_approved_is_proved_again(
    grounds: str, why: str, without_rules: bool, driver: Driver, tmp_path: Path, kernel: Kernel
) -> None:
    """A local winner is believed only as far as today's rules approved it."""
    bad = without_wait(kernel.cubin)
    for rules, used in ((None, without_rules), (VALIDATOR_RULES - 1, False), (VALIDATOR_RULES, True)):
        store = tmp_path / f"{rules}.sqlite"
        save(store, kernel, bad, facts={"validator": grounds} | ({} if rules is None else {"rules": rules}))
        deploy.uninstall()
        forget(stock)
        deploy.install(store)
        launch(stock.scale)
        assert driver.loads[-1][1] == (sha(bad) if used else kernel.digest)
        assert (why in deploy.status().kernels[-1].reason) is not used


def test_without_a_validator_nothing_imported_is_used(
    driver: Driver, tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = imported(tmp_path, kernel, retuned(kernel.cubin))
    monkeypatch.setitem(sys.modules, "sassafras.validate", None)  # type: ignore[arg-type]
    deploy.install(store)
    forget(stock)
    launch(stock.scale)
    assert driver.loads[-1][1] == kernel.digest
    assert "cannot be validated again here" in deploy.status().kernels[-1].reason


def without_wait(cubin: bytes) -> bytes:
    """No instruction waits for the first scoreboard any more."""
    (entry,) = Cubin.parse(cubin).entries.values()
    words, changed = bytearray(cubin), 0
    for at in range(entry.text.offset, entry.text.offset + entry.text.size, 16):
        high = int.from_bytes(words[at + 8 : at + 16], "little")
        if high >> 52 & 63:
            words[at + 8 : at + 16] = (high & ~(63 << 52)).to_bytes(8, "little")
            changed += 1
    assert changed
    return bytes(words)
