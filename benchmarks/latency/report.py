"""Rows and summary of a measurement, and what it says of the mined table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sassafras.sass.latency import LatencyTable
from sassafras.sass.latency.classes import pair_class

from .analysis import Result, Tally
from .plan import Plan

#: more cycles than any pair needs: what the mined table answers where it knows nothing
UNKNOWN = 1 << 20

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
            allowed = mined.needed(kind, first, first_slot, second, second_slot, UNKNOWN)
            row: dict[str, Any] = {
                "kind": kind,
                "producer": first,
                "producer_slot": first_slot,
                "consumer": second,
                "consumer_slot": second_slot,
                "status": result.status,
                "cycles": result.cycles,
                "trials": result.trials,
                "bound": result.bound,
                "below": list(result.below),
                "fault": result.fault,
                "wrong": (result.by_distance.get(result.fault) or (0, 0))[0],
                "held": result.held,
                "odd": result.odd,
                "shortest": result.shortest,
                "distances": {str(d): list(v) if v else "crashed" for d, v in result.by_distance.items()},
                "first": texts[0],
                "second": texts[1],
                "mined": seen.cycles if seen else None,
                "mined_trusted": trusted is not None,
                "allowed": allowed if allowed < UNKNOWN else None,
                "relation": _relation(result, seen.cycles if seen else None, allowed),
                "probe": [batch.number, n],
            }
            found.append(row)
    return found, summary(found, tally)


def classes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows pooled by class (`sassafras.sass.latency.pair_class`), for a file that can be looked through."""
    pools: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in found:
        key = (r["kind"], r["producer"], r["producer_slot"], r["consumer"], r["consumer_slot"])
        pools.setdefault(pair_class(key), []).append(r)
    made = []
    for (kind, first, second), pool in sorted(pools.items()):
        status = Counter(r["status"] for r in pool)
        cycles = Counter(r["cycles"] for r in pool if r["status"] == "measured")
        allowed = Counter(r["allowed"] for r in pool if r["allowed"])
        made.append(
            {
                "kind": kind,
                "producers": first,
                "consumers": second,
                "pairs": len(pool),
                "measured": status["measured"],
                "never_failed": status["never failed"],
                "blind": status["blind"],
                "cycles": {str(c): n for c, n in sorted(cycles.items())},
                "allowed_by_mined": {str(c): n for c, n in sorted(allowed.items())},
                "least_trials": min((r["trials"] for r in pool if r["status"] == "measured"), default=None),
            }
        )
    return made


def _relation(result: Result, mined: int | None, allowed: int) -> str:
    """What a measurement says of the mined table.

    ``danger``: a fault was seen at a distance that ptxas was seen to leave (`mined`) or that the table lets a
    candidate have (`allowed`, also for pairs that were never mined). Otherwise, where there is a mined row,
    ``same``, ``less``, or ``held``: at the mined distance nothing went wrong, but the clock says that the
    hardware itself held the pair apart, so that the smallest distance that was realised is larger.
    """
    if result.status not in ("measured", "never failed"):
        return ""
    if result.fault >= min(allowed, mined or UNKNOWN):
        return "danger"
    if mined is None:
        return ""
    return "held" if mined < result.cycles else "same" if mined == result.cycles else "less"


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
    answered = [r for r in found if r["allowed"] and r["status"] in ("measured", "never failed")]
    tight = [r for r in answered if r["status"] == "measured"]
    trusted = [r for r in tight if r["mined_trusted"]]
    bounds = [r["bound"] for r in found if r["status"] == "measured" and r["bound"]]
    return {
        "pairs": len(found),
        "measured": status["measured"],
        "never_failed": status["never failed"],
        "always_wrong": status["always wrong"],
        "blind": status["blind"],
        "unfinished": status["unfinished"],
        "same_as_mined": sum(r["relation"] == "same" for r in found),
        "less_than_mined": sum(r["relation"] == "less" for r in found),
        "held": sum(r["relation"] == "held" for r in found),
        "danger": sum(r["relation"] == "danger" for r in found),
        "allowed_by_mined": len(answered),
        "allowed_and_failed": len(tight),
        "fault_one_below_allowed": sum(r["fault"] == r["allowed"] - 1 for r in tight),
        "trusted_and_failed": len(trusted),
        "fault_one_below_trusted": sum(r["fault"] == r["allowed"] - 1 for r in trusted),
        "trials": sum(r["trials"] for r in found),
        "highest_bound": max(bounds, default=None),
        "known_too_short_tried": tried,
        "known_too_short_missed": missed,
        "runs": tally.runs,
        "bad_by_shape": tally.bad_by_shape,
        "sound": tried > 0 and not missed and status["always wrong"] * 20 <= max(1, len(found)),
    }


def text(found: list[dict[str, Any]], summed: dict[str, Any]) -> str:
    """For a terminal: dangers first and loudly."""
    lines = [
        f"DANGER: {_name(r)}: mined {r['mined']}, allowed {r['allowed']}, measured {r['cycles']}, wrong at "
        f"{r['fault']}"
        for r in found
        if r["relation"] == "danger"
    ]
    for status in ("always wrong", "blind"):
        names = Counter(
            (r["first"].split()[0], r["second"].split()[0]) for r in found if r["status"] == status
        )
        if names:
            most = ", ".join(f"{a} -> {b}" for (a, b), _ in names.most_common(6))
            lines.append(f"{status}: {sum(names.values())} pairs, most of {most}")
    if summed["known_too_short_missed"]:
        lines.append(f"NOT CAUGHT, though known to be too close: {summed['known_too_short_missed']}")
    lines.append(
        f"{summed['pairs']} pairs: {summed['measured']} measured, {summed['never_failed']} never failed, "
        f"{summed['unfinished']} unfinished; {summed['same_as_mined']} as mined, "
        f"{summed['less_than_mined']} less, "
        f"{summed['held']} held, {summed['danger']} more; "
        f"{summed['known_too_short_tried']} known faults tried; "
        f"{'sound' if summed['sound'] else 'NOT SOUND'}"
    )
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    return (
        f"{row['kind']} {row['producer']} {row['producer_slot']} -> {row['consumer']} {row['consumer_slot']}"
    )
