"""Rows and summary of a measurement, and what it says of the mined table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sassafras.sass.latency import LatencyTable

from .analysis import Tally
from .plan import Plan

#: pairs that are too close for certain: if these do not fail, the measurement sees nothing.
#: (kind, first key, slot, second key, slot): distances that must fail
KNOWN_TOO_SHORT: dict[tuple[str, str, str, str, str], tuple[int, ...]] = {
    ("raw", "IADD3", "0", "IADD3", "1"): (1, 2),
    ("raw", "IMAD", "0", "IMAD", "1"): (1, 2),
    ("raw", "FFMA", "0", "FFMA", "1"): (1, 2),
    ("raw", "FADD", "0", "FADD", "1"): (1, 2),
    ("raw", "LOP3", "0", "LOP3", "1"): (1, 2),
    ("raw", "FADD", "0", "STG", "1"): (1, 2),
    ("raw", "ISETP", "0p0", "SEL", "3p0"): (1, 2),
    ("raw", "ISETP", "0p0", "MOV", "G"): (1, 2, 3, 4, 5, 6),
    ("raw", "FSETP", "0p0", "FMUL", "G"): (1, 2, 3, 4, 5, 6),
    ("raw", "UIADD3", "0", "UIADD3", "1"): (1,),
    ("raw", "R2UR", "0", "IADD3", "2"): (1, 2, 3, 4),
}


def rows(plan: Plan, tally: Tally) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row a pair, and the summary."""
    mined = LatencyTable.load("sm_90")
    found = []
    for batch in plan.batches:
        for n, (key, texts) in enumerate(zip(batch.rows, batch.texts, strict=True)):
            result = tally.result(batch.number, n)
            kind, first, first_slot, second, second_slot = key
            seen = mined.rows.get((kind, first, first_slot, second, second_slot))
            trusted = mined.distance(kind, first, first_slot, second, second_slot)
            row: dict[str, Any] = {
                "kind": kind, "producer": first, "producer_slot": first_slot, "consumer": second,
                "consumer_slot": second_slot, "status": result.status, "cycles": result.cycles,
                "trials": result.trials, "bound": result.bound, "below": list(result.below),
                "odd": result.odd,
                "shortest": result.shortest,
                "distances": {str(d): list(v) if v else "crashed" for d, v in result.by_distance.items()},
                "first": texts[0], "second": texts[1], "mined": seen.cycles if seen else None,
                "mined_trusted": trusted is not None,
                "relation": _relation(result.status, result.cycles, seen),
                "probe": [batch.number, n],
            }  # fmt: skip
            found.append(row)
    return found, summary(found, tally)


def _relation(status: str, cycles: int, mined: Any) -> str:
    """Where the measured distance lies: ``danger`` when the mined table allows less than was right."""
    if mined is None or status not in ("measured", "never failed", "always wrong"):
        return ""
    if status == "always wrong":
        return ""
    return "danger" if mined.cycles < cycles else "same" if mined.cycles == cycles else "less"


def summary(found: list[dict[str, Any]], tally: Tally) -> dict[str, Any]:
    """Counts, the known pairs, and whether the whole can be believed (`sound`)."""
    status = Counter(r["status"] for r in found)
    missed, tried = [], 0
    by_key = {
        (r["kind"], r["producer"], r["producer_slot"], r["consumer"], r["consumer_slot"]): r for r in found
    }
    for key, distances in KNOWN_TOO_SHORT.items():
        row = by_key.get(key)
        for distance in distances:
            seen = row["distances"].get(str(distance)) if row else None
            if seen is None or (seen != "crashed" and not seen[0] and not seen[1]):
                continue  # not in this plan, not run yet, or the hardware never issues it so close
            tried += 1
            if seen != "crashed" and not seen[0]:
                missed.append([*key, distance])
    bounds = [r["bound"] for r in found if r["status"] == "measured" and r["bound"]]
    return {
        "pairs": len(found), "measured": status["measured"], "never_failed": status["never failed"],
        "always_wrong": status["always wrong"], "blind": status["blind"], "unfinished": status["unfinished"],
        "same_as_mined": sum(r["relation"] == "same" for r in found),
        "less_than_mined": sum(r["relation"] == "less" for r in found),
        "danger": sum(r["relation"] == "danger" for r in found),
        "trials": sum(r["trials"] for r in found), "highest_bound": max(bounds, default=None),
        "known_too_short_tried": tried, "known_too_short_missed": missed,
        "runs": tally.runs, "bad_by_shape": tally.bad_by_shape,
        "sound": tried > 0 and not missed and status["always wrong"] * 20 <= max(1, len(found)),
    }  # fmt: skip


def text(found: list[dict[str, Any]], summed: dict[str, Any]) -> str:
    """For a terminal: dangers first and loudly."""
    lines = []
    danger = sorted((r for r in found if r["relation"] == "danger"), key=lambda r: r["mined"] - r["cycles"])
    if danger:
        lines.append(f"DANGER: {len(danger)} pairs need more than the mined table allows:")
        lines += [
            f"  {_name(r)}: mined {r['mined']}{'' if r['mined_trusted'] else ' (not trusted)'}, "
            f"measured {r['cycles']}"
            f" ({r['below'][0]} of {r['below'][1]} wrong at {r['cycles'] - 1})"
            for r in danger[:60]
        ]
    for status in ("always wrong", "blind"):
        some = [r for r in found if r["status"] == status]
        if some:
            names = Counter((r["first"].split()[0], r["second"].split()[0]) for r in some)
            lines.append(
                f"{status}: {len(some)} pairs, most of "
                + ", ".join(f"{a} -> {b}" for (a, b), _ in names.most_common(6))
            )
    gains = Counter(r["mined"] - r["cycles"] for r in found if r["relation"] == "less")
    if gains:
        lines.append(
            "closer than mined by cycles: " + ", ".join(f"{c}: {n}" for c, n in sorted(gains.items()))
        )
    if summed["known_too_short_missed"]:
        lines.append(f"NOT CAUGHT, though known to be too close: {summed['known_too_short_missed']}")
    lines.append(
        f"{summed['pairs']} pairs: {summed['measured']} measured, {summed['never_failed']} never failed, "
        f"{summed['unfinished']} unfinished; {summed['same_as_mined']} as mined, "
        f"{summed['less_than_mined']} less, "
        f"{summed['danger']} more; {summed['known_too_short_tried']} known faults tried; "
        f"{'sound' if summed['sound'] else 'NOT SOUND'}"
    )
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    return (
        f"{row['kind']} {row['producer']} {row['producer_slot']} -> {row['consumer']} {row['consumer_slot']}"
    )
