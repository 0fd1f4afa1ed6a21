"""The order of memory operations, found in one pass, against the definition pair by pair."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sassafras.validate import Validator
from sassafras.validate.analysis import Analysis
from sassafras.validate.classes import Kind
from sassafras.validate.memory import pairs
from sassafras.validate.rules_jit import overtaken
from tests import kernels


def keep_order(a: Kind, b: Kind, same_base: bool) -> bool:
    """Whether two operations keep their order; `same_base`: their address registers hold the same values."""
    space, other = a.stores or a.loads, b.stores or b.loads
    copies = a.queue == "LDGSTS", b.queue == "LDGSTS"
    comparable = space == other and copies in ((False, False), (True, True))
    if a.address and b.address and same_base and comparable and not (a.ordered or b.ordered):
        (_, low, size), (_, at, width) = a.address, b.address
        return low < at + width and at < low + size
    stores = a.stores & (b.loads | b.stores) or b.stores & a.loads
    return bool(a.ordered or b.ordered or stores)


def by_pairs(a: Analysis) -> Iterator[tuple[int, int]]:
    for block in a.blocks:
        versions: dict[int, int] = {}
        seen: list[tuple[int, object]] = []
        for n in range(block.start, block.end):
            kind = a.kinds[n]
            if kind.memory and not a.effects[n].never:
                named = kind.address[0] if kind.address else ()
                base = [(r, versions.get(r[0]), versions.get(r[0] + 1)) for r in named]
                for m, other in seen:
                    if keep_order(a.kinds[m], kind, base == other):
                        yield m, n
                seen.append((n, base))
            for register in a.effects[n].writes:
                versions[register] = n


CASES = {
    "scalar softmax": lambda: kernels.softmax_cubin(aligned=False, block=2048),
    "HGMMA": lambda: kernels.matmul_cubin(),
    "sm_80": lambda: kernels.matmul_cubin("sm_80"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_pass_finds_what_the_definition_finds(case: str) -> None:
    a = Validator(CASES[case]()).analysis
    keep, rng, wrong = list(by_pairs(a)), np.random.default_rng(1), 0
    assert len(keep) > 50
    for trial in range(100):
        place = np.arange(a.count, dtype=np.int32)
        for block in a.blocks:
            for _ in range(trial % 5):
                x, y = rng.integers(block.start, block.end, 2)
                place[[x, y]] = place[[y, x]]
        rows = np.empty(a.count, dtype=np.int32)
        rows = rows[: overtaken(a.memory, place, rows)]
        found = list(pairs(a.memory, rows.tolist(), place))
        assert found == [(m, n) for m, n in keep if place[m] > place[n]]
        wrong += bool(found)
    assert 10 < wrong < 100
