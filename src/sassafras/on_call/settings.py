"""What search on call is told by the environment, and its limits."""

from __future__ import annotations

import os

#: off (or 0, false, no): no launch begins a search; looked at at every first launch
TUNE = "SASSAFRAS_TUNE"
#: the autotuner's configurations within this factor of its choice are searched too, and how many at most
CLOSE, RUNNER_UPS = 1.15, 2
#: seconds that a search waits for its kernel and for an idle GPU, and between two looks
PATIENCE_S, LOOK_S = 300.0, 1.0
#: seconds that a worker may take besides its budget: to start, to compile, to re-measure
BESIDES_S = 900.0


def off() -> bool:
    """Are searches turned off?"""
    return os.environ.get(TUNE, "").strip().lower() in ("off", "0", "false", "no")
