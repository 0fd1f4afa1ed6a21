"""When jumps of the GPU's clock mean that another context runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sassafras.core import DeviceError
from sassafras.cuda.idle import JUMP_NS, busy
from sassafras.cuda.watcher import Watcher


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([], False),
        ([1024] * 132, False),
        ([JUMP_NS] * 132, False),
        ([1024] * 66 + [10 * JUMP_NS] * 66, False),  # half of them: no slice of time belongs to half a GPU
        ([1024] * 65 + [10 * JUMP_NS] * 67, True),
        ([2_000_000] * 132, True),
    ],
)
def test_a_slice_of_time_stops_most_multiprocessors(gaps: list[int], verdict: bool) -> None:
    assert busy(gaps) is verdict


@pytest.mark.parametrize(
    ("failures", "looks"),
    [
        ("", [False, False]),
        ("l", [True, False]),  # a context that was lost: others use the GPU, and a fresh process looks next
        ("ll", [True, None, False]),  # twice in a row: something else is wrong
        ("g", [None, False]),  # any other failure, such as no GPU at all
    ],
)
def test_a_lost_look_is_a_busy_gpu_once(
    failures: str, looks: list[bool | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "failures"
    left.write_text(failures)
    monkeypatch.setenv("FAILURES", str(left))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    watcher = Watcher("failing_watch")
    try:
        for look in looks:
            if look is None:
                with pytest.raises(DeviceError, match="planted"):
                    watcher.busy()
            else:
                assert watcher.busy() is look
    finally:
        watcher.close()
