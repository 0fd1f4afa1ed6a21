"""The HTML report: what it says, that it stands alone, and that a browser shows it without a complaint."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from sassafras.core import Candidate, Interval, Modelled, SassafrasError
from sassafras.report.listing import listing
from sassafras.report.page import gather, svg, write_report
from sassafras.report.page.gather import MeasuredRow, Node
from sassafras.report.page.write import templates
from sassafras.store import Store

from .chromium import Page, executable
from .conftest import HOSTILE, RESULTS
from .subjects import kernel, space, walked

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)


class Reader(HTMLParser):
    """Collects text, tags and whatever could ask for a resource."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data") and value:
                self.links.append(value)
            if name == "id" and value:
                self.ids.append(value)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(path: Path) -> tuple[Reader, str]:
    reader = Reader()
    reader.feed(path.read_text())
    return reader, " ".join(" ".join(reader.words).split())


def test_a_page_stands_alone_and_says_what_is_measured(page: Path) -> None:
    reader, text = read(page)
    assert page.stat().st_size < 1_000_000
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert "img" not in reader.tags and "iframe" not in reader.tags  # the hostile name is text
    assert {"measured", "modelled", "curves", "verdicts", "lineage", "environment", "reading"} <= set(
        reader.ids
    )
    assert len(reader.ids) == len(set(reader.ids))
    assert all(link[1:] in reader.ids for link in reader.links if link.startswith("#"))
    assert "1.031x" in text and "[1.027, 1.034]" in text and "[0.998, 1.001]" in text
    assert "1.077x" in text  # from the committed results
    assert "Nothing here was measured" in text and "modelled" in text
    assert "1 timed_out" in text and "NVIDIA H200" in text
    assert "hoist" in text and "waits" in text


def test_a_store_that_was_sent_runs_nothing(filled: Path, tmp_path: Path) -> None:
    """A column of another type than ours holds a script."""
    forged = tmp_path / "forged.sqlite"
    with sqlite3.connect(filled) as before, sqlite3.connect(forged) as db:
        script = "\n".join(before.iterdump()).replace(", STRICT", "").replace("STRICT", "")
        script = script.replace("seed INTEGER NOT NULL", "seed TEXT NOT NULL")
        db.executescript(script)
        db.execute("PRAGMA application_id = 0x53415346")
        db.execute("PRAGMA user_version = 1")
        db.execute("UPDATE runs SET seed = ?", ("<script>alert(1)</script>",))
    db.close()
    with pytest.raises(SassafrasError, match="seed of a RunRecord is str"):
        write_report(tmp_path / "page.html", [forged], explain=0)
    assert not (tmp_path / "page.html").exists()


def test_the_policy_allows_the_pages_own_script_alone(page: Path) -> None:
    text = page.read_text()
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    assert "unsafe" not in policy
    for kind, tag in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        (inner,) = re.findall(tag, text, re.S)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert not re.search(r"<[^>]* (on\w+|style)=", text)


def test_templates_escape_everything() -> None:
    """Only the package's own style and script are exempt, which `write` marks."""
    folder = Path(str(resources.files("sassafras.report.page"))) / "templates"
    texts = [path.read_text() for path in folder.glob("*.jinja")]
    assert len(texts) >= 2
    assert not any(re.search(r"\|\s*safe|autoescape", text) for text in texts)


def test_kernels_carry_both_schedules(filled: Path, tmp_path: Path) -> None:
    path = write_report(tmp_path / "page.html", [filled], explain=0)
    text = path.read_text()
    payload = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])
    assert set(payload) == {"kernel-run-1", "kernel-run-2"}  # the hostile name ended nothing early
    for shown in payload.values():
        count = len(shown["text"])
        assert sorted(shown["order"]) == list(range(count)) and shown["moved"]
        for x in shown["moved"]:
            assert shown["order"].index(x) != x or "LDG" not in shown["text"][x]
        for times in shown["times"]:
            assert len(times["at"]) == len(times["why"]) == len(times["gap"]) + 1
            assert min(times["gap"]) >= 1
        assert shown["cycles"][1] < shown["cycles"][0]


