"""`verify --batch-invariant`: programs whose rows depend on each other are found, others are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

from sassafras.api.batch_invariance import batch_invariance  # noqa: E402
from sassafras.cli.app import app  # noqa: E402
from sassafras.core import SassafrasError, ToolMissing  # noqa: E402

PROGRAM = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x, offsets):
        return {{"a": [{of}], "b": offsets + x[:, 0]}}

def build():
    return Scaled()

def inputs(rows):
    made = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=made).half(), torch.arange(rows)
"""


def written(folder: Path, of: str) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(of=of))
    return path


def test_independent_rows_pass(tmp_path: Path) -> None:
    found = batch_invariance(written(tmp_path, "torch.softmax(x.float(), -1).half()"), rows=40)
    assert not found.failed and found.rows > 200 and "all have the same bits" in found.summary()
    assert not batch_invariance(written(tmp_path, "x.add_(1)"), rows=40).failed  # in place
    path = written(tmp_path, "kept.setdefault(len(x), x.clone()).copy_(x)")  # results in the same memory
    path.write_text("kept = {}\n" + path.read_text())
    assert not batch_invariance(path, rows=40).failed


@pytest.mark.parametrize(
    ("of", "where"),
    [
        ("x - x.mean(0)", "a batch of 1"),  # all other rows
        ("x * (len(x) == 40) - 0.0", "a batch of 9"),  # how many there are
        ("x + torch.arange(len(x))[:, None] % 2", "permuted rows"),  # the place
    ],
)
def test_rows_that_depend_on_others_are_found(of: str, where: str, tmp_path: Path) -> None:
    found = batch_invariance(written(tmp_path, of), rows=40)
    assert found.failed and found.unequal[where] > 0


def test_the_command_says_it_by_its_status(tmp_path: Path) -> None:
    good, bad = "x * 2", "x - x.mean(0)"
    for of, status in ((good, 0), (bad, 1)):
        done = CliRunner().invoke(app, ["verify", "--batch-invariant", str(written(tmp_path, of))])
        assert done.exit_code == status, done.output
    assert "rows with other bits: 1 in a batch of 1" in done.output


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("inputs = 1\nbuild = int", "there is no inputs"),
        ("import torch\nbuild = lambda: len\ninputs = lambda rows: torch.ones(3)", "are not 256 rows"),
        (
            "import torch\nbuild = lambda: sum\ninputs = lambda rows: torch.ones(rows)",
            "not tensors of 256 rows",
        ),
        ("1 / 0", "ZeroDivisionError"),
        ("inputs = int\ndef build():\n    1 / 0", "program.py:3: the file raised ZeroDivisionError"),
        (
            "import torch\nbuild = lambda: lambda x: 1 / 0\ninputs = lambda rows: torch.ones(rows)",
            "program.py:2: the file raised ZeroDivisionError",
        ),
        (
            "import torch\nbuild = lambda: lambda x: [x] * (1 + (len(x) > 9))\ninputs = torch.ones",
            "the results of 256 rows are 2 tensors, those of 1 rows 1",
        ),
    ],
)
def test_a_program_of_another_kind_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(text)
    with pytest.raises(SassafrasError, match=what):
        batch_invariance(path)


def test_a_path_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("1")
    for name, what in (
        ("nope.py", "cannot read the file: No such file or directory"),
        (".", "cannot read the file: Is a directory"),
        ("notes.txt", "this is no Python file"),
    ):
        with pytest.raises(SassafrasError) as raised:
            batch_invariance(tmp_path / name)
        assert str(raised.value) == f"{tmp_path / name}: {what} (name a file that ends in .py)"


def test_without_torch_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ToolMissing, match="needs torch"):
        batch_invariance(tmp_path / "program.py")
