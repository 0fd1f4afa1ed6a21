"""Corpora: kernels found by parsers, duplicates and licences left out, documents as context."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app
from sassafras.core import SassafrasError
from sassafras.llm.corpus import write_corpus
from sassafras.llm.kernels import kernels_of
from tests.shared import needs

needs("tree_sitter", "tree_sitter_cuda", "datasketch", "identify", "ukkonen", "bm25s")

ROOT = Path(__file__).resolve().parents[2]
CUDA = """\
#include <cuda_fp16.h>
#include "mine.h"
#define TWICE(x) ((x) + (x))
#define UNUSED 3
constexpr int kWidth = 128;
__constant__ float table[kWidth];
template <typename T> __device__ T twice(T v) { return TWICE(v); }
__device__ float unused(float v) { return v; }
namespace ours {
/* Doubles a row.
 * One thread an element. */
template <int N>
__global__ void __launch_bounds__(128) // a bound
double_row(float *__restrict__ y, const float *x) {
  __shared__ __align__(16) float tile[N];
  y[threadIdx.x] = twice(x[threadIdx.x]) * table[0];
}
}
__global__ void declared(int *p);
extern "C" __global__ void fill(int *p) { *p = 1; }
template <typename T>
LAUNCH_BOUNDS_1(threads())
__global__ void behind_macro(T *p) { *p = 1; }
"""
TRITON = '''\
import torch
import triton
from triton import language as tl

@triton.jit
def scaled(v, by):
    return v * by

# Not the kernel's own comment.
def launch(x):
    return x

# Scales a vector.
@triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(y, x, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, scaled(tl.load(x + at, mask=at < n), by), mask=at < n)

if torch.cuda.is_available():
    @triton.jit(do_not_specialize=["n"])
    def copy_kernel(y, x, n):
        """Copies n numbers."""
        tl.store(y, tl.load(x))
'''
MIT = """MIT License

Copyright (c) 2024 A. Person

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""


def kernel(name: str, body: str) -> str:
    return f'extern "C" __global__ void {name}(float *y) {{ {body} }}\n'


def test_cuda_kernels_with_what_they_use() -> None:
    first, second, third = kernels_of(CUDA, ".cu")
    assert third.name == "behind_macro" and "LAUNCH_BOUNDS_1(threads())" in third.code
    assert (first.name, second.name) == ("double_row", "fill")
    assert first.signature == (
        "template <int N> __global__ void __launch_bounds__(128) "
        "double_row(float *__restrict__ y, const float *x)"
    )
    assert first.about == "Doubles a row.\nOne thread an element." and not second.about
    for used in ("cuda_fp16.h", "TWICE(x)", "kWidth = 128;", "table[kWidth];", "T twice(T v)", "__align__"):
        assert used in first.code, used
    for unused in ("mine.h", "UNUSED", "unused", "declared"):
        assert unused not in first.code, unused
    assert second.signature == 'extern "C" __global__ void fill(int *p)' and "table" not in second.code


def test_triton_kernels_with_what_they_use() -> None:
    first, second = kernels_of(TRITON, ".py")
    assert (first.name, second.name) == ("scale_kernel", "copy_kernel"), "what returns a value is no kernel"
    assert first.about == "Scales a vector." and second.about == "Copies n numbers."
    assert first.signature == "def scale_kernel(y, x, n, by, BLOCK: tl.constexpr)"
    assert "def scaled" in first.code and "autotune" in first.code and "torch" not in first.code
    assert "def scaled" not in second.code
    for found in (first, second):
        ast.parse(found.code)
    assert "Copies" not in " ".join(second.tokens)


@pytest.mark.parametrize("mark", ("\f\n", "# \u2028\n", "# \x0b\n", "#\r"))
def test_lines_of_python_are_counted_as_python_does(mark: str) -> None:
    wanted = [(found.name, found.code) for found in kernels_of(TRITON, ".py")]
    assert [(found.name, found.code) for found in kernels_of(mark * 3 + TRITON, ".py")] == wanted


