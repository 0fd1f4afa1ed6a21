"""Reading ncu's report, and saying why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sassafras.core import Case, DeviceError, Kernel, Workload
from sassafras.evaluate.gpu.profile import last, parse, profile

HEAD = (
    '"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum",'
    '"launch__registers_per_thread"'
)
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
WAITS = {
    "barrier": "0.5",
    "long_scoreboard": "3.25",
    "wait": "1.5",
    "gmma": "2",
    "drain": "n/a",
    "branch_resolve": "nan",
}


def report(*kernels: str) -> str:
    head = HEAD + "".join(f',"{STALL.format(reason)}"' for reason in WAITS)
    rows = [
        f'"{i}","7","{name}","{1000 * (i + 1):,}","1,024","40"' + "".join(f',"{v}"' for v in WAITS.values())
        for i, name in enumerate(kernels)
    ]
    units = ",".join(['""'] * (6 + len(WAITS)))
    return "\n".join(["==PROF== Connected", head, units, *rows, "==PROF== Disconnected"])


def test_the_last_launch_of_each_kernel_is_kept() -> None:
    first, second = last(parse(report("one", "one", "two", "two")), ["one", "two"])
    assert first["duration_ns"] == 2000 and second["duration_ns"] == 4000
    assert first["dram_read_bytes"] == 1024 and first["registers"] == 40
    assert first["stalls"] == {"long_scoreboard": 3.25, "gmma": 2.0, "wait": 1.5}
    assert not {"dram_percent", "kernel"} & set(first), "what was not measured is left out"


def test_what_is_missing_is_said() -> None:
    rows = parse(report("one", "one"))
    assert [row["kernel"] for row in rows] == ["one", "one"]
    one, two = last(rows, ["one", "two"])
    assert one["registers"] == 40 and two == {"unavailable": "ncu saw no launch of this kernel"}
    with pytest.raises(DeviceError, match="ERR_NVGPUCTRPERM"):
        parse("==ERROR== ERR_NVGPUCTRPERM - no permission\n")


@pytest.mark.skipif(Path("/usr/local/cuda/bin/ncu").exists(), reason="ncu is found in any case")
def test_without_ncu_there_are_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    case = Case("c", (1, 1, 1), {})
    kernel = Kernel(b"x", "k", "sm_90a", 32)
    found = profile(Workload("w", (case,), lambda *_: kernel), case, [kernel, kernel])
    assert found == [{"unavailable": "ncu is not installed"}] * 2
