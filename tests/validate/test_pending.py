"""What may be pending, as one pass over the control-flow graph finds it, against one path at a time."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import numpy as np

from sassafras.validate.flow import Flow, flow_of
from sassafras.validate.graph import GraphBlock
from sassafras.validate.pending_jit import (
    AT_FENCE,
    MOST_RAISED,
    SETTER_TO_WAITER,
    Schedule,
    Tracked,
    scoreboards,
)

COUNT, TRACKED, NONE = 12, 5, 7


class Program(NamedTuple):
    """A random kernel and one schedule of it."""

    blocks: list[GraphBlock]
    flow: Flow
    facts: Tracked
    schedule: Schedule


def drawn(rng: random.Random, raising: bool = False) -> Program:
    """Four blocks of three instructions, five of which are tracked; few scoreboards, as they are shared."""
    blocks = [GraphBlock(3 * n, 3 * n + 3, tuple(sorted(rng.sample(range(4), 2)))) for n in range(4)]
    order = [n for b in blocks for n in rng.sample(range(b.start, b.end), 3)]
    chances = (0,) * 200 if raising else (0, 0, 0)  # of a wait: few where scoreboards are to be raised often
    counted = (3, 3, 3, 1, 2) if raising else (3, 3, 3, 1, 2, 7, 11)
    stalls = [rng.choice((1, 1, 2, 9)) for _ in range(COUNT)]
    number, fence = np.full(COUNT, -1, np.int32), np.full(COUNT, -1, np.int32)
    number[rng.sample(range(COUNT), TRACKED)] = np.arange(TRACKED)
    fence[rng.sample(range(COUNT), 2)] = np.arange(2)
    checks = [[2 * v + r for v in range(TRACKED) for r in (0, 1) if rng.random() < 0.4] for _ in range(COUNT)]

    def many(low: int, high: int, size: int, kind: type) -> np.ndarray:
        return np.array([rng.randrange(low, high) for _ in range(size)], dtype=kind)

    facts = Tracked(
        number=number, covers=many(-1, 2, TRACKED, np.int8), results_by=many(0, 4, TRACKED, np.uint64),
        reads_by=many(0, 4, TRACKED, np.uint64), watched=many(1, 4, TRACKED, np.uint8),
        counted=np.array([rng.choice(counted) for _ in range(COUNT)], dtype=np.uint8),
        families=many(int(raising), 3, 2 * COUNT, np.int32).reshape(-1, 2),
        check_at=np.cumsum([0, *map(len, checks)]).astype(np.int32),
        check=np.array([c for row in checks for c in row], dtype=np.int32),
        fence=fence, allowed=many(0, 4, 2 * TRACKED, np.uint8).reshape(2, -1),
    )  # fmt: skip
    sets = [[rng.choice((0, 1, 2, NONE)) if number[n] >= 0 else NONE for n in order] for _ in range(2)]
    schedule = Schedule(
        order=np.array(order, dtype=np.int32),
        times=np.array([sum(stalls[n - n % 3 : n]) for n in range(COUNT)], dtype=np.int32),
        wait=np.array([rng.choice((*chances, 1, 2, 4)) for _ in range(COUNT)], dtype=np.uint8),
        write=np.array(sets[0], dtype=np.uint8), read=np.array(sets[1], dtype=np.uint8),
        lengths=np.array([sum(stalls[n : n + 3]) for n in range(0, COUNT, 3)], dtype=np.int32),
    )  # fmt: skip
    return Program(blocks, flow_of(blocks), facts, schedule)


def along(p: Program, path: list[int]) -> set[tuple[int, int]]:
    """What is wrong on one path: (position, code), as `scoreboards` has it."""
    t, c = p.facts, p.schedule
    pending: dict[tuple[int, int], set[int]] = {}  # (tracked, 0 result or 1 reads) -> what tells of its end
    begin, last = 0, dict.fromkeys(range(6), -1000)
    raised: dict[int, list[int]] = {s: [] for s in range(6)}
    found = set()
    for b in path:
        for at in range(p.blocks[b].start, p.blocks[b].end):
            i, now = int(c.order[at]), begin + int(c.times[at])
            waits = {s for s in range(6) if c.wait[at] >> s & 1}
            found |= {(at, -1 - s) for s in waits if now - last[s] < SETTER_TO_WAITER}
            pending = {key: by for key, by in pending.items() if not by & waits}
            needs = t.check[t.check_at[i] : t.check_at[i + 1]].tolist()
            found |= {(at, code) for code in needs if (code >> 1, code & 1) in pending}
            if t.fence[i] >= 0:
                found |= {
                    (at, AT_FENCE + v) for v, rule in pending if not t.allowed[t.fence[i], v] >> rule & 1
                }
            for s in range(6):
                if s in waits or t.counted[i] >> 2 + s & 1:
                    raised[s] = []
            sets = [{int(s)} - {NONE} for s in (c.write[at], c.read[at])]
            for which in (0, 1):
                for s in sets[which]:
                    last[s] = now if t.counted[i] & 2 else last[s]
                    raised[s] += [int(t.families[i, which])] if t.counted[i] & 1 else []
                    several = 0 in raised[s] or len({*raised[s]}) > 1
                    if len(raised[s]) > MOST_RAISED and several and t.counted[i] & 1:
                        found.add((at, -11 - s))
            if (u := int(t.number[i])) < 0:
                continue
            for (v, rule), by in pending.items():
                if t.covers[u] >= 0 and int(t.results_by[v]) >> int(t.covers[u]) & 1 and (v, 0) in pending:
                    by |= sets[0]  # with its results there, its operands have been read
                if t.covers[u] >= 0 and rule and int(t.reads_by[v]) >> int(t.covers[u]) & 1:
                    by |= sets[0] | sets[1]
            for rule in (0, 1):
                if t.watched[u] >> rule & 1:
                    pending[u, rule] = sets[0] | sets[1] if rule else set(sets[0])
        begin += int(c.lengths[b])
    return found


def found_in(p: Program, record: bool = False) -> set[tuple[int, int]]:
    """What `scoreboards` finds in it."""
    out = np.empty((4096, 2), dtype=np.int32)
    count = scoreboards(p.flow, p.facts, p.schedule, record, out)
    return {(position, code) for position, code in out[:count].tolist()}


def kind_of(code: int) -> str:
    """What a code tells of."""
    return "fence" if code >= AT_FENCE else "needed" if code >= 0 else "soon" if code > -11 else "count"


def test_whatever_is_wrong_on_a_path_is_found() -> None:
    rng, seen = random.Random(8), Counter[str]()
    for n in range(1200):
        raising = n % 8 == 0
        p = drawn(rng, raising)
        given = found_in(p)
        for steps in (70, 120) if raising else (3, 3, 4, 4, 5):
            path = [0]
            while len(path) < steps and p.blocks[path[-1]].follow:
                path.append(rng.choice(p.blocks[path[-1]].follow))
            found = along(p, path)
            assert found <= given, (found - given, path, p)
            seen.update(kind_of(code) for _, code in found)
    assert min(seen[kind] for kind in ("needed", "fence", "soon", "count")) > 20, seen


def test_only_what_may_be_pending_at_a_fence_is_allowed_there() -> None:
    rng = random.Random(3)
    for _ in range(100):
        p = drawn(rng)
        p.facts.allowed[:] = 0
        found_in(p, record=True)
        noted = p.facts.allowed.copy()
        assert not any(code >= AT_FENCE for _, code in found_in(p))
        for rule in (1, 2):
            p.facts.allowed[:] = 3 - rule
            found = {
                (int(p.schedule.order[at]), code - AT_FENCE) for at, code in found_in(p) if code >= AT_FENCE
            }
            assert {(n, v) for n in range(COUNT) for v in range(TRACKED)
                    if p.facts.fence[n] >= 0 and noted[p.facts.fence[n], v] & rule} == found  # fmt: skip
