"""One command for each class of bad input: one line with the fault and the way out, and its exit status.

More of them are in `test_cli_bad_input`, `test_cli_real_fault`, `test_cli_commands`, `tests/store` and, for
workloads that only the interpreter finds wrong, `tests/check`.
"""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras.cuda.environment import available
from sassafras.store import Store
from sassafras.targets import load
from tests.cli.in_process import invoke

EVOLVE = f"evolve {Path(__file__).parents[2] / 'examples' / 'evolve' / 'softmax.py'}"
MODEL = {"--device": "model", "--budget": "2e", "--store": "st.sqlite"}
KERNELS = """
import triton
import triton.language as tl

from sassafras import Buffer, Case, Tolerance, Uniform
from sassafras.frontend.triton import workload as made_of


@triton.jit
def copy(y, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def unknown(y, x, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), nosuch(x))


@triton.jit
def described(y, x, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), x.load([0]))


def plain(y, x):
    pass


def made(kernel=copy, name="c", grid=(2,), constants={"BLOCK": 256}, options={}, more={}, **rest):
    args = {"y": Buffer("fp32", (500,), "out"), "x": Buffer("fp32", (500,)), "n": 500} | more
    return made_of(kernel, [Case(name, grid, args, constants, options)], **rest)


workload = made()
"""
#: name of a workload -> how it is made, what is said of it
WORKLOADS = {
    "dtype": ("made(more={'x': Buffer('fp33', (500,))})", "w.py:{}: unknown dtype 'fp33' (one of fp64,"),
    "role": ("made(more={'x': Buffer('fp32', (5,), 'output')})", "unknown role 'output' (in, out or inout)"),
    "shape": ("made(more={'x': Buffer('fp32', (-5,))})", "shape (-5,) is no tuple of positive"),
    "length": ("made(more={'x': Buffer('fp32', 500)})", "shape 500 is no tuple of positive"),
    "fill": ("made(more={'x': Buffer('fp32', (5,), fill=Uniform(2, 1))})", "Uniform(2, 1) needs finite"),
    "tensor": ("made(more={'x': 500 * [0.0]})", "case c: argument 'x' is [0.0, 0.0, 0.0,"),
    "none": ("made(more={'x': None})", "'x' is None, not a Buffer, a float or an int"),
    "text": ("made(more={'n': '500'})", "argument 'n' is '500', not"),
    "wide": ("made(more={'n': 2**70})", "an int of at most 64 bits (None and"),
    "grid": ("made(grid=(1, 1, 1, 1))", "case c: grid is one to three positive whole numbers or a function"),
    "empty_grid": ("made(grid=(0,))", "got (0,)"),
    "grid_raises": ("made(grid=lambda meta: (meta['BLOK'],))", "the grid's function raised KeyError: 'BLOK'"),
    "no_grid": (
        "made(grid=lambda meta: None)",
        "positive whole numbers or a function that returns them, got N",
    ),
    "lacks": ("made(constants={})", "copy, case c: no value for parameter 'BLOCK' (add it to the case)"),
    "has_more": ("made(more={'z': 3})", "copy has no parameter 'z' (it has y, x, n, BLOCK)"),
    "no_constant": ("made(more={'BLOCK': 256}, constants={})", "'BLOCK' is a tl.constexpr: give it in const"),
    "no_argument": ("made(constants={'BLOCK': 256, 'n': 3})", "'n' is given both in args and in constants"),
    "option": ("made(options={'num_warp': 4})", "Keyword argument num_warp was specified but unrecognised"),
    "warps": ("made(options={'num_warps': 3})", "num_warps must be a power of 2"),
    "stages": ("made(options={'num_stages': 'two'})", "num_stages is a whole number, not 'two'"),
    "case": ("made(name='')", "a case needs a name"),
    "no_cases": ("made_of(copy, [])", "copy: a workload needs at least one case"),
    "twice": ("made_of(copy, 2 * workload.cases)", "case names must be unique, got ['c', 'c']"),
    "reference": ("made(reference=3)", "copy: the reference is no function"),
    "tolerance": ("made(tolerance='loose')", "'loose' is no Tolerance(rtol, atol)"),
    "flops": ("made(meta={'flops': 'many'})", "meta['flops'] is 'many', not a number or numbers by case"),
    "function": ("made(kernel=plain)", "expected a @triton.jit function, got function (decorate the kernel"),
    "symbol": ("made(kernel=unknown)", "at 2:38: tl.store(y + tl.arange(0, BLOCK), nosuch(x)): NameError('"),
    "descriptor": ("made(kernel=described)", "(make tensor descriptors in the kernel)"),
}
#: class -> (command, what is said, exit status other than 2)
COMMANDS: dict[str, list[tuple[Any, ...]]] = {
    "files": [
        ("optimize empty.py", "empty.py: the file defines no 'workload' (define a workload)"),
        ("optimize latin.py", "latin.py:1: syntax error: (unicode error) 'utf-8' codec"),
        ("optimize syntax.py", "syntax.py:1: syntax error"),
        ("optimize exits.py", "exits.py:2: the file raised SystemExit: 3"),
        ("optimize null.py", "the file raised SyntaxError: source code string cannot contain null bytes"),
        ("optimize no.toml", "no.toml: no such file (a target is file.py[:attribute]"),
        ("optimize cut.toml", "cut.toml: not TOML: "),
        ("optimize latin.toml", "latin.toml: not TOML: 'utf-8' codec can't decode byte 0xe9"),
        ("optimize empty", "empty: cannot tell what this is (a target is"),
        ("optimize cut.json", "cut.json: this is no sound capture: it is no JSON: Unterminated string"),
        ("optimize latin.json", "latin.json: this is no sound capture: 'utf-8' codec"),
        ("optimize /proc/self/mem", "/proc/self/mem: cannot tell what this is"),
        ("disasm /proc/self/mem", "/proc/self/mem: cannot read the file: Input/output error"),
        ("disasm folder", "folder: cannot read the file: Is a directory"),
        ("disasm empty", "empty, offset 0: 0 bytes are too few for an ELF header"),
        ("disasm cut.cubin", ": section table runs past the end of the file"),
        ("disasm good.cubin --kernel nosuch", "good.cubin: no kernel 'nosuch' (it holds copy)"),
        ("validate good.cubin folder", "folder: cannot read the file: Is a directory"),
        ("validate good.cubin cut.cubin", "bytes at cubin: ", 1),
        ("explain w.py --device model --tuned empty", "this one 0 (explain compares schedules of one cubin"),
        ("explain cut.json --device model", "cut.json: this is not a result that Sassafras wrote"),
        ("explain empty.json --device model", "empty.json: this is not a result that Sassafras wrote"),
        ("report no.json", "no.json: cannot be read: No such file or directory"),
        ("report cut.json", "cut.json: cannot be read: it is no JSON: Unterminated string"),
        ("report latin.json", "latin.json: cannot be read: 'utf-8' codec"),
        ("latency show --table folder", "folder: cannot be read: Is a directory"),
        ("latency mine folder --out x.json", "no cubin for sm_90 could be mined (give cubins, or folders"),
        ("tune no", "no: cannot read the capture: No such file or directory (make one with `sassafras cap"),
        ("check no.py", "no.py: no such file", 1),
        ("capture --out new -- /no/such", "/no/such: cannot run it: No such file or directory"),
        ("run -- /no/such", "/no/such: cannot run it: No such file or directory"),
        ("verify folder --batch-invariant", "folder: cannot read the file: Is a directory (name a file that"),
    ],
    "names": [
        ("optimize w.py:wrkload", "the file defines no 'wrkload' (it has w.py:workload)"),
        ("optimize suite:softmx", "the suite has no kernel 'softmx' (one of gemm_leakyrelu,"),
        ("optimize suite:softmax/9x9", "softmax: no case '9x9' (one of 512x4096,"),
        ("optimize w.py --strategy guidd", "there is no strategy 'guidd' (one of anneal, greedy, guided,"),
        ("optimize w.py --preset cuasmr", "there is no preset 'cuasmr' (one of cuasmrl, sip)"),
        ("optimize w.py --space swap", "there is no space 'swap' (one of swaps, control,"),
        ("optimize gemm:64x64", "'64x64': not a shape (write MxNxK, for example 64x128x256)"),
        ("gemm bench --grid 64x64x64 --mode serve", "mode 'serve' does not exist (one of offline, server)"),
        ("optimze w.py", "No such command 'optimze'. Did you mean 'optimize'?"),
        ("optimize w.py --budgt 3e", "No such option: --budgt (Possible options: --budget"),
        ("ptxas-options w.py --device model --fetch latest", "'latest' is no release of ptxas (for example"),
        ("report run:x", "'run:x' names no run (run:3, as `sassafras store list` numbers them)"),
        ("gemm build --only nosuch", "nosuch: no kernel has such a name"),
    ],
    "numbers": [
        ("optimize w.py --budget 0s", "a budget must be positive, got 0s"),
        (
            "optimize w.py --budget=-1",
            "cannot read the budget '-1' (for example 60s, 5m, 3000e or 60s,3000e)",
        ),
        ("optimize w.py --budget nan", "cannot read the budget 'nan'"),
        ("optimize w.py --budget 1e9s", "cannot read the budget '1e9s'"),
        ("optimize w.py --budget '10 parsecs'", "cannot read the budget '10 parsecs'"),
        ("optimize w.py --budget ''", "cannot read the budget ''"),
        ("optimize w.py --seed 1e3", "Invalid value for '--seed': Input should be a valid integer"),
        ("optimize w.py --seed 99999999999999999999", "'--seed': Input should be less than or equal to"),
        ("optimize w.py --compile-timeout nan", "'--compile-timeout': Input should be greater"),
        ("optimize w.py --set start=nan", "guided's start is a number from 0 up, not 'nan'"),
        ("check w.py --seconds 0", "'--seconds': Input should be greater"),
        (
            "explain w.py --device model --keep 2",
            "limit 600 or keep 2.0 cannot be (limit >= 1, 0 < keep <= 1)",
        ),
        ("gemm bench --grid 64x64x64 --dry-run --rate 0", "'--rate': Input should be greater"),
        ("gemm bench --grid 64x64x64 --dry-run --seconds nan", "'--seconds': Input should be greater"),
        ("gemm build --workers 0", "'--workers': Input should be greater"),
        ("tune --products 64x64x64 --gpus 0", "gpus=0: a benchmark needs at least one GPU"),
        ("tune --products 64x64x64 --dry-run --exclude (", "(: not a regular expression: missing )"),
        ("tune --products 64x64x64 --bands abc", "no band abc (one of <1e8,"),
        ("tune --products 64x64x64 --layouts xx", "xx: layouts are of nn and tn, or of nt and tt"),
    ],
    "tools": [
        ("optimize w.py --ptxas folder", "folder: cannot run ptxas: Permission denied"),
        ("optimize w.py --ptxas w.py", "w.py: cannot run ptxas: Permission denied"),
        ("optimize w.py --ptxas-options folder", "folder: cannot read a choice of ptxas options: Is a dir"),
        ("optimize w.py --ptxas-options cut.json", "cut.json: cannot read a choice of ptxas options: it is"),
        ("report --store good.sqlite", "good.sqlite: there is nothing to report (run `sassafras optimize`"),
        ("latency mine good.cubin --out /dev/full", "/dev/full: cannot write the table: No space left on"),
        ("optimize w.py --out /dev/null/x", "/dev/null/x: results cannot be written there: Not a directory"),
    ],
    "stores": [
        ("store list --store folder", "folder: cannot read the store: Is a directory"),
        ("store list --store empty", "empty: there is no store here: the file is empty"),
        ("store list --store foreign.sqlite", "this database belongs to another program"),
        ("store list --store newer.sqlite", "the store has schema version 99, this Sassafras knows"),
        ("store show 99 --store good.sqlite", "there is no run 99 (see `sassafras store list`)"),
        ("optimize w.py --store foreign.sqlite", "foreign.sqlite: this database belongs to another program"),
        ("optimize w.py --store /proc/x.sqlite", "/proc/x.sqlite: cannot open the store: unable to open"),
        ("store import empty --store good.sqlite", "empty: the file is truncated (nothing was imported)"),
        ("store import latin.json --store good.sqlite", "latin.json:1: not a valid export"),
        ("store export w.py --store good.sqlite", "w.py: the file exists already (remove it or name anoth"),
        ("store export no/x.jsonl --store good.sqlite", "no/x.jsonl: cannot write the export: No such file"),
        ("store export w.py/x --store good.sqlite", "w.py/x: cannot write the export: Not a directory"),
        ("store prune --store good.sqlite --older-than nan", "'--older-than': Input should be greater"),
        ("verify w.py --stored 99 --store good.sqlite", "the store holds no measured kernel 99 (see `sass"),
        (
            "explain w.py --device model --store good.sqlite",
            "the store has no tuned kernel for it (run `sassafras optim",
        ),
    ],
    "devices": [
        ("optimize w.py --device cuda:9", "there is no device 'cuda:9' (auto, cuda, model, or a Device"),
        ("optimize w.py --device cuda", "no usable GPU: "),
        ("compare w.py good.cubin good.cubin", "no usable GPU: "),
        ("tune --products 64x64x64", "the benchmark needs a GPU: "),
        ("tune --calibrate", "calibration needs a GPU: {} (--dry-run rehearses without one)"),
        (
            "optimize w.py --arch sm_99",
            "the timing model knows sm_90 and sm_90a, not sm_99 (measure on a GPU",
        ),
        ("check w.py --arch sm_99", "error: architecture sm_99 is not known (one of sm_80,"),
        ("latency show --arch sm_12", "architecture sm_12 is not known (one of sm_80,"),
    ],
    "evolve": [
        ("evolve w.py", "this kernel's source has no hole to fill (mark lines with"),
        (f"{EVOLVE} --proposer endpoint:", "there is no proposer 'endpoint:' (mutate, endpoint:MODEL,"),
        (f"{EVOLVE} --proposer endpoint:m --base-url nourl", "nourl: this is no URL (http://HOST:8000/v1)"),
        (f"{EVOLVE} --proposer endpoint:m --key-variable NOKEY", "the environment variable NOKEY is not set"),
        (f"{EVOLVE} --proposer replay:folder", "folder: there is no recorded run here"),
        (f"{EVOLVE} --proposer exchange:w.py", "w.py: not a folder of proposals: File exists"),
        (f"{EVOLVE} --proposer exchange:e --device none --folder e --budget 5s", "waiting for", 4),
        (f"{EVOLVE} --device none", "--device none writes prompts, which needs a folder (--folder FOLDER)"),
        (f"{EVOLVE} --budget 5kt", "random edits spend no tokens: this budget has no end (for example 10m"),
        (f"{EVOLVE} --budget 5usd", "a cap on money needs prices, or it would never be reached"),
        (f"{EVOLVE} --prices -1 -1", "prices are from 0 up, not -1 and -1"),
        (f"{EVOLVE} --context nowhere", "nowhere: there is no such folder"),
        (
            f"{EVOLVE} --context folder",
            "folder: nothing in this folder can be read (it needs files",
        ),
        (f"{EVOLVE} --set population=0", "evolve has no setting 'population' (it has exemplars,"),
        ("llm train no.toml", "no.toml: No such file or directory"),
        ("llm corpus folder --out c.jsonl", "folder: nothing in this folder can be read (it needs files"),
    ],
    "options that exclude each other": [
        ("optimize w.py --preset sip --strategy greedy", "a preset names its strategy (leave out 'greedy'"),
        ("optimize suite:softmax/512x4096 --case 512x2048", "softmax: no case '512x2048' (one of 512x4096)"),
        ("capture --tensor-mib inf -- true", "error: --tensor-mib is inf (a number of MiB)"),
        ("capture --all-mib 1e400 -- true", "error: --all-mib is inf (a number of MiB)"),
        (f"store show {10**30} --store good.sqlite", f"good.sqlite: there is no run {10**30} (see"),
        (f"report run:{10**30} --store good.sqlite", f"good.sqlite: there is no run {10**30} (see"),
        ("explain w.py --save empty.py/x.json", "error: empty.py: results cannot be written there: this is"),
        ("explain w.py --save folder", "error: folder: this is a folder (name a file in it)"),
        (
            "verify w.py good.cubin --batch-invariant",
            "error: --batch-invariant is for a program alone (leave out",
        ),
        ("optimize w.py --preset sip --budget ''", "error: cannot read the budget ''"),
        ("verify 3 --stored 4", "error: both 3 and --stored 4 are given (give one)"),
        ("verify 3 good.cubin", "error: the stored kernel 3 and a cubin are both given (give one)"),
        ("capture --", "no program to run (sassafras capture -- python serve.py)"),
        ("store prune --yes", "none.sqlite: there is no store here (run `sassafras optimize` first)"),
        ("store check --remove", "none.sqlite: there is no store here (run `sassafras optimize` first)"),
    ],
}
ROWS = [(row[0], row[1], (*row, 2)[2]) for rows in COMMANDS.values() for row in rows] + [
    (f"optimize w.py:{name}", said, 2) for name, (_, said) in WORKLOADS.items()
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name."""
    folder = tmp_path_factory.mktemp("classes")
    (folder / "folder").mkdir()
    made = "\n".join(f"def {name}():\n    return {how}\n" for name, (how, _) in WORKLOADS.items())
    contents = {
        "w.py": KERNELS + made, "empty.py": "", "empty.json": "", "empty": "", "syntax.py": "def f(:\n",
        "exits.py": "import sys\nsys.exit(3)\n", "null.py": "x = 1\0\n", "latin.py": "x = 'é'\n",
        "cut.toml": "name = 'a\n", "latin.toml": "name = 'é'\n", "cut.json": '{"a": "b', "latin.json": '"é"',
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="latin-1")
    cubin = load(str(folder / "w.py")).build(load(str(folder / "w.py")).case(), "sm_90a").cubin
    (folder / "good.cubin").write_bytes(cubin)
    (folder / "cut.cubin").write_bytes(cubin[: len(cubin) // 2])
    for name in ("good", "newer"):
        Store.open(folder / f"{name}.sqlite").close()
    for name, change in (("newer", "PRAGMA user_version = 99"), ("foreign", "CREATE TABLE bookmarks (url)")):
        with sqlite3.connect(folder / f"{name}.sqlite") as database:
            database.execute("PRAGMA journal_mode = DELETE")
            database.execute(change)
        database.close()
    return folder


@pytest.mark.parametrize(
    ("line", "said", "status"), ROWS, ids=[row[0].replace(EVOLVE, "evolve") for row in ROWS]
)
def test_one_line_says_what_is_wrong(
    files: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str, status: int
) -> None:
    if available()[0] and ("a GPU" in said or "usable GPU" in said):
        pytest.skip("there is a GPU")
    monkeypatch.chdir(files)
    monkeypatch.setenv("SASSAFRAS_STORE", "none.sqlite")
    monkeypatch.delenv("SASSAFRAS_DEBUG", raising=False)
    words = shlex.split(line)
    if words[0] in ("optimize", "evolve"):
        given = {word.split("=")[0] for word in words}
        words += [word for pair in MODEL.items() if pair[0] not in given for word in pair]
    ran = invoke(words)
    assert ran.exit_code == status, f"{ran.exit_code}: {ran.output} {ran.exception!r}"
    assert ran.exception is None or isinstance(ran.exception, SystemExit), repr(ran.exception)
    lines = ran.stderr.splitlines() if status == 2 else ran.stdout.splitlines()
    if status == 2:
        assert [row for row in lines if row.lower().startswith("error: ")] == lines[-1:], ran.stderr
    assert any(all(part in row for part in said.split("{}")) for row in lines), ran.output


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("suite --json > /dev/full", 2, "error: the output: No space left on device\n"),
        ("--help > /dev/full", 2, "error: the output: No space left on device\n"),
        ("suite --json >&-", 0, ""),
    ],
)
def test_a_full_disk_or_nothing_under_the_output(line: str, status: int, said: str) -> None:
    command = f"exec {sys.executable} -m sassafras {line}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (status, said)


def test_a_machine_without_nvdisasm(files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("SASSAFRAS_LISTINGS", str(tmp_path))  # what was read before is not found here
    monkeypatch.setattr("sassafras.sass.disassembly.find_all", lambda program: ())
    ran = invoke(["optimize", "w.py", "--no-check", *(word for pair in MODEL.items() for word in pair)])
    assert ran.exit_code == 2
    assert ran.stderr.splitlines()[-1].startswith("error: nvdisasm was not found (pip install triton")
