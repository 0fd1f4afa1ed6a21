"""Holes: cut, filled, kept within their bounds; and the grammar that mutates them."""

from __future__ import annotations

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.llm.answer import AnswerError
from sassafras.llm.holes import LONGEST, Template
from sassafras.llm.mutate import edits

CUDA = """__global__ void f(float *x, int n) {
    int i = threadIdx.x;
    // hole: body: x[i] becomes 2 x[i]
    for (int j = i; j < n; j += 128) {
        x[j] = 2.0f * x[j];
    }
    // end hole
    // hole: empty
    // end hole
}
"""
TRITON = """def f(x_ptr, BLOCK):
    # hole: body
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    y = tl.exp(x)
    # end hole
    return y
"""


def test_a_template_filled_with_its_own_texts_is_the_source() -> None:
    for source, language in ((CUDA, "cuda"), (TRITON, "triton")):
        template = Template.parse(source, language)
        assert template.fill({}) == source
        assert template.fill(template.texts()) == source
    hole = Template.parse(CUDA, "cuda").holes[0]
    assert (hole.note, hole.indent) == ("x[i] becomes 2 x[i]", "    ")
    assert hole.text.startswith("for (int j") and hole.text.endswith("\n}")


def test_a_filling_is_indented_and_nothing_else_changes() -> None:
    template = Template.parse(CUDA, "cuda")
    filled = template.fill({"body": "   x[i] *= 2.0f;  \n   x[i] += 0;\n\n", "empty": "int k = 0;"})
    lines = filled.splitlines()
    assert lines[3:5] == ["    x[i] *= 2.0f;", "    x[i] += 0;"] and lines[7] == "    int k = 0;"
    assert lines[:3] == CUDA.splitlines()[:3] and lines[-1] == "}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("} __global__ void g() {", "closes what was opened outside"),
        ("if (x) {", "never closed"),
        ("f(x];", "closes what was opened outside"),
        ("// end hole\nx = 1;", "markers"),
        ("x;" * LONGEST, "are the most"),
    ],
)
def test_a_text_that_leaves_its_hole_is_refused(text: str, why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        Template.parse(CUDA, "cuda").fill({"body": text})


@pytest.mark.parametrize("mark", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_begins_a_line(mark: str) -> None:
    """What Python also takes for a line's end hid markers from the check: the search ended with its error."""
    text = f"y = 2; //{mark}// end hole"
    assert Template.parse(CUDA, "cuda").written({"body": text}) == {"body": text}


def test_brackets_in_strings_and_comments_do_not_count() -> None:
    Template.parse(CUDA, "cuda").fill({"body": "asm volatile(\"{ }}\"); // }\nchar c = '{'; /* ) */"})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("// hole: a\n// hole: b\n", "still open"),
        ("// hole: a\n", "has no end"),
        ("// end hole\n", "without a hole"),
        ("// hole: a\n// end hole\n// hole: a\n// end hole\n", "different names"),
    ],
)
def test_bad_markers_are_named(source: str, why: str) -> None:
    with pytest.raises(SassafrasError, match=why):
        Template.parse(source, "cuda")


def test_an_unknown_hole_is_named() -> None:
    with pytest.raises(AnswerError, match=r"no hole 'nose'.*body, empty"):
        Template.parse(CUDA, "cuda").fill({"nose": ""})


def test_edits_change_the_text_and_are_deterministic() -> None:
    for source, language in ((CUDA, "cuda"), (TRITON, "triton")):
        text = Template.parse(source, language).texts()["body"]
        found = edits("body", text, language)
        assert found == edits("body", text, language)
        results = [edit.apply(text) for edit in found]
        assert all(result != text for result in results)
    assert len(found) >= 5


def test_edits_know_both_languages() -> None:
    cuda = Template.parse(CUDA, "cuda").texts()["body"]
    said = {edit.what for edit in edits("body", cuda, "cuda")}
    assert {"unroll", "128 becomes 256", "128 becomes 64", "read-only load"} <= said
    triton = Template.parse(TRITON, "triton").texts()["body"]
    said = {edit.what for edit in edits("body", triton, "triton")}
    assert {"base-2 exponential", "load, evict first"} <= said
    assert any(what.startswith("exchange") for what in said)


def test_long_walks_stay_texts() -> None:
    rng = np.random.default_rng(0)
    template = Template.parse(TRITON, "triton")
    text = template.texts()["body"]
    for _ in range(50):
        choices = edits("body", text, "triton")
        text = choices[int(rng.integers(len(choices)))].apply(text)[:LONGEST]
    assert "# end hole" in template.fill({"body": text})
