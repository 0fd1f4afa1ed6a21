"""Arena layout, inputs, guard bands (on the CPU, where torch is installed), block orders, sample tables."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sassafras.core import Buffer, Case, Custom, DeviceError, Normal, Uniform
from sassafras.cuda.timing import balanced, interleaved, launches_a_block, with_one_checked
from sassafras.evaluate.gpu.guarded_buffers import ALIGN, GUARD, BufferLayout, guard_pattern, make_image, view
from sassafras.evaluate.gpu.random_tests import job_table

CASE = Case(
    "c",
    (1, 1, 1),
    {
        "y": Buffer("fp16", (33, 7), "out"),
        "x": Buffer("fp32", (5, 1001)),
        "n": 7,
        "i": Buffer("i32", (400,), fill=Uniform(0, 10)),
        "acc": Buffer("bf16", (64,), "inout", Uniform(-1.0, 1.0)),
        "flag": Buffer("i1", (100,), fill=Uniform(0, 2)),
        "q": Buffer("fp8e4nv", (64,)),
        "w": Buffer("i8", (1000,), fill=Normal(0, 30)),
    },
)
LAYOUT = BufferLayout.of(CASE)


def test_buffers_are_aligned_and_apart() -> None:
    assert [s.name for s in LAYOUT.segments] == ["y", "x", "i", "acc", "flag", "q", "w"]
    assert LAYOUT.nbytes % 16 == 0
    end = 0
    for segment in LAYOUT.segments:
        assert segment.offset % ALIGN == 0
        assert segment.offset - end >= GUARD
        end = segment.end
    assert LAYOUT.nbytes - end >= GUARD


def test_places_are_named() -> None:
    x = LAYOUT.segments[1]
    assert LAYOUT.where(x.offset + 40) == ("in", "x, near element 10")
    assert LAYOUT.where(x.end) == ("guard", "0 bytes past the end of x")
    assert LAYOUT.where(LAYOUT.segments[0].offset - 16) == ("guard", "16 bytes before y")
    assert LAYOUT.where(LAYOUT.segments[3].offset)[0] == "inout"


def test_ranges_that_must_not_change_cover_all_but_outputs() -> None:
    covered = np.zeros(LAYOUT.nbytes, bool)
    for begin, end in LAYOUT.unchanged_ranges():
        assert begin % 16 == end % 16 == 0
        assert not covered[begin:end].any()
        covered[begin:end] = True
    for segment in LAYOUT.segments:
        inside = covered[segment.offset : segment.end]
        assert inside.all() if segment.buffer.role == "in" else not inside.any()
    assert (~covered).sum() < sum(s.buffer.nbytes + 16 for s in LAYOUT.segments if s.buffer.role != "in")


def test_guard_is_nan_and_depends_on_the_position() -> None:
    pytest.importorskip("torch")
    guard = guard_pattern(GUARD).numpy()
    assert np.isnan(guard.view(np.float32)).all()
    assert np.isnan(guard.view(np.float16)).all()
    assert not np.array_equal(guard[:-16], guard[16:])


def test_images_are_reproducible_poisoned_and_filled() -> None:
    torch = pytest.importorskip("torch")
    image = make_image(LAYOUT, seed=3, device="cpu")
    assert torch.equal(image, make_image(LAYOUT, seed=3, device="cpu"))
    other = make_image(LAYOUT, seed=4, device="cpu")
    tensors = {s.name: view(image, s) for s in LAYOUT.segments}
    assert tensors["y"].isnan().all()
    assert tensors["y"].shape == (33, 7)
    assert abs(float(tensors["x"].mean())) < 0.1
    assert 0.9 < float(tensors["x"].std()) < 1.1
    assert not torch.equal(tensors["x"], view(other, LAYOUT.segments[1]))
    assert set(tensors["i"].tolist()) == set(range(10))
    assert tensors["acc"].abs().max() <= 1
    assert 20 < float(tensors["w"].double().std()) < 40
    assert tensors["flag"].dtype == torch.bool
    assert 20 < int(tensors["flag"].sum()) < 80
    covered = np.zeros(LAYOUT.nbytes, bool)
    for segment in LAYOUT.segments:
        covered[segment.offset : segment.end] = True
    guard = guard_pattern(LAYOUT.nbytes).numpy()
    assert np.array_equal(image.numpy()[~covered], guard[~covered])


def test_special_values_are_planted_in_real_inputs_only() -> None:
    torch = pytest.importorskip("torch")
    case = Case(
        "s", (1, 1, 1), {"x": Buffer("fp32", (300_000,)), "i": Buffer("i32", (9,), fill=Uniform(0, 5))}
    )
    layout = BufferLayout.of(case)
    image = make_image(layout, seed=1, special=True, device="cpu")
    x = view(image, layout.segments[0])
    assert x.isnan().any()
    assert x.isinf().any()
    assert (x.abs() > 1e38).any()
    tiny = torch.finfo(torch.float32).tiny
    assert ((x != 0) & (x.abs() < tiny)).any()
    assert x.isfinite().double().mean() > 0.999
    assert view(image, layout.segments[1]).max() < 5


def test_custom_fills_are_used_and_their_shape_is_checked() -> None:
    torch = pytest.importorskip("torch")
    good = Buffer("i64", (4,), fill=Custom(lambda shape, dtype, g, device: torch.arange(4, dtype=dtype)))
    layout = BufferLayout.of(Case("c", (1, 1, 1), {"p": good}))
    assert view(make_image(layout, seed=0, device="cpu"), layout.segments[0]).tolist() == [0, 1, 2, 3]
    bad = Buffer("i64", (4,), fill=Custom(lambda shape, dtype, g, device: torch.zeros(5)))
    with pytest.raises(DeviceError, match="p: the custom fill returned shape"):
        make_image(BufferLayout.of(Case("c", (1, 1, 1), {"p": bad})), seed=0, device="cpu")


def test_every_contestant_has_the_same_mean_position() -> None:
    assert interleaved(2, 4) == [0, 1, 1, 0, 0, 1, 1, 0]
    for contestants in (2, 3):
        order = interleaved(contestants, 10)
        positions = {c: [i for i, which in enumerate(order) if which == c] for c in range(contestants)}
        assert len({sum(p) for p in positions.values()}) == 1
        assert Counter(order) == dict.fromkeys(range(contestants), 10)


@pytest.mark.parametrize("contestants", [1, 2, 3, 4, 7, 14, 15])
def test_everyone_follows_everyone_and_visits_every_place_as_often(contestants: int) -> None:
    order = balanced(contestants, 2 * contestants, seed=5)
    rounds = [order[at : at + contestants] for at in range(0, len(order), contestants)]
    assert all(sorted(row) == list(range(contestants)) for row in rounds)
    assert all(row == back[::-1] for row, back in zip(rounds[::2], rounds[1::2], strict=True))
    places = Counter((place, which) for row in rounds for place, which in enumerate(row))
    assert set(places.values()) == {2}
    follows = Counter(pair for row in rounds for pair in itertools.pairwise(row))
    assert len(follows) == contestants * (contestants - 1)
    assert set(follows.values()) == ({2} if contestants > 1 else set())
    assert balanced(contestants, 2, seed=5) == order[: 2 * contestants] and balanced(0, 3) == []
    assert contestants < 4 or balanced(contestants, 2, seed=6) != order[: 2 * contestants]


@pytest.mark.parametrize(
    ("launch", "launches"), [(10.0, 10), (2.7, 38), (100.0, 1), (5000.0, 1), (0.001, 400)]
)
def test_blocks_are_long_enough_for_the_event_clock(launch: float, launches: int) -> None:
    assert launches_a_block(launch) == launches


def test_no_block_is_asked_to_be_longer_than_two_milliseconds() -> None:
    assert launches_a_block(10.0, 50_000.0) == 200


def test_sample_table_matches_the_struct_of_the_kernel() -> None:
    table, words, fixed = job_table(LAYOUT)
    assert fixed == []
    row = struct.Struct("<QQQIIIIffqq")
    rows = [row.unpack_from(table, i) for i in range(0, len(table), row.size)]
    assert row.size == 64
    y, x, i, acc, *_ = LAYOUT.segments
    assert rows[0][:4] == (y.offset // 16, -(-y.end // 16), 0, 1)
    assert rows[0][6] == 33 * 7 * 2 % 16
    assert rows[1] == (x.offset // 16, -(-x.end // 16), rows[1][2], 10, 1, 1, 4, 0.0, 1.0, 0, 1)
    assert rows[2] == (i.offset // 16, i.end // 16, rows[2][2], 10, 2, 17, 16, 0.0, 10.0, 0, 10)
    assert rows[3][:2] == (acc.offset // 16, acc.end // 16)
    assert rows[3][3:6] == (7, 2, 3)
    at = 0
    for begin, end, start, *_ in rows:
        assert start == at
        at += end - begin
    assert words == at
    custom = Case("c", (1, 1, 1), {"p": Buffer("i64", (4,), fill=Custom(lambda *a: None))})
    assert job_table(BufferLayout.of(custom)) == (b"", 0, ["p"])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 6, 8, 11])
def test_one_block_of_the_candidate_is_checked_and_all_pairs_are_counted(rounds: int) -> None:
    rng = random.Random(rounds)
    places = set()
    for _ in range(40 * rounds):
        order, marked, pairs = with_one_checked(rounds, rng)
        places.add(marked)
        assert len(order) == 2 * rounds + 1 and len(pairs) == rounds
        assert order[marked] == 1 and order[-1] == 1
        assert all(order[base] == 0 and order[mine] == 1 and abs(base - mine) == 1 for base, mine in pairs)
        assert sorted([marked, *(index for pair in pairs for index in pair)]) == list(range(len(order)))
        # forward and backward by turns: a linear drift over the counted blocks cancels
        turns = [base < mine for base, mine in pairs]
        assert all(a != b for a, b in itertools.pairwise(turns))
    assert places == set(range(0, 2 * rounds + 1, 2))


def test_a_bench_checks_what_it_does_not_count_and_what_the_last_block_leaves() -> None:
    """The host's part of timing, with a stopwatch that notes what it is told to do."""
    from sassafras.evaluate.gpu.judge import KernelJudge

    said: list[Any] = []

    def blocks(graphs: Any, order: Any, *, before: Any, after: Any) -> list[float]:
        times = []
        for index, which in enumerate(order):
            before(index)
            said.append(graphs[which])
            times.append(10.0 * (1 + which))
            after(index)
            if said[-1] == "compare, block":  # restored memory: its time tells nothing
                times[-1] = 1e6
        return times

    bench = KernelJudge.__new__(KernelJudge)
    bench._rng, bench.launches, bench.graph = random.Random(5), 10, "baseline"
    bench.headline = SimpleNamespace(  # type: ignore[assignment]
        images=["image"], idempotent=True, exact=True, restore=lambda image: said.append("restore"),
        compare=lambda image, label, block=False: said.append("compare, block" if block else label),
    )  # fmt: skip
    bench.stopwatch = SimpleNamespace(blocks=blocks)  # type: ignore[assignment]
    for rounds in (4, 8, 5):
        said.clear()
        assert bench._rounds("candidate", rounds) == ([1.0] * rounds, [2.0] * rounds)
        at = said.index("restore")
        assert said[at : at + 3] == ["restore", "candidate", "compare, block"]
        assert said.count("candidate") == rounds + 1 and said.count("baseline") == rounds
        assert said[-1] == "left by timed launches"
        assert [s for s in said if s in ("candidate", "baseline")][-1] == "candidate"