def test_the_table_agrees_with_the_headline(filled: Path, tmp_path: Path) -> None:
    """One modelled ratio on the page, wherever it stands: the one that was drawn again."""
    path = write_report(tmp_path / "page.html", [filled], explain=10)
    _, text = read(path)
    with Store.open(filled, readonly=True) as store:
        result = store.run(1).result
    assert result is not None and result["modelled"]
    figure, interval = f"{result['modelled_ratio']:.3f}x", Interval(*result["interval"])
    assert text.count(f"{figure} {interval}") >= 2  # the kernel's title, its explanation
    assert f"{figure} modelled {interval} {Interval(*result['null_interval'])}" in text  # the table
    assert f"{figure} best, modelled: not a measurement" in text  # the tile
    page = path.read_text()
    before, after = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])["kernel-run-1"][
        "cycles"
    ]
    assert before / after == pytest.approx(result["modelled_ratio"], abs=1e-5)


def test_what_was_selected_and_what_is_no_evidence_is_marked(tmp_path: Path) -> None:
    with Store.open(tmp_path / "old.sqlite") as store:
        for name, shape in (("mine", "x"), ("swiglu", "1024x14336")):
            run = store.begin_run(
                {"workload": name}, kernel=kernel(), workload=name, case=shape, modelled=True,
                device="timing model of sm_90", strategy="anneal", seed=0, environment={},
            )  # fmt: skip
            tuned = Candidate(kernel().with_cubin(space().emit(walked(1, 3))))
            old = Modelled(tuned.digest, None, 90.0, 100.0)
            store.save_modelled_winner(
                kernel(), tuned, old, model="timing model of sm_90", workload=name, case=shape
            )
            facts = {"improved": True, "modelled_ratio": 1.1111, "kernel": {"digest": tuned.digest}}
            store.finish_run(run, "60s", facts | {"interval": None, "null_interval": None})
        rows = {row["workload"]: row["modelled"] for row in listing(store)["modelled only (not measured)"]}
    assert rows["mine"] == "1.111x as selected, not re-drawn"
    assert rows["swiglu"].endswith("no evidence for this kernel: its rank correlation with NVIDIA H200 is "
                                   "-0.45, below 0.3")  # fmt: skip
    _, text = read(write_report(tmp_path / "page.html", [tmp_path / "old.sqlite"], explain=0))
    assert "as selected, not re-drawn" in text and text.count("1.111x") >= 1
    assert (
        text.count("below 0.3;") == 0 and "swiglu 1024x14336 no evidence" in text and rows["swiglu"] in text
    )
    assert "best, modelled" not in text  # neither counts


