"""The report in a real browser, wide and on a phone, light and dark, of 1 and of 20 searches: nothing
overflows, no table or text is cut, every text of a chart can be read, and nothing is logged."""

from __future__ import annotations

from pathlib import Path

import pytest

import sassafras
from sassafras.core import Candidate
from sassafras.report.page import svg, write_report
from sassafras.store import Store

from .chromium import Page, executable
from .conftest import RESULTS, begin, correct, family, measured
from .subjects import kernel, space, sunk, walked, workload_of

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)
#: what leaves the window without a way to scroll there, is cut, or is drawn too small to be read
FAULTS = """(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const say = (what, e) => found.push(`${what}: ${e.tagName} ${e.getAttribute('class') || ''} ${e.textContent.slice(0, 40)}`);
  if (document.documentElement.scrollWidth > wide) say('the page scrolls sideways', document.body);
  const scrolls = e => {
    for (let p = e.parentElement; p; p = p.parentElement) {
      const how = getComputedStyle(p).overflowX;
      if (how === 'auto' || how === 'scroll') return true;
    }
    return false;
  };
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || !box.height || e.closest('.skip, .timeline svg')) continue;
    if (box.right > wide + 1 && !scrolls(e)) say('beyond the window', e);
    const hides = ['hidden', 'clip'].includes(style.overflowX) && !(e instanceof SVGElement);
    if (hides && e.scrollWidth > e.clientWidth + 1) say('cut', e);
    if (e.tagName === 'text') {
      const m = e.getScreenCTM(), svg = e.ownerSVGElement.getBoundingClientRect();
      if (parseFloat(style.fontSize) * Math.hypot(m.a, m.b) < 9) say('too small', e);
      if (box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1) say('cut by its chart', e);
    }
  }
  const marks = [...document.querySelectorAll('.tab:not([hidden]) text.mark')].map(e => e.getBoundingClientRect().top).sort((a, b) => a - b);
  marks.forEach((top, n) => { if (n && top - marks[n - 1] < 7) found.push(`numbers of curves on each other: ${n}`); });
  return found;
})()"""  # noqa: E501


@pytest.fixture(scope="module", params=[1, 20])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A page of one modelled search, or of that and 19 others with the committed results, and how many."""
    folder = tmp_path_factory.mktemp(f"searches{request.param}")
    slow, fast = sunk()
    with Store.open(folder / "s.sqlite") as store:
        sassafras.optimize(
            workload_of(slow), device="model", strategy="greedy", budget="60e", store=store, arch="sm_90a"
        )
        if request.param > 1:
            measured(store)
            family(store)
        for number in range(request.param - 3):
            run, best = begin(store, slow, f"a_kernel_with_a_long_name_{number}", "guided"), 0.0
            for seed in range(1, 6):
                speedup = 1 + (7 * seed + 3 * number) % 11 / 400
                candidate = Candidate(kernel().with_cubin(space().emit(walked(seed, 5))), {})
                store.record(run, candidate, correct(candidate, speedup), took=0.5 + number / 10)
                best = max(best, speedup)
            result = {
                "improved": True, "speedup": best, "interval": [best - 0.004, best + 0.003], "null": 1.0,
                "null_interval": [0.998, 1.001], "baseline_us": 10.0 + 1000 * number,
                "kernel": {"digest": store.put_cubin(fast.cubin)}, "failed_after_validation": 0,
            }  # fmt: skip
            store.finish_run(run, "60s", result)
    sources = [folder / "s.sqlite", *([RESULTS] if request.param > 1 else [])]
    return write_report(folder / "page.html", sources, explain=20, kernels=3), request.param


@pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_nothing_overflows_is_cut_or_too_small(report: tuple[Path, int], phone: bool, dark: bool) -> None:
    path, searches = report
    with Page(path, dark=dark, phone=phone) as shown:
        shown.value("document.querySelectorAll('details').forEach(d => { d.open = true; }), 1")
        for number in range(shown.value("document.querySelectorAll('section.kernel').length")):
            section = f"document.querySelectorAll('section.kernel')[{number}]"
            shown.value(f"{section}.scrollIntoView({{behavior: 'instant'}}), 1")
            shown.wait(f"{section}.querySelectorAll('.row').length > 100")
        assert shown.value("document.querySelectorAll('text.mark').length") == 2 * searches
        for tab in ("seconds", "evaluations"):
            shown.value(f"document.querySelector('[data-show={tab}]').click(), 1")
            assert shown.value(FAULTS) == []
        assert shown.logged == [] and shown.requested == [path.as_uri()]


def test_ticks_say_where_they_are() -> None:
    assert svg.exactly(svg.ticks(1.0, 1.011)) == ["1.0000", "1.0025", "1.0050", "1.0075", "1.0100"]
    assert svg.exactly(svg.ticks(0, 3000)) == ["0", "1,000", "2,000", "3,000"]
    for low, high in ((0.97, 1.034), (1.0, 1.2), (0, 7), (0.9991, 1.0013)):
        places = svg.ticks(low, high)
        assert [float(text.replace(",", "")) for text in svg.exactly(places)] == pytest.approx(
            places, abs=1e-9
        )


def test_numbers_of_curves_are_apart_in_their_order() -> None:
    placed = svg.apart([50.0, 50.0, 49.0, 290.0], 10, 280)
    assert placed == [61.0, 73.0, 49.0, 280.0]
    assert min(b - a for a, b in zip(sorted(placed)[:-1], sorted(placed)[1:], strict=True)) >= 12
    crowd = svg.apart([100.0] * 40, 10, 280)
    assert (
        round(min(crowd), 6) >= 10
        and round(max(crowd), 6) <= 280
        and len({round(place, 6) for place in crowd}) == 40
    )
    assert svg.apart([400.0], 10, 280) == [280]
