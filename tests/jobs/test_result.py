"""The result line says what was measured, what was modelled, and what was not found."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.core import Interval, Kernel, SassafrasError, StoreError
from sassafras.evaluate import ApprovedFailure
from sassafras.jobs.result import Result

BASELINE = Kernel(b"original", "k", "sm_90a", 128, parameters=(("x", "*fp32"),), meta={"ptxas": "12.8"})
WON = Result(
    workload="soft/max", case="512 x 4096", arch="sm_90a", strategy="anneal", settings={"cycles": 3},
    seed=0, budget="60s", device="NVIDIA H200", modelled=False, baseline=BASELINE,
    kernel=BASELINE.with_cubin(b"tuned"), improved=True, speedup=1.0432, interval=Interval(1.041, 1.046),
    null=1.0, null_interval=Interval(0.999, 1.001), baseline_us=10.4, time_us=10.0, samples=12,
    modelled_ratio=None, correlation=None, evaluations=6000, replayed=0, seconds=60.0,
    verdicts={"correct": 5990, "illegal_schedule": 10}, reason="budget", failed_after_validation=0,
    notes=("a",), recipe={"moves": [1]},
    environment={"gpu": "NVIDIA H200"}, facts={}, run=1, date="2026-01-01T00:00:00+00:00",
)  # fmt: skip
LOST = replace(WON, improved=False, kernel=BASELINE, speedup=1.0, interval=Interval(1.0, 1.0))
MODELLED = replace(
    WON, device="timing model of sm_90", modelled=True, speedup=None, interval=Interval(1.0102, 1.0151),
    null=1.0008, null_interval=Interval(0.9985, 1.0031), samples=0, modelled_ratio=1.0123, draws=128,
)  # fmt: skip
#: as results were before they were re-drawn
SELECTED = replace(MODELLED, interval=None, null=None, null_interval=None, draws=0)


def test_summaries() -> None:
    assert WON.summary() == (
        "1.043x [1.041, 1.046] on NVIDIA H200, null 1.000 [0.999, 1.001], 12 samples equal, validator: legal"
    )
    assert "on a cold L2 1.020x, 12 samples" in replace(WON, facts={"cold_l2_speedup": 1.02}).summary()
    assert "cold" not in replace(WON, facts={"cold_l2_speedup": 1.03}).summary()
    assert LOST.summary() == (
        "1.00x on NVIDIA H200: nothing beat the baseline, which stays; null 1.000 [0.999, 1.001]"
    )
    assert MODELLED.summary() == (
        "modelled 1.012x [1.010, 1.015], null 1.001 [0.999, 1.003], 128 fresh draws (timing model of sm_90, "
        "not a measurement; rank correlation: not measured for this kernel)"
    )
    assert SELECTED.summary() == (
        "modelled 1.012x as selected, not re-drawn (timing model of sm_90, not a measurement; "
        "rank correlation: not measured for this kernel)"
    )
    known = {
        "kendall_tau": 0.712,
        "ceiling": 0.9,
        "schedules": 240,
        "date": "2026-01-01",
        "gpu": "NVIDIA H200",
    }
    assert replace(MODELLED, correlation=known, improved=False, modelled_ratio=1.0).summary() == (
        "modelled 1.00x, null 1.001 [0.999, 1.003] (timing model of sm_90, not a measurement; rank "
        "correlation with NVIDIA H200 for this kernel: 0.71, noise ceiling 0.90, 240 schedules, 2026-01-01): "
        "nothing beat the baseline, which stays"
    )
    # below 0.3 the ratio is no evidence, whenever the result was made
    for ratio in (1.2345, None):
        poor = replace(SELECTED, correlation=known | {"kendall_tau": 0.29}, modelled_ratio=ratio)
        assert poor.summary() == poor.refusal == poor.to_json()["refusal"]
        assert poor.refusal.endswith("its rank correlation with NVIDIA H200 is 0.29, below 0.3")
    edge = replace(MODELLED, correlation=known | {"kendall_tau": 0.3})
    assert not edge.refusal and "1.012x [" in edge.summary()


def test_rates_say_how_fast_that_is() -> None:
    """Beyond the L2 the bound is DRAM's, with operations it may be the tensor cores'; the L2 has none."""
    big = replace(WON, facts={"work": {"bytes": 24e6, "flops": 0.0}})
    assert big.rates() == "10.00 us a launch (10.40 before), 2,400 GB/s (the data fits the L2)"
    big = replace(WON, time_us=100.0, facts={"work": {"bytes": 240e6, "flops": 0.0}})
    assert big.rates() == "100.00 us a launch (10.40 before), 2,400 GB/s, 50 % of the memory bound"
    assert "% of" not in replace(big, device="NVIDIA A100").rates()
    product = replace(LOST, time_us=10.4, facts={"work": {"bytes": 1e6, "flops": 5.2e9}})
    assert product.rates() == "10.40 us a launch, 500 TFLOP/s, 47 % of the compute bound"
    assert WON.rates() == "10.00 us a launch (10.40 before)" and MODELLED.rates() == ""


def test_assumptions_of_the_model_are_told() -> None:
    facts = {
        "loop_trips": [
            {"start": 0x100, "end": 0x240, "trips": 64, "from": "case"},
            {"start": 0x40, "end": 0x80, "trips": 4, "from": "assumed"},
        ],
        "branches": "not taken", "ctas_per_sm": 4, "data": "L2",
    }  # fmt: skip
    assert replace(MODELLED, facts=facts).assumptions() == [
        "loop 0x0100-0x0240 runs 64 times (given by the case)",
        "loop 0x0040-0x0080 runs 4 times (assumed)",
        "not taken",
        "4 blocks an SM, data in L2",
    ]
    assert replace(WON, facts=facts).assumptions() == []


@pytest.mark.parametrize("result", [WON, LOST, MODELLED, SELECTED])
def test_saved_files_and_the_way_back(tmp_path: Path, result: Result) -> None:
    cubin, facts = result.save(tmp_path / "new" / "folder")
    assert (cubin.name, facts.name) == (
        "soft_max-512_x_4096-anneal-s0.cubin",
        "soft_max-512_x_4096-anneal-s0.json",
    )
    assert cubin.read_bytes() == result.cubin
    read = json.loads(facts.read_text())
    assert read["summary"] == result.summary() and read["kernel"]["digest"] == result.kernel.digest
    back = Result.from_json(read, result.baseline, result.cubin)
    assert back == replace(result, from_store=True)
    with pytest.raises(StoreError, match="another"):
        Result.from_json(read, result.baseline, b"other code")
    with pytest.raises(StoreError, match="cannot be read"):
        Result.from_json({"kernel": 3}, result.baseline, result.cubin)


def test_results_of_before_are_read_as_selected() -> None:
    """Stored results that know nothing of draws."""
    facts = {k: v for k, v in SELECTED.to_json().items() if k != "draws"}
    back = Result.from_json(json.loads(json.dumps(facts)), SELECTED.baseline, SELECTED.cubin)
    assert back.draws == 0 and "as selected, not re-drawn" in back.summary()


def test_names_stay_inside_the_folder(tmp_path: Path) -> None:
    cubin, _ = replace(WON, workload="../../etc", case="..").save(tmp_path)
    assert cubin.parent == tmp_path and cubin.exists()


def test_a_name_longer_than_that_of_a_file_is_cut_and_stays_its_own(tmp_path: Path) -> None:
    mangled = "_ZN7cutlass" + "é" * 300
    one, other = (replace(WON, workload=mangled + end).save(tmp_path)[0] for end in "ab")
    assert one != other and one.exists() and other.exists() and one.name.startswith("_ZN7cutlass")
    failed = replace(WON, workload=mangled, failures=(ApprovedFailure("a" * 64, "crashed", "", b"x", b"y"),))
    assert failed.save(tmp_path)[0].exists() and len([*tmp_path.glob("*-failed-*")]) == 2


def test_a_full_disk_leaves_the_result_that_was_there(tmp_path: Path) -> None:
    cubin, facts = WON.save(tmp_path)
    before = facts.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))  # as on a full disk
    try:
        with pytest.raises(SassafrasError, match="cannot write the result: File too large"):
            WON.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert facts.read_bytes() == before and set(tmp_path.iterdir()) == {cubin, facts}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SassafrasError, match="cannot write the result"):
        WON.save(tmp_path / "file")
