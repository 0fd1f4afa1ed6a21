"""CUDA sources and raw cubins: compiled or wrapped with parameters typed by what the cubin itself says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.core import (
    Buffer,
    Case,
    CompileError,
    Normal,
    SassafrasError,
    ToolMissing,
    Uniform,
    UnsupportedArch,
    WorkloadError,
)
from sassafras.cuda.compile import ptxas_flags_of_nvrtc, with_nvcc
from sassafras.frontend import cubin as cubin_frontend
from sassafras.frontend import ptx
from sassafras.frontend.cuda import workload
from sassafras.frontend.ptx.rewrites import Cache
from sassafras.frontend.ptxas_options import PtxasOptions
from sassafras.sass.tools import find
from sassafras.targets import load
from sassafras.targets.load import variants
from tests.frontend.ptx.compiled_ptx import code

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = """
template <typename T> __device__ T twice(T x) { return x + x; }
extern "C" __global__ void mixed(float* y, long long n, double a, short s, int i) {
  if (threadIdx.x < n) y[threadIdx.x] = twice((float)a) + s + i + STEP;
}
__global__ void plain(float* y) { *y = 1.f; }
"""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


def case(**change: object) -> Case:
    args = {"y": Buffer("fp32", (32,), role="out"), "n": 32, "a": 1.0, "s": 3, "i": 4}
    settings = {"name": "c", "grid": (1, 1, 1), "args": args, "constants": {"STEP": 2}, **change}
    return Case(**settings)  # type: ignore[arg-type]


@needs_nvcc
def test_parameters_take_the_sizes_that_the_cubin_states() -> None:
    kernel = workload(SOURCE, [case()], threads=32, entry="mixed").build(case(), "sm_90a")
    assert kernel.parameters == (("y", "*fp32"), ("n", "i64"), ("a", "fp64"), ("s", "i16"), ("i", "i32"))
    assert (kernel.threads, kernel.arch, kernel.hidden_args) == (32, "sm_90a", 0)


@needs_nvcc
def test_constants_are_macros_and_options_override() -> None:
    a, b = case(), case(name="d", constants={"STEP": 5}, options={"threads": 64, "shared_bytes": 128})
    made = workload(SOURCE, [a, b], threads=32, entry="mixed")
    (first, _), (second, _) = variants(made, "sm_80")
    assert first.digest != second.digest
    assert (second.threads, second.shared_bytes) == (64, 128)


@needs_nvcc
def test_entries_are_found_by_plain_name_or_named_when_ambiguous() -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out")})
    assert workload(SOURCE, [item], threads=1, entry="plain").build(item, "sm_90a").name == "_Z5plainPf"
    with pytest.raises(WorkloadError, match=r"2 kernels.*_Z5plainPf, mixed"):
        workload(SOURCE, [item], threads=1).build(item, "sm_90a")
    with pytest.raises(WorkloadError, match="no single kernel 'absent'"):
        workload(SOURCE, [item], threads=1, entry="absent").build(item, "sm_90a")


NAMES = """
template <int N> struct use_ { float v[N]; };
namespace deep { namespace er { template <class T> __global__ void of(T* y, use_<3> z) { *y = z.v[0]; } } }
template __global__ void deep::er::of<float>(float*, use_<3>);
namespace { __global__ void hidden(float* y) { *y = 1; } }
static __global__ void here(float* y) { *y = 2; }
__global__ void use(float* y) { *y = 3; }
__global__ void reuse_some_kernel(float* y) { *y = 4; }
void both() { hidden<<<1, 1>>>(nullptr); here<<<1, 1>>>(nullptr); }
"""


def test_a_source_that_is_no_text_is_named(tmp_path: Path) -> None:
    (file := tmp_path / "k.cu").write_bytes(b"// gr\xf6\xdfe\n" + SUM.encode())
    with pytest.raises(WorkloadError, match=r"k\.cu: it is no text: byte 5 is no UTF-8"):
        workload(file, [case()], threads=32)
    file.write_text("// größe\n" + SUM, encoding="utf-8")
    assert workload(file, [case()], threads=32).name == "k"


@needs_nvcc
def test_a_plain_name_is_the_whole_name_of_one_kernel() -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out")}, constants={})
    for name, mangled in (("use", "_Z3usePf"), ("here", "_Z4herePf"), ("hidden", "6hiddenEPf")):
        assert workload(NAMES, [item], threads=1, entry=name).build(item, "sm_90a").name.endswith(mangled)
    other = case(args={"y": Buffer("fp32", (1,), role="out"), "z": 1}, constants={})
    with pytest.raises(WorkloadError, match="'z' takes 12 bytes"):
        workload(NAMES, [other], threads=1, entry="of").build(other, "sm_90a")
    start = "__global__ void start_kernel(float* y) { *y = 4; }\n"  # (_Z12start_kernelPf holds "2st")
    for part in ("st", "kernel", "er", "Pf", "f"):
        with pytest.raises(WorkloadError, match=f"no single kernel '{part}'"):
            workload(start + NAMES, [item], threads=1, entry=part).build(item, "sm_90a")


@needs_nvcc
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"threads": 0}, "threads must be a whole number from 1 to 1024, got 0"),
        ({"threads": 1025}, "threads must be .* got 1025"),
        ({"threads": True}, "threads must be .* got True"),
        ({"shared_bytes": -1}, "shared_bytes must be a whole number from 0 to 232448, got -1"),
        ({"shared_bytes": 1 << 20}, "shared_bytes must be .* got 1048576"),
        ({"flags": ("-dryrun",)}, "compiled nothing"),
    ],
)
def test_a_block_that_cannot_be_launched_is_named(options: dict[str, object], what: str) -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out"), "x": Buffer("fp32", (3,))}, options=options)
    with pytest.raises(SassafrasError, match=what):
        workload(SUM, [item], threads=32).build(item, "sm_90a")


@needs_nvcc
def test_arguments_that_do_not_fit_are_named() -> None:
    short = case(args={"y": Buffer("fp32", (1,), role="out")})
    with pytest.raises(WorkloadError, match="takes 5 parameters, the case gives 1"):
        workload(SOURCE, [short], threads=1, entry="mixed").build(short, "sm_90a")
    swapped = case(args={"y": 1, "n": Buffer("fp32", (1,)), "a": 1.0, "s": 2.5, "i": 1})
    with pytest.raises(WorkloadError, match=r"'s' takes 2 bytes, which the float 2\.5 cannot fill"):
        workload(SOURCE, [swapped], threads=1, entry="mixed").build(swapped, "sm_90a")


SUM = """extern "C" __global__ void k(float* y, const float* x) {
  float p, q;
  asm("mul.f32 %0, %1, %2;" : "=f"(p) : "f"(x[0]), "f"(x[1]));
  asm("add.f32 %0, %1, %2;" : "=f"(q) : "f"(p), "f"(x[2]));
  y[0] = q;
}
"""


@needs_nvcc
def test_flags_for_ptxas_hold_wherever_it_is_run() -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out"), "x": Buffer("fp32", (3,))}, constants={})
    own = str(find("nvcc").path.with_name("ptxas"))

    def contracted(*flags: str) -> list[bool]:
        made = workload(SUM, [item], threads=32, flags=flags)
        space = ptx.of(made, item, "sm_90a", [own])
        rewritten = space.apply(space.start(), ptx.PtxMove("entry name", 2))
        kernels = [
            made.build(item, "sm_90a"),
            made.build(item, "sm_90a", ptxas=own),
            space.build(rewritten).kernel,
        ]
        return [any("FFMA" in text for text in code(kernel.cubin, "k")) for kernel in kernels]

    assert contracted() == [True] * 3
    assert contracted("-fmad=false") == contracted("-Xptxas", "--fmad=false") == [False] * 3
    made = workload(
        SUM, [item], threads=32, flags=("-lineinfo", "-maxrregcount", "32", "-Xptxas=-O1,-dlcm=cg")
    )
    flags = made.build.ptxas_flags(item, "sm_90a")  # type: ignore[attr-defined]
    several = workload(SUM, [item], threads=32, flags=("--threads", "2", "-fmad=false"))
    assert several.build.ptxas_flags(item, "sm_90a") == ("--fmad", "false")  # type: ignore[attr-defined]
    assert {"-maxrregcount=32", "--generate-line-info", "-O1", "-dlcm=cg"} == set(flags)
    with pytest.raises(CompileError, match="Unknown option '--no-such'"):
        workload(SUM, [item], threads=32, flags=("--no-such",)).build.ptxas_flags(item, "sm_90a")  # type: ignore[attr-defined]


def test_nvrtcs_options_for_ptxas_are_told_from_others() -> None:
    given = [
        "--fmad=false",
        "-DN=3",
        "--maxrregcount=32",
        "-lineinfo",
        "--ptxas-options=-O1,-v",
        "-std=c++17",
        "--fmad true",
    ]
    flags = ("--fmad=false", "--maxrregcount=32", "-lineinfo", "-O1", "-v", "--fmad=true")
    assert ptxas_flags_of_nvrtc(given) == flags


@needs_nvcc
def test_the_ptxas_of_a_compiler_that_names_no_release_is_found_by_its_output() -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out"), "x": Buffer("fp32", (3,))}, constants={})
    made = workload(SUM, [item], threads=32)
    kernel = made.build(item, "sm_90a")
    version = kernel.meta["ptxas"]
    said = replace(kernel, meta={**kernel.meta, "ptxas": version.rpartition(".")[0]})  # as NVRTC says it
    space = ptx.of(made, item, "sm_90a", kernel=said)
    assert space.own_version == version
    assert space.build(ptx.PtxState(rewrites=(Cache(0, "cs"),))).digest != kernel.digest
    other = ptx.of(made, item, "sm_90a", [], kernel=said)
    assert other.own_version == said.meta["ptxas"], "there is none here"


STATIC = """static __device__ float kept[128];
extern "C" __global__ void k(float* y, const float* x) { kept[threadIdx.x] = x[0]; y[0] = kept[3]; }
"""


@needs_nvcc
def test_a_source_is_the_same_cubin_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc, options = str(find("nvcc").path), ["-arch=sm_90a", "-lineinfo"]
    script = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from sassafras.cuda.compile import with_nvcc
made = lambda ptx: with_nvcc({nvcc!r}, {STATIC!r}, {options!r}, where="k", ptx=ptx)
with ThreadPoolExecutor(4) as pool:
    cubin, ptx, again, text = pool.map(made, [False, True] * 2)
assert (cubin, ptx) == (again, text) and b".file" in ptx and b"kept" in ptx
sys.stdout.buffer.write(cubin)
"""
    command, environment = [sys.executable, "-c", script], {**os.environ, "TMPDIR": str(tmp_path)}
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0] and outputs[0] == outputs[1] != b""
    (home,) = tmp_path.glob("sassafras-*")
    assert not list(home.iterdir()), "nothing is left behind"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert with_nvcc(nvcc, STATIC, options, where="k") == outputs[0]
    home.chmod(0o777)  # others could put files there: another folder is taken
    assert with_nvcc(nvcc, STATIC, options, where="k") not in (b"", outputs[0])


