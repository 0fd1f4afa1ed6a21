"""Register names as small integers, so that sets of them are cheap.

General R0-R254, predicates P0-P6, uniform UR0-UR62 (Blackwell: to UR254), uniform predicates
UP0-UP6 and convergence barriers B0-B15. RZ, PT, URZ and UPT are constants and have no number.
"""

from __future__ import annotations

GPR, PRED, UGPR, UPRED, BREG = 0, 256, 264, 520, 528
COUNT = 544

_FILES = ((BREG, "B"), (UPRED, "UP"), (UGPR, "UR"), (PRED, "P"), (GPR, "R"))


def name(register: int) -> str:
    """``R12``, ``P0``, ``UR4``, ``UP1`` or ``B0``."""
    for base, prefix in _FILES:
        if register >= base:
            return f"{prefix}{register - base}"
    raise ValueError(f"no register {register}")


def is_predicate(register: int) -> bool:
    """True for P0-P6 and UP0-UP6."""
    return PRED <= register < UGPR or UPRED <= register < BREG
