"""What an agent sees of a schedule: one row of numbers an instruction, in the order of the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sassafras.sass import Function, Queue
from sassafras.sass.registers import GPR, PRED, UGPR, UPRED

if TYPE_CHECKING:
    from .space import ScheduleSpace
    from .state import ScheduleState
    from .tables import Tables

_QUEUES = tuple(Queue)
_SOURCES = 4
#: column names
NAMES: tuple[str, ...] = (
    *(f"wait{n}" for n in range(6)),
    "write_barrier", "read_barrier", "yield", "stall", "guarded", "guard_uniform",
    *(f"queue_{q.value}" for q in _QUEUES),
    "loads", "stores", "variable", "movable", "fence",
    "destination", "destination_width", "destination_uniform",
    *(f"source{n}" for n in range(_SOURCES)),
    "moved_by", "room_up", "room_down", "depth", "slack", "block_position",
    "height", "critical", "early", "since_set", "until_wait",
)  # fmt: skip
WIDTH = len(NAMES)
#: the columns that CuAsmRL's agent sees too (arXiv 2501.08071: control code, opcode, operands)
PAPER: tuple[str, ...] = NAMES[: NAMES.index("moved_by")]


def _fixed(space: ScheduleSpace) -> np.ndarray:
    """The columns that do not depend on the schedule, by instruction."""
    function: Function = space.function
    rows = np.zeros((len(function), WIDTH), dtype=np.float32)
    at = {name: n for n, name in enumerate(NAMES)}
    for n, i in enumerate(function.instructions):
        row, c = rows[n], i.control
        for barrier in range(6):
            row[at[f"wait{barrier}"]] = c.wait_mask >> barrier & 1
        row[at["write_barrier"]] = 0 if c.write_barrier is None else (c.write_barrier + 1) / 6
        row[at["read_barrier"]] = 0 if c.read_barrier is None else (c.read_barrier + 1) / 6
        row[at["yield"]] = c.yield_hint
        row[at["guarded"]] = i.guard not in ("", "PT")
        row[at["guard_uniform"]] = i.guard.lstrip("!").startswith("U")
        row[at[f"queue_{i.op.queue.value}"]] = 1
        row[at["loads"]] = i.op.reads_memory
        row[at["stores"]] = i.op.writes_memory
        row[at["variable"]] = i.op.variable
        row[at["movable"]] = space.tables.movable[n]
        row[at["fence"]] = space.graph.fence[n]
        written = sorted(r for r in i.writes if not PRED <= r < UGPR and r < UPRED)
        if written:
            row[at["destination"]] = _spread(written[0])
            row[at["destination_width"]] = len(written) / 8
            row[at["destination_uniform"]] = written[0] >= UGPR
        for k, register in enumerate(sorted(i.reads)[:_SOURCES]):
            row[at[f"source{k}"]] = _spread(register)
    return rows


def _spread(register: int) -> float:
    """A register's number within its file as a number in (0, 1]; 0 means none."""
    for base in (UPRED, UGPR, PRED, GPR):
        if register >= base:
            return (register - base + 1) / 256
    return 0.0


def rows(space: ScheduleSpace, state: ScheduleState) -> np.ndarray:
    """Features of a schedule.

    Returns:
        float32 (instructions, WIDTH), one row a position, columns as in `NAMES`. Booleans are 0 or 1; stall
        is stall / 15; ``moved_by`` is the signed distance from the original position, ``room_up`` and
        ``room_down`` how far the instruction may go, all three x / (1 + |x|); ``depth`` is the
        longest chain of distances from the block's start and ``slack`` the cycles between that and its
        issue, ``height`` the longest chain to the block's end, ``early`` the cycles by which it could
        issue sooner as far as its producers go, ``since_set`` those since the scoreboard that it waits for
        was set last and ``until_wait`` those until its own is waited for (-1 / 64 where nothing
        does), all in units of 64 cycles, capped at 4; ``critical`` is 1 on the block's longest chains.
    """
    from .encode_jit import survey

    fixed = getattr(space, "_feature_rows", None)
    if fixed is None:
        fixed = _fixed(space)
        space._feature_rows = fixed  # type: ignore[attr-defined]
    order = state.order
    out: np.ndarray = fixed[order]
    at = {name: n for n, name in enumerate(NAMES)}
    place = np.arange(len(order))
    seen = survey(space.tables, order, state.stall, state.where)
    up, down = _room(space.tables, state)
    out[:, at["stall"]] = state.stall / 15
    out[:, at["yield"]] *= state.stall < 12
    for name, x in (("moved_by", place - order), ("room_up", up), ("room_down", down)):
        out[:, at[name]] = x / (1.0 + np.abs(x))
    block = space.tables.block_of
    size = (space.tables.end - space.tables.start)[block]
    out[:, at["block_position"]] = (place - space.tables.start[block]) / size
    cycles = {"depth": seen.depth, "slack": seen.slack, "height": seen.height, "early": seen.early}
    for name, x in (cycles | {"since_set": seen.since, "until_wait": seen.until}).items():
        out[:, at[name]] = np.minimum(x / 64, 4)
    longest = np.zeros(len(size), dtype=np.int32)
    chain = seen.depth + seen.height
    np.maximum.at(longest, block, chain)
    out[:, at["critical"]] = chain == longest[block]
    return out


def _room(t: Tables, state: ScheduleState) -> tuple[np.ndarray, np.ndarray]:
    """How many places the instruction at each position may go up and down, as far as order goes."""
    place, where = np.arange(len(state.order)), state.where
    low, high = t.low.copy(), t.high - 1
    np.maximum.at(low, np.repeat(where, np.diff(t.order_at)), where[t.order_before] + 1)
    np.minimum.at(high, np.repeat(where, np.diff(t.after_at)), where[t.after] - 1)
    movable = t.movable[state.order]
    return (place - low) * movable, (high - place) * movable