@needs_nvcc
def test_sources_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(f"// grün, 漢字\n{STATIC}", "utf-8")
    (tmp_path / "bad.cu").write_text(f"{STATIC} grün(;", "utf-8")
    (tmp_path / "k.toml").write_text(
        """source = "k.cu" # grün
entry = "k"
threads = 32
[[case]]
name = "grün"
grid = [1]
[case.args]
y = { dtype = "fp32", shape = [128], role = "out" }
x = { dtype = "fp32", shape = [1] }
""",
        "utf-8",
    )
    script = """
from sassafras.cuda.compile import with_nvcc
from sassafras.core import CompileError
from sassafras.frontend._ptxas import assemble
from sassafras.sass.tools import find
from sassafras.targets import load
work = load("k.toml")
case = work.cases[0]
print(work.build(case, "sm_90a").name)
text = open("bad.cu", encoding="utf-8").read()
for tool, make in (
    ("nvcc", lambda nvcc: with_nvcc(nvcc, text, ["-arch=sm_90a"], where="bad")),
    ("ptxas", lambda ptxas: assemble(work.build.ptx(case, "sm_90a") + chr(252), "sm_90a", ptxas)),
):
    try:
        make(str(find(tool).path))
    except CompileError:
        print("refused")
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.stdout.split() == [b"k", b"refused", b"refused"], done.stderr.decode(errors="replace")


def test_a_source_has_one_folder_while_others_come_and_go(tmp_path: Path) -> None:
    """A thread or process that had found the folder, and no longer finds it, took another."""
    script = """
