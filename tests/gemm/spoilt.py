"""Faults in the kernels' texts, all of a program in one build: another build takes longer than all faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import epilogue_launch, hopper_launch

#: what stands in the text of one kernel, and what instead: FAULT(name) is true where this fault is asked for
Texts = Sequence[tuple[str, str]]
HOPPER: Texts = (
    # split-K's quick start: multiplying warps that do not wait for the loading one
    ("sync_threads(READY, THREADS);", "if (!FAULT(start)) sync_threads(READY, THREADS);"),
    # a stage is given back while its own products are under way
    ("mine + 16 * last;", "mine + 16 * (FAULT(release) ? stage : last);"),
    # the warpgroup that waits for the first one gives the same stage back twice
    (
        "if (k > 0 && !(LEAD > 0 && k == pause)) release(",
        "if (k > 0 && !(LEAD > 0 && k == pause && !FAULT(lead))) release(",
    ),
    # warps that store together: one stores what the others have not written yet
    (
        "async_fence();\n            meet();",
        "async_fence();\n            if (FAULT(unwritten)) sync_warp(); else meet();",
    ),
    # the others write over what a store still reads
    (
        "// this buffer's last store has been read\n            meet();",
        "\n            if (FAULT(unread)) sync_warp(); else meet();",
    ),
    # a tile is stored beside the next one's second range, when its sums are gone
    (
        "turn = first > 0 ? -1 : p.range > 1;",
        "turn = (first > 0) == !FAULT(fold) ? -1 : p.range > 1;",
    ),
    # the stream kernel: what lies behind the end of k
    ("PART && k + owned >= left;", "PART && !FAULT(behind) && k + owned >= left;"),
    (
        "STAGES) return;\n            stage = 0;\n            phase ^= 1;",
        "STAGES) return;\n            stage = 0;\n            if (!FAULT(phase)) phase ^= 1;",
    ),
    # rows of any length: copies that begin anywhere, as they were at first
    ("(kind * p.lda & ~7)", "(kind * p.lda & (FAULT(anywhere) ? ~0 : ~7))"),
    ("(kind * p.ldb & ~7)", "(kind * p.ldb & (FAULT(anywhere) ? ~0 : ~7))"),
)
EPILOGUE: Texts = (
    # normalised rows: read before the launch ahead has ended; a line that is not done once more
    ("if (!p.early) wait_for", "if (!p.early && !FAULT(waits)) wait_for"),
    ("over |= value < 0", "over |= value < 0 && !FAULT(once)"),
    ("mean < 0x1p-20f", "mean < (FAULT(once) ? 0.0f : 0x1p-20f)"),
    # split-K's early weights
    ("if (p.early) load_first<true>", "if (p.early || FAULT(early)) load_first<true>"),
    ("if constexpr (FIXED == SWAPPED)", "if ((FIXED == SWAPPED) != FAULT(operand))"),
    (
        "if (from == STAGES) stage = phase = 0;",
        "if (from == STAGES && !FAULT(goes_on)) stage = 0, phase = FAULT(parity);",
    ),
    # SwiGLU's pair
    (
        "d[i] = gated(d[i], 1.0f, 0.0f) * d[UP + i]",
        "d[i] = gated(d[FAULT(gate) ? UP + i : i], 1.0f, 0.0f) * d[FAULT(gate) ? i : UP + i]",
    ),
    ("e.bias + half + column + 8 * i", "e.bias + (FAULT(bias) ? 0 : half) + column + 8 * i"),
    ("full, (int)p.out.batch_b)", "full, FAULT(batch) ? 1 : (int)p.out.batch_b)"),
)
#: what faults are looked for in
HOPPER_INSTANCES: list[hopper_launch.Instance] = [
    hopper_launch.SPLIT, hopper_launch.LEAD, hopper_launch.TALL, hopper_launch.FOLDS,
    hopper_launch.STREAM[0], hopper_launch.UNALIGNED[0],
]  # fmt: skip
EPILOGUE_INSTANCES = [*epilogue_launch.EARLY[:1], *epilogue_launch.NORMED[:1], *epilogue_launch.PAIRS[:1]]


def hopper(shared: Path) -> hopper_launch.Emulator:
    """Kernels without an epilogue, with faults that can be asked for."""
    return _built(HOPPER, lambda edit: hopper_launch.build(shared, HOPPER_INSTANCES, edit))


def epilogue(shared: Path) -> epilogue_launch.Emulator:
    """Kernels with an epilogue, with faults that can be asked for."""
    return _built(EPILOGUE, lambda edit: epilogue_launch.build(shared, EPILOGUE_INSTANCES, edit))


def ask(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """From here on the kernels have this fault."""
    monkeypatch.setenv("SPOILT", str(_numbers(HOPPER).get(fault) or _numbers(EPILOGUE)[fault]))


def _numbers(texts: Texts) -> dict[str, int]:
    faults = dict.fromkeys(re.findall(r"FAULT\((\w+)\)", " ".join(after for _, after in texts)))
    return {fault: number for number, fault in enumerate(faults, 1)}


def _built(texts: Texts, build: Callable[[Callable[[str], str]], Any]) -> Any:
    numbers = _numbers(texts)

    def stands_for(after: str) -> str:
        return re.sub(r"FAULT\((\w+)\)", lambda m: f"(emulator::spoilt == {numbers[m[1]]})", after)

    edit, changed = hopper_launch.spoiling(*((before, stands_for(after)) for before, after in texts))
    made = build(edit)
    assert sorted(changed) == sorted(before for before, _ in texts), "each text stands in one place"
    return made