def test_every_kernel_of_our_cuda_files_is_found() -> None:
    """Counted independently: ``__global__`` in our hand-written kernels without macros that make kernels."""
    for name in ("transpose", "mma_cp_async", "wgmma_tile", "spmv", "histogram", "constant_tables"):
        text = (ROOT / "benchmarks" / "corpus" / "cuda" / f"{name}.cu").read_text(encoding="utf-8")
        assert len(kernels_of(text, ".cu")) == text.count("__global__"), name


def test_licences_duplicates_and_context(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path, text in {
        one / "LICENSE": MIT,
        one / "deep" / "a.cu": "// y is two\n"
        + kernel("two", "int i = threadIdx.x; y[i] = 2.0f * y[i] + 1.0f;"),
        one / "deep" / "b.cu": kernel("two", "int i = threadIdx.x;\n\n y[i] = 2.0f * y[i] + 1.0f; // same\n"),
        one / "apache.cu": "// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only\n" + CUDA,
        one / "broken.py": "import triton\n@triton.jit\ndef (",
        one / "notes.md": "# Notes\nTo double a row, load 16 bytes a thread.\n",
        two / "scale.py": TRITON,
        two / "secret.md": "# Of unknown licence\nCopies n numbers, scales a vector.\n",
        two / ".hidden" / "c.cu": kernel("three", "y[0] = 3.0f;"),
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    out = tmp_path / "out" / "corpus.jsonl"
    made = write_corpus([one, two], out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows == made.rows and (made.exact, made.near, made.refused) == (1, 0, 0)
    assert made.unread == ["one/broken.py"]
    assert {row["name"]: row["licence"] for row in rows} == {
        "double_row": "Apache-2.0 OR GPL-2.0-only",
        "fill": "Apache-2.0 OR GPL-2.0-only",
        "behind_macro": "Apache-2.0 OR GPL-2.0-only",
        "two": "MIT",
        "scale_kernel": "unknown",
        "copy_kernel": "unknown",
    }
    row = next(row for row in rows if row["name"] == "double_row")
    assert row["instruction"].startswith("Write the CUDA C++ kernel `double_row`.\nDoubles a row.")
    assert row["source"] == "one/apache.cu:13" and row["context"][0]["licence"] == "MIT"
    assert "16 bytes a thread" in row["context"][0]["text"]
    kept = write_corpus([one, two], out, licences=["apache-2.0", "MIT"])
    assert {row["name"] for row in kept.rows} == {
        "double_row",
        "fill",
        "behind_macro",
        "two",
    } and kept.refused == 2
    assert all(part["licence"] != "unknown" for row in kept.rows for part in row["context"])
    assert "MIT 1" in kept.summary() and "1 exact" in kept.summary()


def test_near_duplicates_are_left_out(tmp_path: Path) -> None:
    lines = [f"y[{i}] = {i}.0f * y[{i + 1}];" for i in range(60)]
    other = [line.replace("*", "+").replace("y[", "y[2 + ") for line in lines]
    near = [*lines[:30], "y[99] = 0.0f;", *lines[31:]]
    for name, body in {"a": lines, "b": other, "c": near}.items():
        (tmp_path / f"{name}.cu").write_text(kernel("same", " ".join(body)), encoding="utf-8")
    made = write_corpus([tmp_path], tmp_path / "corpus.jsonl")
    assert (len(made.rows), made.exact, made.near) == (2, 0, 1)
    assert [row["source"].rsplit("/", 1)[1] for row in made.rows] == ["a.cu:1", "b.cu:1"]


def test_the_command_and_its_errors(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(CUDA, encoding="utf-8")
    out = tmp_path / "corpus.jsonl"
    done = CliRunner().invoke(app, ["llm", "corpus", str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0 and "3 kernels of 1 files" in done.stdout, done.output
    for folders, licences, message in (
        ([tmp_path], ["MIT"], "under other licences: unknown"),
        ([tmp_path / "none"], [], "no such folder"),
        ([tmp_path, tmp_path], [], "same last name"),
        ([ROOT / "docs"], [], "no CUDA or Triton kernel"),
    ):
        with pytest.raises(SassafrasError, match=message):
            write_corpus(folders, out, licences=licences)
