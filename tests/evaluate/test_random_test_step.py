"""The sampling kernel, compiled for the CPU from the very same text: what it fills and compares."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.core import Buffer, Case, Custom, Normal, Uniform
from sassafras.evaluate.gpu import random_tests
from sassafras.evaluate.gpu.guarded_buffers import BufferLayout, guard_pattern

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
pytest.importorskip("torch")
SHIM = r"""
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __constant__ static const
static void __syncthreads() {}
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static void wait_for_launch() {}
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> by);
}
static unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const unsigned long long all = (unsigned long long)high << 32 | low;
    unsigned r = 0;
    for (int k = 0; k < 4; ++k) r |= (unsigned)(all >> 8 * (which >> 4 * k & 7) & 255) << 8 * k;
    return r;
}
struct Dim { unsigned x; };
static Dim threadIdx{0}, blockIdx{0}, blockDim{1}, gridDim{1};
static unsigned __float_as_uint(float v) { unsigned b; memcpy(&b, &v, 4); return b; }
static float __uint_as_float(unsigned v) { float b; memcpy(&b, &v, 4); return b; }
static long long __double_as_longlong(double v) { long long b; memcpy(&b, &v, 8); return b; }
static float log_of_2(float v) { return log2f(v); }
static float sine(float v) { return sinf(v); }
static float cosine(float v) { return cosf(v); }
static float root(float v) { return sqrtf(v); }
static unsigned half(float v) {  // rounds towards zero, which is enough here
    unsigned b; memcpy(&b, &v, 4);
    const int e = (int)(b >> 23 & 255) - 112;
    if ((b & 0x7fffffff) >= 0x7f800000) return (b >> 16 & 0x8000) | 0x7c00 | (b & 0x7fffff ? 512 : 0);
    return (b >> 16 & 0x8000) | (e <= 0 ? 0 : e > 30 ? 0x7c00 : e << 10 | (b >> 13 & 1023));
}
static unsigned packed(unsigned, float low, float high) { return half(low) | half(high) << 16; }
template <class T> T atomicAdd(T* p, T v) { T old = *p; *p += v; return old; }
template <class T> T atomicMax(T* p, T v) { T old = *p; if (v > old) *p = v; return old; }
extern "C" void stand_in_for(unsigned thread, unsigned of) { threadIdx.x = thread; blockDim.x = of; }
template <class T, class V> T atomicExch(T* p, V v) { T old = *p; *p = v; return old; }
"""
CASE = Case(
    "c", (1, 1, 1),
    {
        "y": Buffer("fp32", (1001,), "out"), "x": Buffer("fp32", (20_003,), fill=Normal(1.0, 2.0)),
        "d": Buffer("fp64", (999,), fill=Uniform(-3.0, 5.0)),
        "i": Buffer("i32", (5001,), fill=Uniform(-7, 13)),
        "b": Buffer("u8", (777,), fill=Uniform(0, 200)), "z": Buffer("fp32", (500,), "inout"),
        "f": Buffer("i64", (64,), fill=Custom(lambda *_: None)),
        "big": Buffer("i64", (301,), fill=Uniform(0, 1 << 40)),
        "h": Buffer("fp16", (4099,), fill=Normal(-1.0, 0.5)),
        "u": Buffer("fp16", (4099,), fill=Uniform(-2, 2)),
        "n": Buffer("i8", (4001,), fill=Normal(0.0, 9.0)), "s": Buffer("i16", (999,), fill=Uniform(-5, 5)),
        "x2": Buffer("fp32", (20_003,), fill=Normal(1.0, 2.0)),
        "cache": Buffer("fp16", (60_003,), "inout"),
    },
)  # fmt: skip
LAYOUT = BufferLayout.of(CASE)
FILL, STEP, COMPARE, VERIFY = 2, 3, 1, 9


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("step")
    text = Path(random_tests.__file__).with_name("kernels.cu").read_text()
    text = text[: text.index("// Leaves 240 registers")]
    (folder / "step.cpp").write_text(SHIM + text)
    command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-o", str(folder / "step.so")]
    subprocess.run([*command, str(folder / "step.cpp")], check=True, timeout=120)
    return ctypes.CDLL(str(folder / "step.so"))


class Arenas:
    def __init__(self, step: Any, kept: tuple[str, ...] = ()) -> None:
        self.table, self.words, self.fixed = random_tests.job_table(LAYOUT, kept)
        self.first, self.second = (guard_pattern(LAYOUT.nbytes).numpy().copy() for _ in range(2))
        self.numbers = np.zeros(8, np.uint64)
        self._step = step

    def run(self, sample: int, what: int, special_every: int = 0) -> None:
        self.numbers[0] = sample
        at = self.numbers.ctypes.data
        self._step.sassafras_step(
            ctypes.c_void_p(self.first.ctypes.data), ctypes.c_void_p(self.second.ctypes.data),
            ctypes.c_char_p(self.table), ctypes.c_uint(len(self.table) // random_tests._JOB.size),
            ctypes.c_ulonglong(self.words), ctypes.c_void_p(at), ctypes.c_ulonglong(0), ctypes.c_uint(what),
            ctypes.c_uint(special_every), ctypes.c_void_p(at + 16), ctypes.c_void_p(at + 48),
        )  # fmt: skip

    def values(self, name: str, arena: np.ndarray | None = None) -> np.ndarray:
        segment = next(s for s in LAYOUT.segments if s.name == name)
        kind = {
            "fp32": "<f4",
            "fp64": "<f8",
            "i32": "<i4",
            "i64": "<i8",
            "u8": "u1",
            "i8": "i1",
            "i16": "<i2",
            "fp16": "<f2",
        }[segment.buffer.dtype]
        raw = (self.first if arena is None else arena)[segment.offset : segment.end]
        return raw.view(kind)


def test_inputs_have_their_distributions_and_nothing_else_is_touched(step: Any) -> None:
    arenas = Arenas(step)
    pristine = arenas.first.copy()
    arenas.run(5, FILL)
    x, d, i, b = (arenas.values(n) for n in "xdib")
    assert abs(x.mean() - 1.0) < 0.06
    assert abs(x.std() - 2.0) < 0.06
    assert abs(np.corrcoef(x[:-1:2][:10_000], x[1::2][:10_000])[0, 1]) < 0.04
    assert -3 <= d.min() < -2.8
    assert 4.8 < d.max() < 5
    assert set(i.tolist()) == set(range(-7, 13))
    assert b.max() < 200
    assert len(set(b.tolist())) > 150
    big = arenas.values("big")
    assert big.min() >= 0
    assert (1 << 38) < big.max() < 1 << 40
    h, u, n, s = (arenas.values(name).astype(float) for name in "huns")
    assert abs(h.mean() + 1) < 0.03 and abs(h.std() - 0.5) < 0.02
    assert abs(np.corrcoef(h[:-1:2], h[1::2])[0, 1]) < 0.06
    assert abs(u.mean()) < 0.07 and -2 <= u.min() < -1.98 and 1.98 < u.max() < 2
    assert abs(n.mean()) < 0.5 and abs(n.std() - 9) < 0.4
    assert set(s.tolist()) == set(range(-5, 5))
    # a kernel that takes one operand for another must not get away with it
    assert abs(np.corrcoef(x, arenas.values("x2"))[0, 1]) < 0.03
    assert arenas.fixed == ["f"]
    touched = np.zeros(LAYOUT.nbytes, bool)
    for segment in LAYOUT.segments:
        if segment.name in ("x", "d", "i", "b", "z", "big", "h", "u", "n", "s", "x2", "cache"):
            touched[segment.offset : segment.end] = True
    assert (arenas.first[~touched] == pristine[~touched]).all()
    rest = np.ones(LAYOUT.nbytes, bool)
    for only in (s for s in LAYOUT.segments if s.buffer.role == "inout"):
        assert (arenas.second[only.offset : only.end] == arenas.first[only.offset : only.end]).all()
        rest[only.offset : only.end] = False
    assert (arenas.second[rest] == pristine[rest]).all()


def test_a_samples_inputs_depend_on_its_number_alone(step: Any) -> None:
    one, other = Arenas(step), Arenas(step)
    one.run(7, FILL)
    other.run(6, FILL)
    assert (one.values("x") != other.values("x")).mean() > 0.99
    other.run(6, STEP)  # takes 6, fills 7
    assert (one.first == other.first).all()
    high = Arenas(step)
    high.run(7 + (1 << 32), FILL)
    assert (one.values("x") != high.values("x")).mean() > 0.99


def test_a_single_differing_bit_of_an_output_is_counted_once_with_its_place(step: Any) -> None:
    arenas = Arenas(step)
    arenas.run(9, FILL)
    arenas.run(9, COMPARE)
    assert arenas.numbers[2] == 0
    segment = LAYOUT.segments[0]
    assert segment.name == "y"
    arenas.second[segment.offset + 4 * 1000] ^= 1  # the last element, in a partial word
    arenas.run(9, COMPARE)
    arenas.run(9, COMPARE)
    assert arenas.numbers[2] == 1
    assert ~int(arenas.numbers[3]) & (1 << 64) - 1 == 9
    assert LAYOUT.where(~int(arenas.numbers[4]) & (1 << 64) - 1)[1].startswith("y")


def test_every_word_of_an_output_is_compared(step: Any) -> None:
    arenas = Arenas(step)
    for count, element in enumerate(range(0, 1001, 4)):  # 251 words
        arenas.values("y", arenas.second).view("u4")[element] ^= 1
        arenas.run(count, COMPARE)
        assert arenas.numbers[2] == count + 1
        assert LAYOUT.where(~int(arenas.numbers[4]) & (1 << 64) - 1)[1].startswith("y"), element
        arenas.values("y", arenas.second).view("u4")[element] ^= 1
        arenas.run(count + 1000, COMPARE)
        assert arenas.numbers[2] == count + 1


def test_a_modified_input_is_found_by_verifying(step: Any) -> None:
    arenas = Arenas(step)
    arenas.run(3, FILL)
    arenas.run(3, VERIFY)
    assert arenas.numbers[5] == 0
    arenas.values("x")[20_002] += 1
    arenas.run(3, VERIFY)
    assert arenas.numbers[5] == 1


def test_special_samples_hold_special_values_and_others_do_not(step: Any) -> None:
    arenas = Arenas(step)
    arenas.run(14, FILL, special_every=16)
    assert np.isfinite(arenas.values("x")).all()
    arenas.run(15, FILL, special_every=16)
    x = arenas.values("x")
    assert np.isnan(x).any()
    assert np.isinf(x).any()
    assert (np.abs(x[np.isfinite(x)]) > 1e38).any()
    assert 20 < (~np.isfinite(x)).sum() < 60
    assert ((x != 0) & (np.abs(x) < 1e-38)).any()


def test_an_in_out_buffer_of_which_little_is_written_is_restored_and_drawn_anew_in_parts(step: Any) -> None:
    arenas = Arenas(step, kept=("cache",))
    every = random_tests.SPECIAL_EVERY
    begin = 10 * every + 3
    arenas.run(begin, FILL, every)
    for sample in range(begin, begin + 2 * every):
        before = arenas.values("cache").view("u2").copy()
        for arena in (arenas.first, arenas.second):
            arenas.values("cache", arena)[1000:3000] = sample % 100  # what a launch writes
        arenas.run(sample, STEP, every)
        fresh = Arenas(step, kept=("cache",))
        fresh.run(sample + 1, FILL, every)
        for arena, same in ((arenas.first, fresh.first), (arenas.second, fresh.second)):
            assert (arena == same).all(), "a sample's inputs depend on its number alone"
        anew = (arenas.values("cache").view("u2") != before).mean()
        assert anew > 0.99 if (sample + 1) % every in (0, every - 1) else 0.1 < anew < 0.2
    assert arenas.numbers[2] == arenas.numbers[5] == 0
    arenas.values("cache", arenas.second).view("u2")[60_002] ^= 1  # no launch has written it
    arenas.run(sample + 1, STEP, every)
    assert arenas.numbers[2] == 1
    assert LAYOUT.where(~int(arenas.numbers[4]) & (1 << 64) - 1)[1].startswith("cache")
    arenas.run(sample + 2, STEP, every)
    assert arenas.numbers[2] == 1, "restored"


def test_warps_that_begin_at_either_end_make_the_same_inputs(step: Any) -> None:
    one, many = Arenas(step, kept=("cache",)), Arenas(step, kept=("cache",))
    does = ((0, 7), (FILL, 7), (STEP, 7), (STEP, 8))  # 0: what the block shares
    for what, sample in does:
        one.run(sample, what, 16)
    try:
        for what, sample in does:
            for thread in range(96):
                step.stand_in_for(thread, 96)
                many.run(sample, what, 16)
    finally:
        step.stand_in_for(0, 1)
    assert (one.first == many.first).all() and (one.second == many.second).all()
    assert one.numbers[2] == many.numbers[2] == 0
