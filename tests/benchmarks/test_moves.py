"""The page of moves: from the winners of a comparison to a table, a figure and a page that says modelled."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import moves

from sassafras.targets import load
from sassafras.timing_model import ModelDevice
from sassafras.training import environment


def test_a_winner_is_taken_apart_and_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an honest winner of the timing model: the best of a short greedy walk
    workload = load("suite:softmax")
    case = environment.lonely(workload.case("512x2048"))
    space, evaluate = environment.table(workload, case, ModelDevice("sm_90a"), "sm_90a")
    rng, state, cost = np.random.default_rng(0), space.start(), 1.0
    for _ in range(300):
        move = space.sample(state, rng)
        after = space.apply(state, move)
        found = evaluate(after).cost
        if found is not None and found < cost:
            state, cost = after, found
    assert cost < 1.0
    packed = base64.b64encode(zlib.compress(space.emit(state))).decode()
    unit = {
        "kernel": "softmax/512x2048", "strategy": "greedy", "seed": 0,
        "final_speedup": 1 / cost, "winner": packed,
        "lonely": True, "environment": {"device": "timing model of sm_90"},
    }  # fmt: skip
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "softmax-512x2048--greedy--0.json").write_text(json.dumps(unit))
    worse = unit | {"seed": 1, "final_speedup": 1.0}
    (folder / "softmax-512x2048--greedy--1.json").write_text(json.dumps(worse))

    monkeypatch.setenv("SASSAFRAS_COMMIT", "test")
    arguments = ["moves.py", "--folder", str(folder), "--device", "model", "--limit", "60"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path)])
    moves.main()
    held = json.loads((tmp_path / "moves-modelled.json").read_text())
    (row,) = held["rows"]
    assert row["seed"] == 0 and row["explanation"]["modelled"] and row["explanation"]["moves"]
    kinds = {m["kind"] for m in row["explanation"]["moves"]}
    assert {p["kind"] for p in held["summary"]["patterns"]} == kinds

    made = ["moves.py", "--page", str(tmp_path / "moves-modelled.json"), "--docs", str(tmp_path / "docs")]
    monkeypatch.setattr(sys, "argv", made)
    moves.main()
    text = (tmp_path / "docs" / "moves.md").read_text()
    assert "Modelled: none of this has been run on a GPU" in text and "softmax/512x2048" in text
    assert all(kind in text for kind in kinds)
    drawn = ElementTree.parse(tmp_path / "docs" / "figures" / "moves.svg").getroot()
    bars = drawn.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == len(kinds)


def test_moves_of_several_gpus_become_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(folder: str, kernel: str, gain: float, modelled: bool = False) -> Path:
        move = {"kind": "load hoisted", "gain": gain, "words": "up"}
        row = {
            "kernel": kernel, "strategy": "greedy", "seed": 0, "search_speedup": gain,
            "explanation": {"moves": [move], "summary": "one move", "device": "a GPU"},
        }  # fmt: skip
        summary = {
            "modelled": modelled, "file": "benchmarks/results/moves.json",
            "patterns": moves.patterns([row]), "failed": [],
        }  # fmt: skip
        return moves.write("moves", [row], summary, {"gpu": "a GPU"}, out=tmp_path / folder)

    monkeypatch.setenv("SASSAFRAS_COMMIT", "test")
    one, two = written("one", "softmax/512x2048", 1.01), written("two", "layernorm/2048x1024", 1.03)
    arguments = ["moves.py", "--merge", str(one), str(two), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    moves.main()
    held = json.loads((tmp_path / "moves.json").read_text())
    assert [r["kernel"] for r in held["rows"]] == ["layernorm/2048x1024", "softmax/512x2048"]
    (pattern,) = held["summary"]["patterns"]
    assert pattern["kernels"] == 2 and pattern["mean_gain"] == pytest.approx(1.02)
    with pytest.raises(SystemExit, match="softmax/512x2048/greedy/0"):
        moves.merge([one, one], str(tmp_path))
    with pytest.raises(SystemExit, match="modelled"):
        moves.merge([one, written("three", "rotary/1", 1.1, modelled=True)], str(tmp_path))