def test_runs_of_one_machine_share_an_environment(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.sqlite"
    path.write_bytes(filled.read_bytes())
    with Store.open(path) as store:
        for run, seconds in ((2, 5.1), (3, 48.0)):  # both on one GPU
            store.note(run, search_seconds={"60s": seconds})
        assert store.run(2).environment["search_seconds"] == {"60s": 5.1}
        assert store.run(2).environment["gpu"] == "NVIDIA H200"
    page = write_report(tmp_path / "two.html", [path], kernels=0).read_text()
    assert page.count("<details><summary>run ") == 2 and "search_seconds" not in page


def test_sources(filled: Path, tmp_path: Path) -> None:
    assert len(gather([filled]).runs) == 3
    only = gather(["run:2"], filled)
    assert [run.record.id for run in only.runs] == [2] and only.measured[0].counts
    curve = only.runs[0].curve
    assert [point[0] for point in curve] == [1, 2, 3, 4] and curve[-1][1] == pytest.approx(3.5)
    assert [point[2] for point in curve] == [0.97, 1.01, 1.031, 1.031]
    assert len(gather([filled]).runs[2].nodes) == 3
    rows = json.loads(RESULTS.read_text())["rows"]
    assert len(gather([RESULTS]).measured) == len(rows) > 0
    for bad in ("run:x", "run:99", str(tmp_path / "none.json"), str(tmp_path / "none.sqlite")):
        with pytest.raises(SassafrasError):
            gather([bad], filled)
    with Store.open(filled, readonly=True) as store:
        baseline = store.run(2).baseline
    saved = tmp_path / "saved.json"  # as `optimize` writes it
    saved.write_text(json.dumps({"run": 2, "baseline": {"digest": baseline}}))
    assert [run.record.id for run in gather([saved], filled).runs] == [2]
    saved.write_text(json.dumps({"run": 2, "baseline": {"digest": "0" * 64}}))
    with pytest.raises(SassafrasError, match="run 2 of this store is another search"):
        gather([saved], filled)
    (tmp_path / "other.json").write_text('{"rows": [{"a": 1}]}')
    with pytest.raises(SassafrasError, match="no speed-ups"):
        gather([tmp_path / "other.json"])
    with Store.open(tmp_path / "empty.sqlite"):
        pass
    with pytest.raises(SassafrasError, match="nothing to report"):
        gather([tmp_path / "empty.sqlite"])


def test_charts() -> None:
    row = MeasuredRow("a", 1.01, Interval(1.005, 1.015), 1.0, Interval(0.999, 1.001), 3.0, "H200", "x")
    other = MeasuredRow("b", 1.0, Interval(0.999, 1.002), 1.0, Interval(0.99, 1.003), 1.0, "", "")
    assert row.counts and not other.counts
    scale = svg.ratio_scale([row], 340)
    assert float(scale(0.999)) < float(scale(1.0)) < float(scale(1.005)) < float(scale(1.015)) <= 336
    assert svg.ticks(0.98, 1.08) == pytest.approx([1.0, 1.025, 1.05, 1.075])
    nodes = [
        Node(*values)
        for values in (
            ("b", "a", 1.1, "correct", "x"),
            ("c", "b", 1.2, "correct", ""),
            ("d", "b", None, "crashed", ""),
            ("e", "e", 1.0, "correct", "its own parent"),
            ("f", "g", 1.0, "correct", "a circle"),
            ("g", "f", 1.0, "correct", ""),
        )
    ]
    drawn = templates().get_template("charts.html.jinja").module.tree(nodes)  # type: ignore[attr-defined]
    assert drawn.count('class="edge best"') == 2 and "1.200x" in drawn and "crashed" in drawn


@pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it(page: Path, tmp_path: Path, dark: bool) -> None:
    with Page(page, dark=dark) as shown:
        assert shown.requested == [page.as_uri()]
        ground = shown.value("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 128
        assert light != dark
        # a kernel is drawn when it comes near; its rows, lines and lanes are there
        shown.value("document.querySelector('section.kernel').scrollIntoView({behavior: 'instant'}), 1")
        shown.wait("document.querySelectorAll('section.kernel .row').length > 100")
        shown.wait("document.querySelectorAll('section.kernel .timeline svg rect').length > 100")
        # a click on a move's number shows its instruction on both sides, on one level
        shown.value("document.querySelector('button.move').click(), 1")
        shown.wait("document.querySelectorAll('section.kernel .row.on').length === 2")
        tops = shown.value(
            "[...document.querySelectorAll('.row.on')].map(r => Math.round(r.getBoundingClientRect().top))"
        )
        assert abs(tops[0] - tops[1]) <= 60  # rows near an end of the listing cannot reach the other's level
        assert shown.value("document.querySelectorAll('.join').length") > 0
        # the other axis, the other theme
        shown.value("document.querySelector('[data-show=seconds]').click(), 1")
        assert shown.value("document.querySelector('[data-tab=evaluations]').hidden") is True
        shown.value("document.getElementById('theme').click(), 1")
        assert shown.value("getComputedStyle(document.body).backgroundColor") != ground
        shown.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 20_000
        assert shown.logged == [] and shown.requested == [page.as_uri()]
    assert HOSTILE not in page.read_text()
