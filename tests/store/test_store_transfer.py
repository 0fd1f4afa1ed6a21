"""Export and import: complete, repeatable, and closed to altered or hostile files."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_store_rows import ORIGINAL, begin, measured, save, tuned

from sassafras.core import Modelled, StoreError
from sassafras.store import Store

Lines = list[dict[str, Any]]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "a.sqlite") as store:
        run_id, modelled_run = begin(store), begin(store, modelled=True)
        for n in range(5):
            store.record(run_id, tuned(n), measured(tuned(n), 1 + n / 100), took=0.5)
            store.record(modelled_run, tuned(n), Modelled(tuned(n).digest, None, 90.0 - n, 100.0))
        store.finish_run(run_id, "60s", {"speedup": 1.04})
        save(store, tuned(4), measured(tuned(4), 1.04), run_id=run_id)
        store.save_modelled_winner(
            ORIGINAL,
            tuned(1),
            Modelled(tuned(1).digest, None, 89.0, 100.0),
            model="m",
            workload="w",
            case="c",
        )
        store.export(tmp_path / "export.jsonl")
    return tmp_path / "export.jsonl"


def read(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> Path:
    """Write lines with a correct checksum: what a deliberate forger would do."""
    body = "".join(json.dumps(line) + "\n" for line in lines if "end" not in line)
    end = {"lines": body.count("\n"), "sha256": hashlib.sha256(body.encode()).hexdigest()}
    path.write_text(body + json.dumps({"end": end}) + "\n")
    return path


def refused(tmp_path: Path, export: Path, message: str) -> None:
    with Store.open(tmp_path / "b.sqlite") as store:
        with pytest.raises(StoreError, match=message):
            store.import_(export)
        for table in ("cubins", "kernels", "runs", "evaluations", "winners", "modelled_winners"):
            assert store._one(f"SELECT count(*) FROM {table}")[0] == 0, "a refused import left something"


def test_round_trip(tmp_path: Path, exported: Path) -> None:
    with Store.open(tmp_path / "a.sqlite") as a, Store.open(tmp_path / "b.sqlite") as b:
        new = b.import_(exported)
        assert new == {
            "cubins": 3, "kernels": 1, "runs": 2, "evaluations": 10, "winners": 1, "modelled_winners": 1
        }  # fmt: skip
        for mine, theirs in zip(a.runs(), b.runs(), strict=True):
            assert list(a.evaluations(mine.id)) == list(b.evaluations(theirs.id))
            assert (mine.uid, mine.spec, mine.result) == (theirs.uid, theirs.spec, theirs.result)
            assert theirs.origin == "import"
        (winner,) = b.winners(original=ORIGINAL.digest, gpu="NVIDIA H200")
        assert winner.origin == "import" and winner.kernel == tuned(4).kernel and winner.speedup == 1.04
        # another machine's run is not taken up again here
        assert begin(b) not in [record.id for record in b.runs() if record.origin == "import"]
        # a second import, and an import back, add nothing
        assert not any(b.import_(exported).values()) and not any(a.import_(exported).values())


def test_export_is_readable_json_lines_and_overwrites_nothing(tmp_path: Path, exported: Path) -> None:
    lines = read(exported)
    assert lines[0] == {"format": "sassafras-store", "version": 1}
    assert [line["verdict"] for line in lines if "evaluation" in line] == ["correct", None] * 5
    cubin = next(line for line in lines if "zlib" in line)
    assert hashlib.sha256(zlib.decompress(base64.b64decode(cubin["zlib"]))).hexdigest() == cubin["cubin"]
    with Store.open(tmp_path / "a.sqlite") as store:
        with pytest.raises(StoreError, match="exists already"):
            store.export(exported)
        winners_only = tmp_path / "winners.jsonl"
        assert store.export(winners_only, runs=False) == len(winners_only.read_text().splitlines())
    assert not any("evaluation" in line for line in read(winners_only))
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


def test_truncated_and_altered_files_are_refused(tmp_path: Path, exported: Path) -> None:
    whole = exported.read_bytes()
    broken = tmp_path / "broken.jsonl"
    for cut in (0, 10, len(whole) // 2, len(whole) - 40, whole.rindex(b'{"end"')):
        broken.write_bytes(whole[:cut])
        refused(tmp_path, broken, "truncated|not a valid export")
    broken.write_bytes(whole.replace(b'"speedup":1.04', b'"speedup":9.04'))
    refused(tmp_path, broken, "checksum")
    broken.write_bytes(whole + b"{}\n")
    refused(tmp_path, broken, "checksum")
    broken.write_bytes(b"\x1f\x8b" + whole)
    refused(tmp_path, broken, "not a valid export")


def forge(kind: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Lines], None]:
    def alter(lines: Lines) -> None:
        change(next(line for line in lines[1:] if kind in line))

    return alter


def bomb(line: dict[str, Any]) -> None:
    line["zlib"] = base64.b64encode(zlib.compress(bytes(1 << 26))).decode()


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda lines: lines[0].update(version=2), "format version 2"),
        (lambda lines: lines[0].update(format="tar"), "not an export"),
        (lambda lines: lines.append({"file": "../../.bashrc", "data": ""}), "unknown kind"),
        (lambda lines: lines.append(lines[1]["cubin"]), "no JSON object"),
        (forge("zlib", bomb), "damaged"),
        (forge("zlib", lambda line: line.update(cubin="0" * 64)), "damaged"),
        (forge("zlib", lambda line: line.update(cubin="../../etc/passwd")), "malformed cubin"),
        (forge("zlib", lambda line: line.update(size=-1)), "damaged"),
        (forge("zlib", lambda line: line.update(zlib="%%%")), "base64"),
        (forge("zlib", lambda line: line.update(zlib=[1])), "base64"),
        (forge("winner", lambda line: line.update(speedup="1.5")), "field 'speedup'"),
        (forge("winner", lambda line: line.update(speedup=float("nan"))), "field 'speedup'"),
        (forge("winner", lambda line: line.update(speedup=True)), "field 'speedup'"),
        (forge("winner", lambda line: line.update(low=2.0)), "ends swapped"),
        (forge("winner", lambda line: line.update(tuned="1" * 64)), "not in the file"),
        (forge("winner", lambda line: line.update(of=99)), "kernel that is not in the file"),
        (forge("winner", lambda line: line.pop("samples")), "missing or unknown"),
        (forge("winner", lambda line: line.update(command="rm")), "missing or unknown"),
        (forge("launch", lambda line: line["launch"].update(threads=-4)), "field 'launch'"),
        (forge("launch", lambda line: line["launch"].update(parameters=[["x"]])), "field 'launch'"),
        (forge("launch", lambda line: line.update(arch="sm_90; DROP")), "field 'arch'"),
        (forge("evaluation", lambda line: line.update(verdict="excellent")), "field 'verdict'"),
        (forge("evaluation", lambda line: line.update(evaluation="0" * 32)), "run that is not in the file"),
        (forge("evaluation", lambda line: line.update(modelled=1)), "modelled outcome in a measured run"),
        (forge("evaluation", lambda line: line.update(cycles=5.0)), "refused a row"),
        (forge("evaluation", lambda line: line.update(evaluation=[])), "run that is not in the file"),
        (forge("evaluation", lambda line: line.update(samples=10**30)), "field 'samples'"),
        (forge("evaluation", lambda line: line.update(took=10**30)), "field 'took'"),
        (forge("evaluation", lambda line: line.update(took=10**400)), "field 'took'"),
    ],
)
def test_forged_files_are_refused(
    tmp_path: Path, exported: Path, alter: Callable[[Lines], None], message: str
) -> None:
    lines = read(exported)
    alter(lines)
    refused(tmp_path, write(tmp_path / "forged.jsonl", lines), message)


def test_an_untouched_rewrite_is_accepted(tmp_path: Path, exported: Path) -> None:
    """The forger's checksum is right: what the test above refuses, it refuses for the forgery."""
    with Store.open(tmp_path / "b.sqlite") as store:
        assert store.import_(write(tmp_path / "same.jsonl", read(exported)))["winners"] == 1


def test_a_deeply_nested_line_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "deep.jsonl"
    bad.write_text(
        '{"format":"sassafras-store","version":1}\n' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n"
    )
    refused(tmp_path, bad, "not a valid export")
