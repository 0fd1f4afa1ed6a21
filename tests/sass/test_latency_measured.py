"""The mined table against the distances at which a GPU went wrong."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from sassafras.sass.latency import LatencyTable

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "latencies-pairs.json.xz"


def test_no_fault_was_ever_seen_at_a_distance_that_the_mined_table_allows() -> None:
    """On an H200; a table that was mined anew has to stand this too."""
    mined = LatencyTable.load("sm_90")
    names = ("kind", "producer", "producer_slot", "consumer", "consumer_slot")
    rows = json.loads(lzma.decompress(RESULT.read_bytes()))["rows"]
    faults = {tuple(r[n] for n in names): r["fault"] for r in rows if r["status"] == "measured"}
    answered = [k for k in faults if mined.needed(*k, 64) < 64]
    assert len(answered) > 4_500
    assert not [k for k in answered if mined.needed(*k, 64) <= faults[k]]
    assert not [k for k in faults if k in mined.rows and mined.rows[k].cycles <= faults[k]]
