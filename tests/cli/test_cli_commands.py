"""The program as a user runs it: on real cubins, and in real processes where the process matters."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sassafras import Kernel, Modelled, Store, suite
from sassafras.core import Candidate
from tests.cli.in_process import sassafras


def program(*arguments: str | Path, store: Path | None = None, timeout: float = 120) -> tuple[int, str, str]:
    """A process of its own: exit status, stdout, stderr."""
    environment = os.environ | ({"SASSAFRAS_STORE": str(store)} if store else {})
    environment.pop("SASSAFRAS_DEBUG", None)
    done = subprocess.run(
        [sys.executable, "-m", "sassafras", *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, env=environment, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = suite.load("softmax")
    path = tmp_path_factory.mktemp("cubin") / "softmax.cubin"
    path.write_bytes(workload.build(workload.case(), "sm_90a").cubin)
    return path


def test_version_and_help() -> None:
    import sassafras as package

    assert program("version") == (0, package.__version__ + "\n", "")
    code, out, _ = sassafras("--help")
    assert code == 0
    for command in ("optimize", "doctor", "store", "latency", "validate", "disasm", "suite", "version"):
        assert command in out


def _commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, *path, name)


def test_every_command_explains_all_of_its_options_in_full() -> None:
    import typer.main
    from typer.testing import CliRunner

    from sassafras.cli.app import app

    seen = 0
    for path, command in _commands(typer.main.get_command(app)):
        done = CliRunner().invoke(app, [*path, "--help"])
        assert done.exit_code == 0, (path, done.exception)
        words = "".join(done.output.split())  # as far as lines are broken
        for option in command.params:
            text = getattr(option, "help", None)
            assert text is None or "".join(text.split()) in words, (path, option.name)
            seen += text is not None
    assert seen > 100


def test_starting_up_imports_nothing_heavy() -> None:
    text = (
        "import sys; from sassafras.cli.app import app; import sassafras;"
        "print([m for m in ('torch','triton','numba','cuda','numpy','rich.live') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_doctor_says_what_is_there() -> None:
    code, out, _ = program("doctor")
    assert code == 0
    assert re.search(r"found +nvdisasm +\d+\.\d+", out) and re.search(r"found +triton +\d+\.\d+", out)
    assert "optimize on the timing model: yes" in out
    assert "pip install 'sassafras" not in out  # it is on no package index
    code, out, _ = sassafras("doctor", "--json")
    report = json.loads(out)
    assert {f["name"]: f["found"] for f in report["findings"]}["nvdisasm"] is True
    assert report["abilities"][0]["ready"] is True


def test_doctor_says_what_is_missing_for_what(tmp_path: Path) -> None:
    from sassafras.api.doctor import Finding, abilities, diagnose

    findings = [f for f in diagnose() if f.name != "nvdisasm"]
    first, *_ = abilities([*findings, Finding("nvdisasm", False, "", "reading native code")])
    assert not first.ready and first.missing == ("nvdisasm",)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_doctor_tries_whether_nvcc_and_nvdisasm_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    from sassafras.api import doctor
    from sassafras.sass import tools

    trial = doctor._cuda_trial()
    assert trial.found, trial.version
    # as where nvcc is of CUDA 13 and the only nvdisasm is Triton 3.6's
    of_triton = tuple(tool for tool in tools.find_all("nvdisasm") if tool.major < 13)
    if not of_triton or tools.find("nvcc").major < 13:
        pytest.skip("needs nvcc 13 and an nvdisasm 12")
    monkeypatch.setattr("sassafras.sass.disassembly.find_all", lambda program: of_triton)
    monkeypatch.setenv("SASSAFRAS_LISTINGS", "")
    trial = doctor._cuda_trial()
    assert not trial.found and "no nvdisasm could analyse this cubin" in trial.version
    able = {one.name: one for one in doctor.abilities([trial])}
    assert "nvcc and nvdisasm together" in able["CUDA source"].missing


def test_suite_lists_targets() -> None:
    code, out, _ = sassafras("suite")
    assert code == 0 and re.search(r"suite:softmax +512x4096", out)
    listed = json.loads(sassafras("suite", "--json")[1])
    assert [w["name"] for w in listed] == list(suite.names())


def test_disasm_prints_every_instruction(cubin: Path) -> None:
    from sassafras.sass import Program

    code, out, _ = sassafras("disasm", cubin)
    function = Program.parse(cubin.read_bytes()).function()
    assert code == 0 and out.startswith("// softmax_kernel  sm_90a")
    lines = [line for line in out.splitlines() if "/*" in line]
    assert len(lines) == len(function) and all(
        re.match(r" +B[0-5-]{6}:R[0-5-]:W[0-5-]:[Y-]:S\d\d ", x) for x in lines
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["disasm", "no/such.cubin"], "error: no/such.cubin: cannot read the file"),
        (["disasm", __file__], "error: .*"),
        (["optimize", "nothing.py"], "error: .*nothing.py: no such file"),
        (["optimize", "suite:softmax", "--budget", "soon"], "error: cannot read the budget 'soon'.*60s"),
        (["optimize", "suite:softmax", "--strategy", "magic"], "error: there is no strategy 'magic'.*anneal"),
        (["optimize", "suite:softmax", "--set", "warmth=3"], "error: .*warmth"),
        (["optimize", "suite:softmax", "--device", "abacus"], "error: there is no device 'abacus'"),
        (["optimize", "suite:softmax", "--device", "model", "--case", "7"], "error: softmax: no case '7'"),
        (["latency", "show", "--arch", "sm_100a"], "error: no latency table"),
        (["latency", "mine", "no/such", "--out", "x.json"], "error: .*no/such"),
        (["validate", "no/such.cubin", "other.cubin"], "error: no/such.cubin: cannot read the file"),
        (["store", "list"], "error: .*no store here"),
        (["store", "show", "3", "--store", __file__], "error: .*not a Sassafras store"),
    ],
)
def test_errors_are_one_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = program if arguments[0] == "disasm" else sassafras
    code, out, err = run(*arguments, store=tmp_path / "none.sqlite")
    assert code == 2 and out == ""
    assert re.match(message, err) and err.count("\n") == 1 and "Traceback" not in err


def test_debug_shows_the_traceback() -> None:
    code, _, err = program("disasm", "no/such.cubin", "--debug")
    assert code == 1 and "Traceback" in err and "no/such.cubin" in err


def test_store_commands(tmp_path: Path) -> None:
    path, copy, export = tmp_path / "a.sqlite", tmp_path / "b.sqlite", tmp_path / "all.jsonl"
    kernel = Kernel(b"original", "k", "sm_90", 32)
    tuned = Candidate(kernel.with_cubin(b"tuned"), {"moves": [1]})
    with Store.open(path) as store:
        run = store.begin_run(
            {"a": 1}, kernel=kernel, workload="w", case="c", device="timing model", modelled=True,
            strategy="anneal", seed=3,
        )  # fmt: skip
        outcome = Modelled(tuned.digest, None, 90.0, 99.0)
        store.record(run, tuned, outcome)
        store.save_modelled_winner(kernel, tuned, outcome, model="timing model", workload="w", case="c")
    code, out, _ = program("store", "list", store=path)
    assert code == 0 and "modelled only (not measured)" in out and "1.100x" in out and "can be resumed" in out
    assert "tuned kernels (measured)" not in out
    code, out, _ = sassafras("store", "list", "--json", store=path)
    assert json.loads(out)["tuned kernels (measured)"] == []
    code, out, _ = sassafras("store", "show", "1", "--jsonl", store=path)
    (line,) = out.splitlines()
    assert json.loads(line)["cycles"] == 90.0 and json.loads(line)["modelled"] is True
    assert json.loads(sassafras("store", "show", "1", store=path)[1])["verdicts"] == {"modelled": 1}
    assert sassafras("store", "export", export, store=path)[0] == 0
    code, out, _ = sassafras("store", "import", export, store=copy)
    assert (code, out) == (0, "imported 2 cubins, 1 kernels, 1 runs, 1 evaluations, 1 modelled_winners\n")
    assert sassafras("store", "import", export, store=copy)[1] == "imported nothing new\n"
    prune = ("store", "prune", "--older-than", "0", "--modelled")
    everything = "1 evaluations, 1 runs, 1 modelled_winners, 2 cubins"
    assert sassafras(*prune, "--dry-run", store=copy)[1] == f"would remove {everything}\n"
    code, out, err = sassafras(*prune, store=copy)
    assert code == 2 and not out and f"would remove {everything}, and there is no terminal" in err
    assert len(json.loads(sassafras("store", "list", "--json", store=copy)[1])["runs"]) == 1
    assert sassafras(*prune, "--yes", store=copy)[1] == f"removed {everything}\n"
    assert json.loads(sassafras("store", "list", "--json", store=copy)[1])["runs"] == []


def test_latency_mine_and_show(tmp_path: Path, cubin: Path) -> None:
    table = tmp_path / "table.json"
    code, out, _ = sassafras("latency", "mine", cubin.parent, "--out", table)
    assert code == 0 and out == f"{len(json.loads(table.read_text())['rows'])} rows written to {table}\n"
    code, out, _ = sassafras("latency", "show", "--table", table, "--kind", "raw", "--producer", "FMUL")
    heading, columns, *rows = out.splitlines()
    assert heading.startswith(f"sm_90: {len(rows)} of ") and columns.startswith("kind  producer")
    assert rows and all(re.match(r"raw +FMUL", row) for row in rows)
    packaged = sassafras("latency", "show")[1]
    assert len(packaged.splitlines()) > len(rows) + 1000
