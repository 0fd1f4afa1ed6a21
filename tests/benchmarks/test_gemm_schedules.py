"""Which kernels' schedules are searched, on which shapes they are judged, and what ships."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gemm_schedules as script  # noqa: E402

from sassafras.core import VALIDATOR_RULES, ToolMissing  # noqa: E402
from sassafras.gemm.build import schedules  # noqa: E402
from sassafras.gemm.build.cubins import cached_path, cubin  # noqa: E402
from sassafras.gemm.configs import names  # noqa: E402
from sassafras.gemm.configs.registry import parse_instance  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402

ENTRY = "lean_nn_m1n2s2x"


def test_kernels_that_win_most_come_first_and_shapes_are_held_out() -> None:
    wins = script.served()
    found = script.kernels("")
    counts = [len(wins[entry]) for entry in found]
    assert counts == sorted(counts, reverse=True) and counts[-1] >= 6 and len(found) >= 12
    assert counts[0] == max(map(len, wins.values()))
    assert script.kernels("^lean_")[0] == ENTRY
    for entry in found[:12]:
        searched, held = script.drawn(entry, wins[entry], 0)
        assert (searched, held) == script.drawn(entry, wins[entry][::-1], 0), "the table's order has no say"
        assert len(searched) == 4 and len(held) == min(8, len(wins[entry]) - 4)
        assert not {shape for shape, *_ in searched} & {shape for shape, *_ in held}
        assert (searched, held) != script.drawn(entry, wins[entry], 1)
        for text, config, us in (*searched, *held):
            shape = Shape.parse(text)
            assert names.parse(config).instance == parse_instance(entry) and us > 0
            assert names.parse(config).why_illegal(shape) is None and shape.flop < 1e10


def measured(entry: str = ENTRY, speedup: float = 1.05, worst: float = 1.0, **more: Any) -> dict[str, Any]:
    row = {"entry": entry, "modelled": False, "improved": True, "gpu": "NVIDIA H200", "release": "13.0"}
    row |= {
        "rules": VALIDATOR_RULES,
        "source": cached_path(parse_instance(entry)).stem.rpartition("-")[2],
        "wins": 11,
    }
    row |= {"parent": "1", "tuned": "2", "offset": 0, "slots": 1, "moves": "", "records": []}
    row |= {"speedup": speedup, "speedup_low": speedup - 0.01, "null": 1.0, "null_high": 1.002}
    held = [{"shape": f"{i}x64x64", "speedup": worst if i == 0 else speedup} for i in range(5)]
    return row | {"held_out": held, "environment": {"gpu": "NVIDIA H200"}} | more


@pytest.mark.parametrize(
    ("row", "ships"),
    [
        (measured(), True),
        (measured(speedup=1.012), False),  # within the A/A control
        (measured(speedup=1.005, speedup_low=1.004), False),
        (measured(worst=0.985), False),
        (measured(error="the validator refuses the winner"), False),
        (measured(modelled=True), False),
        ({"entry": ENTRY, "modelled": False, "improved": False}, False),
    ],
)
def test_what_ships(row: dict[str, Any], ships: bool) -> None:
    assert script.ships(row) is ships


def test_figures_are_of_all_processes_and_shapes() -> None:
    rng = np.random.default_rng(0)
    table = [[[10.0, 10 / ratio, 10.0] * (1 + 0.01 * rng.random((30, 1)))] for ratio in (1.1, 1.0, 1.05)]
    tables = [[[list(call) for call in one[0]] for one in table] for _ in range(3)]
    row = script.judged([("64x64x64", "x", 1.0), ("64x64x128", "y", 1.0), ("64x64x256", "z", 1.0)], tables)
    assert [shape["speedup"] for shape in row["held_out"]] == pytest.approx([1.1, 1.0, 1.05])
    assert row["speedup"] == pytest.approx((1.1 * 1.05) ** (1 / 3)) and row["null"] == pytest.approx(1.0)
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert row["held_out"][0]["us"] == pytest.approx(10.05, rel=0.01)


def test_rows_that_ship_reach_the_data_and_all_reach_the_result(tmp_path: Path) -> None:
    data = tmp_path / "schedules.jsonl"
    other, stale = script.kernels("")[:2]
    old = [measured(other), measured(stale, source="0" * 16), measured(parent="0"), measured(tuned="old")]
    lines = [schedules.HEADER, *old]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = {"entry": other, "modelled": False, "error": "gone", "release": "13.0"}
    slow = measured(script.kernels("")[2], speedup=1.0)
    script.finish([measured(), slow, failed], tmp_path, data)
    rows = schedules.read(data)
    assert {(row["entry"], row["parent"], row["tuned"]) for row in rows} == {
        (other, "1", "2"),
        (ENTRY, "0", "2"),
        (ENTRY, "1", "2"),
    }, "another's stays, a kernel's of an earlier source goes, another compiler's stays, its own is replaced"
    (mine,) = (row for row in rows if (row["entry"], row["parent"]) == (ENTRY, "1"))
    assert mine["held_out"]["0x64x64"] == 1.0 and mine["speedup"] == 1.05 and "environment" not in mine
    found = json.loads((tmp_path / "gemm-schedules.json").read_text())
    assert [row["ships"] for row in found["rows"]] == [True, False, False]
    assert found["summary"]["shipped"] == 1 and found["summary"]["failed_rows"] == [other]
    assert found["summary"]["geomean_speedup"] == pytest.approx(1.05)
    assert found["summary"]["geomean_judged"] == pytest.approx(1.05**0.5), "of what does not ship, too"
    two = [measured(environment={"gpu": "NVIDIA H200"}), measured(other, environment={"gpu": "NVIDIA H100"})]
    with pytest.raises(SystemExit, match="make no result together"):
        script.finish(two, tmp_path, data)


def test_the_whole_on_the_timing_model() -> None:
    try:
        parent = cubin(parse_instance(ENTRY))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    options = argparse.Namespace(
        device="model", evaluations=24, seconds=0.0, seed=0, calls=10, processes=2, out=None
    )
    row = json.loads(json.dumps(script.row_of(ENTRY, options)))
    assert row["modelled"] and row["improved"] and "error" not in row
    assert row["searches"]["swaps"]["evaluations"] == row["searches"]["control"]["evaluations"] == 24
    assert len(row["searched_on"]) == 4 and len(row["held_out"]) == 7
    assert row["speedup"] == pytest.approx(1.0, abs=0.02), "the modelled clock knows no schedules"
    made = schedules.applied(parent, ENTRY, row["gpu"], [row])
    assert made.tuned and made.cubin != parent and not script.ships(row)
