"""`benchmarks/gpu_tests.py`: which tests it runs, and what it makes of pytest's report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_tests

    return gpu_tests


def test_every_file_with_gpu_tests_is_run(script: Any) -> None:
    names = script.files()
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "tests/gpu").glob("test_*.py")} < set(names)
    assert "tests/gemm/test_hgemm_gpu.py" in names
    assert script.files(["opinfo"]) == ["tests/gpu/test_opinfo_gpu.py"] and script.files(["no such"]) == []
    together, alone = (
        script.command(kind, names, 8, Path("r.xml"), ["-x"]) for kind in ("together", "alone")
    )
    assert "-n" in together and "-n" not in alone and together[-1] == alone[-1] == "-x"


def test_alone_tests_of_each_file_are_a_call_of_their_own_with_several_gpus(script: Any) -> None:
    names = script.files()
    assert script.jobs(["together", "alone"], names, False, []) == [("together", names), ("alone", names)]
    last = [
        {"file": "tests/gpu/test_matmul.py", "seconds": 20},
        {"file": "tests/gpu/test_mcp_gpu.py", "seconds": 30},
    ]
    first, *others = script.jobs(["together", "alone"], names, True, last)
    assert first == ("together", names) and {kind for kind, _ in others} == {"alone"}
    alone = {name for _, (name,) in others}
    order = [name for _, (name,) in others]
    assert order[-2:] == ["tests/gpu/test_mcp_gpu.py", "tests/gpu/test_matmul.py"], (
        "longest first, unknown ones before"
    )
    words = ["--collect-only", "-q", "-p", "no:xdist", "-o", "addopts="]
    call = [*script.command("alone", sorted(set(names) - alone), 1, Path(os.devnull), words)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 5 and len(alone) > 9, done.stdout  # none of these files has one


def test_each_process_has_one_of_several_gpus(script: Any, tmp_path: Path) -> None:
    (shared,) = script.places("together", ["0", "3"])
    assert script.places("alone", ["0", "3"]) == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert script.places("several", ["0", "3"]) == script.places("alone", ["0"]) == [{}], "sees what we see"
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(
        "import os, time, pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_gpu(n, worker_id):\n"
        "    time.sleep(0.2)\n    open(worker_id, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    words = script.command("together", [], 2, tmp_path / "r.xml", ["-m", "", "-o", "addopts="])
    place = {**os.environ, **shared, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=tmp_path, env=place, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout
    assert {p.name: p.read_text() for p in tmp_path.glob("gw*")} == {"gw0": "0", "gw1": "3"}


def test_a_run_that_was_cut_goes_on(script: Any, tmp_path: Path) -> None:
    first = script.Progress(tmp_path, {"commit": "a", "gpus": ["0"]})
    first.add(0, "together", 5, 20.0)
    first.add(1, "alone", -9, 1.0)
    first.add(2, "alone", 124, 30.0)
    assert first.worst() == {"together": 0, "alone": 124}
    second = script.Progress(tmp_path, {"commit": "a", "gpus": ["0"]})
    assert second.codes == {"00 together": 0, "01 alone": 9}, "what was cut is run again, a failure is kept"
    assert second.seconds == {"together": 20.0, "alone": 31.0} and second.whole_s >= first.before
    with pytest.raises(ValueError, match="name another folder"):
        script.Progress(tmp_path, {"commit": "b", "gpus": ["0"]})


@pytest.mark.parametrize(
    ("more", "name"), [(("--tb=short", "-q"), "gpu-tests"), (("-k=nothing_has_this",), "gpu-tests-part")]
)
def test_only_a_run_of_all_tests_is_the_published_one(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], name: str
) -> None:
    own = tmp_path / "tests"
    own.mkdir()
    (own / "test_one.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_one(): pass\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu", "alone"]\n')
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # no test looks for it
    call = ["gpu_tests.py", "--no-build", "--workers", "1", "--out", str(tmp_path), "--", *more]
    monkeypatch.setattr(sys, "argv", call)
    script.main()
    assert [path.stem for path in tmp_path.glob("*.json")] == [name]


@pytest.mark.parametrize("script", ["gpu_tests.py", "schedule_suite.py"])
def test_without_a_gpu_nothing_is_written(script: str, tmp_path: Path) -> None:
    place = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": str(tmp_path)}
    words = [sys.executable, str(ROOT / "benchmarks" / script), "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=120)
    assert done.returncode and "nvidia-smi lists none" in done.stderr and "Traceback" not in done.stderr
    assert not [*tmp_path.glob("*.json*")]


def test_a_report_becomes_rows(script: Any, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 1 == 2, 'unequal'\n"
        "@pytest.fixture\ndef broken(): raise OSError('no')\n"
        "def test_error(broken): pass\n"
        "@pytest.mark.skip(reason='later')\ndef test_later(): pass\n"
    )
    (tmp_path / "test_not_importable.py").write_text("import no_such_module_at_all\n")
    report = tmp_path / "report.xml"
    words = script.command("alone", [], 1, report, ["-m", ""])  # (the last -m counts: all tests)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout
    absent, some = script.rows(list(script.counted(report)))
    assert (absent["file"], absent["failed"]) == ("test_not_importable.py", 1)
    assert [some[name] for name in ("file", "passed", "failed", "skipped")] == ["test_some.py", 1, 2, 1]
    assert [failure["test"] for failure in some["failures"]] == ["test_wrong", "test_error"]
    assert "unequal" in some["failures"][0]["why"]
    assert list(script.counted(tmp_path / "none.xml")) == []