from concurrent.futures import ThreadPoolExecutor
from sassafras.cuda.compile import _folder_of
def used(_):
    with _folder_of("text") as folder:
        return str(folder)
with ThreadPoolExecutor(4) as pool:
    print(*set(pool.map(used, range(3000))))
"""
    command, environment = [sys.executable, "-c", script], {**os.environ, "TMPDIR": str(tmp_path)}
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    outputs = [run.communicate()[0].split() for run in runs]
    assert len(outputs[0]) == 1 and outputs[0] == outputs[1]
    assert [path.name for path in tmp_path.rglob("*")] == [f"sassafras-{os.getuid()}"]


@needs_nvcc
def test_cache_operators_that_a_user_chose_for_all_accesses_stay() -> None:
    item = case(args={"y": Buffer("fp32", (1,), role="out"), "x": Buffer("fp32", (3,))}, constants={})
    for flags, free in (
        ((), True),
        (("-Xptxas", "-dlcm=cg"), False),
        (("-Xptxas=--def-load-cache=cg",), False),
    ):
        space = ptx.of(workload(SUM, [item], threads=32, flags=flags), item, "sm_90a")
        assert ("load_cache" in space.axes, "access 0 Cache" in space.axes) == (free, free)
        assert "access 0 L2Policy" in space.axes
        for state in (ptx.PtxState(PtxasOptions(load_cache="ca")), ptx.PtxState(rewrites=(Cache(0, "ca"),))):
            assert ("may rely on them" in space.refusal(state)) is not free


@needs_nvcc
def test_the_compilers_message_is_passed_on() -> None:
    broken = SOURCE.replace("twice((float)a)", "thrice(a)")
    with pytest.raises(CompileError, match=r'kernel.cu\(4\): error: identifier "thrice"'):
        workload(broken, [case()], threads=32, entry="mixed").build(case(), "sm_90a")


def test_nvrtc_compiles_the_same_source() -> None:
    made = workload(SOURCE, [case()], threads=32, entry="mixed", compiler="nvrtc")
    try:
        kernel = made.build(case(), "sm_90a")
    except ToolMissing as error:
        pytest.skip(str(error))
    assert dict(kernel.parameters or ())["n"] == "i64"
    broken = SOURCE.replace("twice((float)a)", "thrice(a)")
    with pytest.raises(CompileError, match="thrice"):
        workload(broken, [case()], threads=32, entry="mixed", compiler="nvrtc").build(case(), "sm_90a")


@needs_nvcc
def test_a_raw_cubin_with_the_examples_description(tmp_path: Path) -> None:
    source = load(str(EXAMPLES / "saxpy.toml"))
    compiled = source.build(source.cases[0], "sm_90a")
    (tmp_path / "saxpy.cubin").write_bytes(compiled.cubin)
    shutil.copy(EXAMPLES / "raw_cubin.toml", tmp_path)
    wrapped = load(str(tmp_path / "raw_cubin.toml"))
    kernel = wrapped.build(wrapped.cases[0], "sm_90a")
    assert kernel.digest == compiled.digest and kernel.parameters == compiled.parameters
    with pytest.raises(UnsupportedArch, match="for sm_90, not sm_80"):
        wrapped.build(wrapped.cases[0], "sm_80")
    with pytest.raises(WorkloadError, match="another ptxas"):
        wrapped.build(wrapped.cases[0], "sm_90a", ptxas="ptxas")


def test_a_broken_cubin_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF" + bytes(100))
    made = cubin_frontend.workload(path, [case()], threads=32)
    with pytest.raises(SassafrasError):
        made.build(case(), "sm_90a")
    with pytest.raises(WorkloadError, match="no such cubin"):
        cubin_frontend.workload(tmp_path / "absent.cubin", [case()], threads=32)


DESCRIPTION = """
cubin = "k.cubin"
threads = 64
[[case]]
name = "small"
grid = [2, 3]
loop_trips = 7
args.y = { dtype = "fp16", shape = [4, 8], role = "out" }
args.x = { dtype = "i32", shape = [4], fill = { uniform = { low = 0, high = 9 } } }
args.z = { dtype = "fp32", shape = [4], fill = { normal = { mean = 1 } } }
args.a = 2.5
args.n = 3
"""


def test_a_description_is_read(tmp_path: Path) -> None:
    (tmp_path / "k.cubin").write_bytes(b"")
    (tmp_path / "k.toml").write_text(DESCRIPTION)
    made = load(str(tmp_path / "k.toml"))
    item = made.cases[0]
    assert (made.name, item.name, item.grid, item.loop_trips) == ("k", "small", (2, 3, 1), 7)
    assert item.args["y"] == Buffer("fp16", (4, 8), "out")
    assert item.args["x"] == Buffer("i32", (4,), fill=Uniform(0.0, 9.0))
    assert item.args["z"] == Buffer("fp32", (4,), fill=Normal(mean=1.0))
    assert (item.args["a"], item.args["n"]) == (2.5, 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("threads = 64", "", "'threads' is missing"),
        ("threads = 64", "threads = '64'", "'threads' must be of type int"),
        ("threads = 64", "thread = 64", "unknown key 'thread'"),
        ('cubin = "k.cubin"', "", "exactly one of source and cubin"),
        ("grid = [2, 3]", "grid = [0]", "case 1: grid must be"),
        ('dtype = "fp16"', 'dtype = "half"', "argument y: unknown dtype 'half'"),
        ("uniform =", "gauss =", "argument x: cannot read the fill"),
        ("args.n = 3", "args.n = true", "argument n: cannot read True"),
        ("[[case]]", "[[case]", "not TOML"),
        ('cubin = "k.cubin"', 'cubin = "gone.cubin"', "no such cubin"),
    ],
)
def test_a_bad_description_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in DESCRIPTION
    (tmp_path / "k.cubin").write_bytes(b"")
    (tmp_path / "k.toml").write_text(DESCRIPTION.replace(old, new))
    with pytest.raises(WorkloadError, match=message):
        load(str(tmp_path / "k.toml"))
