"""`benchmarks/gpu_tests.py`: which tests it runs, and what it records of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """With the tree's benchmarks on the path, and nothing of the xdist that runs us."""
    place = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    return place | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}{os.pathsep}{ROOT / 'src'}"}


def run(words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    place = environment() | variables
    return subprocess.run(
        words, cwd=folder, env=place, capture_output=True, text=True, check=False, timeout=120
    )


def outcomes(script: Any, records: Path) -> dict[str, str]:
    """Test -> its outcome."""
    paths = [records] if records.is_file() else []
    return {each["test"]: each["outcome"] for each in script.gpu_records.read(paths)}


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
    together, alone = (script.command(kind, names, 8, ["-x"]) for kind in ("together", "alone"))
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
    call = [*script.command("alone", sorted(set(names) - alone), 1, words)]
    done = run(call, ROOT)
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
    words = script.command("together", [], 2, ["-m", "", "-o", "addopts="])
    done = run(words, tmp_path, **shared)
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


def test_each_test_is_recorded_and_becomes_a_row(script: Any, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 1 == 2, 'unequal'\n"
        "@pytest.fixture\ndef broken(): raise OSError('no')\n"
        "def test_error(broken): pass\n"
        "@pytest.mark.skip(reason='later')\ndef test_later(): pass\n"
    )
    (tmp_path / "test_not_importable.py").write_text("import no_such_module_at_all\n")
    records = tmp_path / "00.jsonl"
    for kind, workers in (("alone", 1), ("together", 2)):
        records.unlink(missing_ok=True)
        words = script.command(kind, [], workers, ["-m", "", "-o", "addopts="])  # (the last -m counts)
        done = run(words, tmp_path, SASSAFRAS_GPU_RECORDS=str(records))
        assert done.returncode == 1, done.stdout
        absent, some = script.rows(script.gpu_records.read([records]))
        assert (absent["file"], absent["failed"]) == ("test_not_importable.py", 1)
        assert "no_such_module_at_all" in absent["failures"][0]["why"]
        assert [some[name] for name in ("file", "passed", "failed", "skipped")] == ["test_some.py", 1, 2, 1]
        failures = {failure["test"]: failure["why"] for failure in some["failures"]}
        assert "unequal" in failures["test_wrong"] and "OSError: no" in failures["test_error"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_has_ended_is_not_run_again(script: Any, tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, signal, time, pytest\n"
        "def ran(name): open('ran', 'a').write(name + '\\n')\n"
        "def test_right(): ran('right')\n"
        "def test_wrong(): ran('wrong'); assert 0\n"
        "def test_long():\n    ran('long')\n    time.sleep(0 if os.path.exists('again') else 600)\n"
    )
    records = tmp_path / "00.jsonl"
    words = script.command("together", [], workers, ["-m", "", "-o", "addopts="])
    place = {**environment(), "SASSAFRAS_GPU_RECORDS": str(records)}
    with subprocess.Popen(words, cwd=tmp_path, env=place, stdout=subprocess.DEVNULL) as cut:
        until = time.monotonic() + 60
        while time.monotonic() < until and outcomes(script, records) != {
            "test_right": "passed", "test_wrong": "failed", "test_long": "begun",
        }:  # fmt: skip
            time.sleep(0.05)
        cut.kill()
    assert outcomes(script, records)["test_long"] == "begun", "it says in which test the run was cut"
    records.write_text(records.read_text() + '{"file": "test_some.py", "te')  # cut within a line
    (tmp_path / "again").touch()
    assert run(words, tmp_path, SASSAFRAS_GPU_RECORDS=str(records)).returncode == 0
    assert outcomes(script, records) == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_long": "passed",
    }
    assert sorted((tmp_path / "ran").read_text().split()) == ["long", "long", "right", "wrong"]


def test_a_worker_that_crashes_is_a_failed_test_and_another_goes_on(script: Any, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import os, time, pytest\n"
        "@pytest.mark.parametrize('n', range(24))\ndef test_right(n): time.sleep(0.1)\n"
        "def test_dies(): os._exit(3)\n"
        "def test_last(): pass\n"
    )
    records = tmp_path / "00.jsonl"
    words = script.command("together", [], 2, ["-m", "", "-o", "addopts="])
    done = run(words, tmp_path, SASSAFRAS_GPU_RECORDS=str(records))
    assert done.returncode == 1 and "Different tests were collected" not in done.stdout, done.stdout
    found = outcomes(script, records)
    assert len(found) == 26 and [name for name in found if found[name] != "passed"] == ["test_dies"]
    (failed,) = (each for each in script.gpu_records.read([records]) if each["outcome"] == "failed")
    assert "crashed" in failed["why"]
