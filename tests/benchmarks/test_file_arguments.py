"""Files that a benchmark's command line names: missing, cut short, of something else. No traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import run_benchmark
from tests.shared import once

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import common  # noqa: E402

COMMANDS = [
    "beyond.py --merge {} --out {out}",
    "schedule_suite.py --merge {} --out {out}",
    "timing_model.py --remodel {}",
    "timing_model.py --publish {}",
    "gemm_schedules.py ship {} --out {out}",
    "latencies.py publish {} --out {out}",
    "choosers.py --dataset {} --out {out}",
    "validator.py {} --out {out}",
]


SCRIPTS = sorted(
    path.name
    for path in (ROOT / "benchmarks").glob("*.py")
    if "def main(" in path.read_text(encoding="utf-8")
)


#: each script in a fork of a process that has imported what nearly all of them do
EXPLAIN = """
import gc, os, runpy, sys
import numba, numpy, triton
import sassafras.api.optimize, sassafras.evaluate.gpu, sassafras.gemm.select, sassafras.validate
gc.freeze()
folder, *scripts = sys.argv[1:]
for script in scripts:
    name = os.path.basename(script)
    if not os.fork():
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
        status = 9  # --help ends a program
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
        sys.stdout.flush()
        os._exit(status)  # what is imported takes as long to be taken down
    with open(f"{folder}/{name}.status", "w") as file:
        print(os.waitstatus_to_exitcode(os.wait()[1]), file=file)
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_imports_and_explains_itself(script: str, shared: Path) -> None:
    def make(work: Path) -> None:
        paths = [str(ROOT / "benchmarks" / name) for name in SCRIPTS]
        subprocess.run([sys.executable, "-c", EXPLAIN, str(work), *paths], cwd=work, timeout=240, check=True)

    said = once(shared, "benchmarks-explained", make)
    status, out, err = ((said / f"{script}.{kind}").read_text() for kind in ("status", "out", "err"))
    assert status == "0\n" and f"usage: {script}" in out, err


def said(command: str, path: Path, out: Path) -> str:
    """The one line that a command ends with, having failed."""
    script, *words = (word.format(str(path), out=str(out)) for word in command.split())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        patch.setenv("OUT", str(out))
        run = run_benchmark(script.removesuffix(".py"), *words)
    assert run.returncode, run.stdout
    assert not [file for file in out.iterdir() if file.suffix == ".json"], "nothing is published"
    return (run.stderr or run.stdout).strip().splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_named(command: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "result.json"
    out = tmp_path / "out"
    out.mkdir()
    line = said(command, path, out)
    assert any(word in line for word in ("error: ", "cannot be read")), line
    assert "{}" not in command or "result.json" in line, line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"rows": [', "no result file"),
        ("[1]", "has no rows"),
        ('{"rows": 3}', "has no rows"),
        ('{"rows": [1]}', "has no rows"),
        ('{"benchmark": "soak", "rows": []}', "'soak'"),
        ('{"benchmark": "redraws", "rows": []}', "no environment"),
    ],
)
def test_a_file_of_something_else_is_no_result(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=why):
        common.read_result(path, "environment", of="redraws")


def test_a_result_file_is_read_and_lines_are_rows(tmp_path: Path) -> None:
    found = common.read_result(ROOT / "benchmarks" / "results" / "redraws.json", "environment", of="redraws")
    assert found["rows"] and found["environment"]
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"a": 1}\n{"a": 2}\n')
    assert [row["a"] for row in common.read_lines(lines)] == [1, 2]
    for text in ('{"a": 1}\n{"a"', "3\n"):
        lines.write_text(text)
        with pytest.raises(SystemExit, match="one a line"):
            common.read_lines(lines)
    with pytest.raises(SystemExit, match="cannot be read"):
        common.read_result(tmp_path)


def test_a_run_goes_on_behind_the_lines_of_another(tmp_path: Path) -> None:
    """A line that a kill cut off is taken out; one that is damaged before the last is named."""
    first = common.Lines(tmp_path / "made" / "rows.jsonl")
    first.add({"a": 1}, {"a": 2})
    with first.path.open("a") as file:
        file.write('{"a"')
    again = common.Lines(first.path)
    again.add({"a": 3})
    assert common.read_lines(first.path) == again.rows == [{"a": n} for n in (1, 2, 3)]
    other = common.Lines(tmp_path / "other.jsonl", first.path)
    assert other.rows == again.rows == common.read_lines(other.path)
    assert not common.Lines(tmp_path / "none.jsonl").rows
    first.path.write_text('{"a"\n{"a": 1}\n')
    with pytest.raises(SystemExit, match="one a line"):
        common.Lines(first.path)


def test_rows_of_two_gpus_make_no_result_together() -> None:
    here = {"gpu": "NVIDIA H200", "ptxas": "12.8.93"}
    assert common.one_gpu([None, {"gpu": None}, here]) == here and common.one_gpu([None]) == {}
    both = common.one_gpu([here | {"commit": "a"}, here | {"commit": "b"}, here | {"commit": "a"}])
    assert both == here | {"commit": "a; b"}, "rows that were measured before a change of the code"
    with pytest.raises(SystemExit, match="rows of NVIDIA H100 and of NVIDIA H200 make no result together"):
        common.one_gpu(iter([here, {"gpu": "NVIDIA H100"}]))
