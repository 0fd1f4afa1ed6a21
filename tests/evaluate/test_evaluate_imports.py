"""A confined interpreter imports what the caller's imports, from wherever, and reads nothing besides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox import Confinement, import_path, run
from sassafras.evaluate.sandbox.confine import landlock_version

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


def package(folder: Path, name: str) -> Path:
    """A folder outside every installation that holds one package."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("from .inner import here\n")
    (folder / name / "inner.py").write_text("here = __file__\n")
    return folder


def inherited() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def confined(code: str) -> tuple[int, str]:
    done = run(
        [sys.executable, "-c", code], Confinement(wall_s=250.0),
        environment={"PYTHONPATH": os.pathsep.join(import_path())},
    )  # fmt: skip
    return done.status, done.output


def test_a_package_on_pythonpath_is_imported_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = package(tmp_path / "site", "only_here")
    assert "ModuleNotFoundError" in confined("import only_here")[1]
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.syspath_prepend(place)
    assert confined("import only_here; print(only_here.here)") == (0, str(place / "only_here" / "inner.py"))
    status, words = confined(f"open({str(place / 'new')!r}, 'w')")
    assert status == 1
    assert "Permission denied" in words


def test_the_judge_and_its_candidates_see_a_package_that_only_pythonpath_gives(tmp_path: Path) -> None:
    """A whole program, started as a user starts it: the baseline and a candidate import the package."""
    place = package(tmp_path / "site", "only_here")
    code = """
import numpy as np
from sassafras.core import Buffer, Case, Kernel, Normal, Tolerance, Workload
from sassafras.evaluate.host import HostEvaluator, HostSource
case = Case("c", (1,), {"x": Buffer("fp32", (64,), "in", Normal()), "y": Buffer("fp32", (64,), "out")})
workload = Workload(
    "w", (case,), lambda case, arch: Kernel(b"", "w", arch, 32), lambda t: {"y": t["x"] * 2}, Tolerance()
)
text = "import only_here\\ndef run(x):\\n    assert only_here.here\\n    return x * 2\\n"
with HostEvaluator(workload, case, HostSource(text), rounds=2, scan=False) as judge:
    outcome = judge.evaluate(HostSource(text))
print(outcome.verdict, outcome.detail)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=250, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *inherited()])},
    )  # fmt: skip
    assert done.stdout.split()[:1] == ["correct"], done.stdout + done.stderr


def test_what_a_path_file_names_is_on_the_path() -> None:
    """In these very tests numpy may come in so; a confined interpreter finds it where this one does."""
    import numpy

    status, words = confined("import numpy; print(numpy.__file__)")
    assert (status, words) == (0, numpy.__file__)


def test_script_and_current_folder_home_and_temporary_files_stay_out(tmp_path: Path) -> None:
    """Also where an empty entry of PYTHONPATH means the current folder, or an entry names the home."""
    home, work, script = tmp_path / "home", tmp_path / "work", tmp_path / "scripts" / "judge.py"
    for folder in (home / "packages", work, script.parent, tmp_path / "added" / "x-1.dist-info"):
        folder.mkdir(parents=True)
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\nimport json\n"
        "from sassafras.evaluate.sandbox import import_path\nprint(json.dumps(import_path()))\n"
    )
    import sassafras

    root = str(Path(str(sassafras.__file__)).parent.parent)
    entries = [str(home), "", str(home / "packages"), root, *inherited()]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "added")], capture_output=True, check=True, cwd=work,
        env={**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(entries)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert str(home / "packages") in found
    assert root in found
    assert str(tmp_path / "added") in found, "a folder of installed packages, whoever added it"
    assert not {str(home), str(work), str(script.parent), ""} & set(found)
