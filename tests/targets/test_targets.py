"""Targets are loaded with a source that loads them again, and bad ones say what is wrong and where."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from sassafras.core import WorkloadError
from sassafras.targets import load
from sassafras.targets.load import variants

ROOT = Path(__file__).parents[2]

GOOD = """
    from sassafras.core import Case, Kernel, Workload

    def build(case, arch, ptxas=None):
        return Kernel(cubin=b"x", name="k", arch=arch, threads=32)

    workload = Workload(name="w", cases=(Case("a", (1, 1, 1), {}), Case("b", (2, 1, 1), {})), build=build)
    other = Workload(name="o", cases=(Case("a", (1, 1, 1), {}),), build=build)
    def made():
        return other
    number = 3
"""


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def test_a_python_file_is_loaded_by_attribute_and_can_be_loaded_again(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    first = load(str(path))
    assert first.name == "w" and first.source == f"{path}:workload"
    assert load(first.source).name == "w"
    assert load(f"{path}:other").name == "o"
    assert load(f"{path}:made").source == f"{path}:made"


def test_a_file_that_changed_within_a_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    for number in (3, 5, 7):
        path = write(tmp_path, GOOD.replace("(1, 1, 1)", f"({number}, 1, 1)"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert load(str(path)).case("a").grid == (number, 1, 1)


def test_cases_with_the_same_code_are_one_variant(tmp_path: Path) -> None:
    ((kernel, cases),) = variants(load(str(write(tmp_path, GOOD))), "sm_90a")
    assert kernel.arch == "sm_90a"
    assert [case.name for case in cases] == ["a", "b"]


def test_files_beside_the_workload_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "beside_me.py")
    assert load(str(write(tmp_path, "from beside_me import workload"))).name == "w"


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        (GOOD, ":absent", "no 'absent'.*mine.py:workload"),
        (GOOD, ":number", "'number' is a int, not a Workload"),
        ("x = 1\ny = 1 / 0\n", "", r"mine\.py:2: the file raised ZeroDivisionError"),
        ("x = (\n", "", r"mine\.py:1: syntax error"),
        ("import no_such_module_anywhere", "", r"mine\.py:1: the file raised ModuleNotFoundError"),
        (
            "from sassafras.core import Buffer\nb = Buffer('fp7', (1,))",
            "",
            r"mine\.py:2: unknown dtype 'fp7'",
        ),
        ("def workload():\n    return 1 / 0\n", "", r"mine\.py:2: the file raised ZeroDivisionError"),
    ],
)
def test_a_bad_file_names_the_place(tmp_path: Path, text: str, attribute: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(WorkloadError, match=message):
        load(f"{path}{attribute}")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "no such file"),
        ("nowhere.toml", "no such file"),
        ("~no-such-user/w.py", "~no-such-user/w.py: no such file: Could not determine home directory"),
        ("a\0.py", "no such file: embedded null byte"),
        (300 * "a" + ".toml", "aa.toml: no such file: File name too long"),
        ("softmax", "softmax: cannot tell what this is.*suite:NAME"),
        ("suite:nonesuch", "no kernel 'nonesuch'.*softmax"),
        ("suite:softmax/3x3", "no case '3x3'.*512x4096"),
    ],
)
def test_a_bad_target_says_what_a_target_is(target: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(target)


def test_a_suite_target_may_name_one_case() -> None:
    one = load("suite:softmax/512x2047")
    assert [case.name for case in one.cases] == ["512x2047"]
    assert load(one.source or "").cases[0].name == "512x2047"


@pytest.mark.parametrize("name", ["softmax.py", "saxpy.py", "saxpy.toml"])
def test_every_example_compiles(name: str) -> None:
    workload = load(str(ROOT / "examples" / name))
    for kernel, cases in variants(workload, "sm_90a"):
        assert kernel.arch == "sm_90a" and cases
        assert kernel.cubin.startswith(b"\x7fELF")
