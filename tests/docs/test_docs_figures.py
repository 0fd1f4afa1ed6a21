"""Figures in README and docs are those of the result files."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from types import ModuleType

import pytest

from .pages import ROOT, prose

HELP = "run: python benchmarks/figures.py --write"
_spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
assert _spec is not None and _spec.loader is not None
figures: ModuleType = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)
figures.figures = lru_cache(figures.figures)  # a second each time


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in figures.pages()])
def test_pages_print_the_results_figures(page: str) -> None:
    _, wrong = figures.updated((ROOT / page).read_text(encoding="utf-8"))
    assert not wrong, f"{page}: {wrong}; {HELP}"


def test_a_stale_figure_is_found_and_brought_up_to_date() -> None:
    best = figures.figures()["schedules.best"]
    page = "Two [a](b) of 14.\n\nIt won {0} on 9, and {0} twice.\n<!--figures: {0} = schedules.best-->\n"
    assert figures.updated(page.format(best)) == (page.format(best), [])
    new, wrong = figures.updated(page.format("9.999x"))
    assert new == page.replace("{0} twice", "9.999x twice").format(best)
    assert wrong == [f"schedules.best is {best}, not 9.999x"]


def test_figures_are_looked_for_in_their_own_paragraph_and_order() -> None:
    _, wrong = figures.updated("1.022x\n\nnothing\n<!--figures: 1.022x = schedules.geomean-->")
    assert wrong and "does not stand in its paragraph" in wrong[0]
    best, mean = figures.figures()["schedules.best"], figures.figures()["schedules.geomean"]
    text = f"{best}, {mean}\n<!--figures: {mean} = schedules.geomean; {best} = schedules.best-->"
    assert len(figures.updated(text)[1]) == 1
    _, wrong = figures.updated("about 114.\n<!--figures: 14 = schedules.faster-->")
    assert wrong


def test_unknown_names_and_stale_tables_are_found() -> None:
    text = "1 thing\n<!--figures: 1 = nothing.such-->"
    assert figures.updated(text) == (text, ["there is no figure 'nothing.such'"])
    new, wrong = figures.updated("<!--table schedules-->\nold\n<!--end-->")
    assert wrong == ["the table schedules is another"]
    assert figures.updated(new)[1] == []


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_ratio_on_these_pages_is_named(page: str) -> None:
    """Ratios, and numbers with thousands, stand in a generated table or in their paragraph's list."""
    text = re.sub(r"<!--table .*?<!--end-->", "", prose(page), flags=re.S)
    loose = []
    for paragraph in text.split("\n\n"):
        named = set(re.findall(r"([\d.,]+)x? *(?:\[[^\]]*\])? = ", paragraph))
        for ends in re.findall(r"\[([^\]]*)\] = ", paragraph):  # a figure with its interval
            named |= set(re.findall(r"[\d.]+", ends))
        words = re.sub(
            r"arXiv \S+|\(http[^)]*\)|\d+\.\d+\.\d+|\b1\.00x|<!--.*?-->", "", paragraph, flags=re.S
        )
        found = re.findall(r"\d\.\d{3,}|\d+\.\d+(?=x)|\d{1,3}(?:,\d{3})+", words)
        loose += [number for number in found if number not in named]
    assert not loose, f"{page}: {loose} come from no result file, as far as can be seen"


def test_results_hold_no_machine_paths() -> None:
    """Where a file lay on the machine that measured is no part of a result."""
    found = []
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        for match in re.finditer(r"[ =\"](/(?:root|tmp|home|work)/[^ \"]*)", path.read_text()):
            found.append(f"{path.name}: {match[1]}")
    assert not found, found[:5]
