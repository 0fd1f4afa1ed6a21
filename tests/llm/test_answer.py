"""Answers as models really write them, tidy and not."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from sassafras.llm.answer import AnswerError, hole_texts, read_answer, whole_source

HOLES = {"body": "x = 1;", "tail": "y = 2;"}
TIDY = """## Performance analysis
Memory bound.

## Algorithm design
Load four at a time.

## Code
```cuda
// hole: body
float4 v = p[i];
```
```cuda
// hole: tail
p[i] = v;
// end hole
```
"""


def test_three_sections_and_two_holes() -> None:
    answer = read_answer(TIDY)
    assert answer.design == "Load four at a time."
    assert hole_texts(answer, HOLES) == {"body": "float4 v = p[i];", "tail": "p[i] = v;"}


@pytest.mark.parametrize(
    "text",
    [
        "**1. Performance Analysis:**\nup\n\n**2. Design**\nup\n**3. Code**\n```c++ hole: body\nx = 2;\n```",
        "<think>```\nhole: body\nwrong\n```</think>\nANALYSIS\n```\nhole: body\nx = 2;\n```\n",
        "### Code\r\n```cuda\r\n// Hole: body\r\nx = 2;\r\n```\r\n",
        "Sure! Here it is:\n~~~cpp\n// hole body\nx = 2;\n~~~ \nHope this helps.",
        "## Code\n```cuda\n// hole: body: what it does\nx = 2;",  # cut off
    ],
    ids=["bold", "thoughts", "windows", "tildes", "cut"],
)
def test_untidy_answers_are_read(text: str) -> None:
    assert hole_texts(read_answer(text), HOLES) == {"body": "x = 2;"}


def test_several_holes_in_one_block_are_told_apart() -> None:
    text = "```cuda\nhole: body\nx = 2;\n\nhole: tail\ny = 3;\n// end hole\n```"
    assert hole_texts(read_answer(text), HOLES) == {"body": "x = 2;", "tail": "y = 3;"}
    text = "```cuda\n// hole: body: what it does\nx = 4;\n// end hole\n// hole: tail\ny = 5;\n```"
    assert hole_texts(read_answer(text), HOLES) == {"body": "x = 4;", "tail": "y = 5;"}


def test_headings_inside_code_are_code() -> None:
    answer = read_answer("## Analysis\nwhy\n```python\n# Design\nx = 1\n```\n## Design\nhow\n")
    assert answer.design == "how" and answer.blocks[0][1] == "# Design\nx = 1"


@pytest.mark.parametrize(
    "text",
    ["#" * 50_000 + "!", "# " + " " * 50_000 + "!", "# a" + " b" * 50_000 + "!", "<think>" * 50_000]
    + [f"```\n{start}" + " " * 50_000 + "!\n```" for start in ("", "hole", "~~~")],
    ids=["line", "blanks", "words", "thoughts", "indent", "hole", "fence"],
)
def test_no_answer_takes_long_to_read(text: str) -> None:
    """A line of many # took for ever: headings were looked for in exponentially many ways."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(5)
    try:
        answer = read_answer(text)
        with suppress(AnswerError):
            hole_texts(answer, HOLES)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert answer.design == ""


def test_one_hole_takes_an_unnamed_block() -> None:
    answer = read_answer("First:\n```\nx = 0;\n```\nbetter:\n```\nx = 3;\n```")
    assert hole_texts(answer, {"body": ""}) == {"body": "x = 3;"}
    with pytest.raises(AnswerError, match="fills no hole"):
        hole_texts(answer, HOLES)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(AnswerError, match=r"no hole 'head'.*body, tail"):
        hole_texts(read_answer("```\n// hole: head\nx\n```"), HOLES)
    with pytest.raises(AnswerError, match="no code block"):
        whole_source(read_answer("I cannot help with that."))
    assert read_answer("").blocks == ()


def test_the_longest_block_is_the_whole_source() -> None:
    assert whole_source(read_answer("```\na\n```\n```cuda\nint main;\nb\n```")) == "int main;\nb\n"
