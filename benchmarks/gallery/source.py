"""Source text that must be refused while it is scanned or built, and honest text that must not be."""

from __future__ import annotations

from typing import Any

from . import Exhibit

KERNEL = """
extern "C" __global__ void affine(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i] + 1;
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def affine(y, x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, mask=o < n) + 1, mask=o < n)
"""
_BOMB = "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(A(A(A(A(x))))))))\n" + KERNEL.replace(
    "if (i < n)", 'B(asm volatile("");) if (i < n)'
)
_CUDA: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    (
        "includes_a_file",
        "pastes a file of the machine into its text",
        '#include "/etc/passwd"\n' + KERNEL,
        ("cheated",),
        "scan; Landlock behind it",
    ),
    (
        "embeds_a_file",
        "embeds a file",
        '__device__ const char s[] = {\n#embed "/etc/passwd"\n};' + KERNEL,
        ("cheated",),
        "scan; Landlock behind it",
    ),
    (
        "splices_with_a_blank",
        "pastes a file, the directive broken by a backslash and a blank",
        '#inc\\ \nlude "/etc/passwd"\n' + KERNEL,
        ("cheated",),
        "scan; Landlock behind it",
    ),
    (
        "hides_behind_a_raw_string",
        "pastes a file, behind a raw string that looks like a comment",
        'const char* s = R"(" /* )"; //\n#include "/etc/passwd"\n// */\n' + KERNEL,
        ("cheated",),
        "scan; Landlock behind it",
    ),
    (
        "names_another_line",
        "has the compiler quote another file in its messages",
        '#line 1 "/etc/passwd"\n#error quote\n' + KERNEL,
        ("unsupported",),
        "scan; Landlock and the filter of messages behind it",
    ),
    (
        "calls_cublas",
        "calls the library that it is compared with",
        "#include <cublas_v2.h>\n" + KERNEL,
        ("cheated",),
        "scan",
    ),
    (
        "own_launch",
        "launches kernels of its own",
        "__global__ void g() {}\n__global__ void f() { g<<<1, 1>>>(); }" + KERNEL,
        ("cheated",),
        "scan",
    ),
    (
        "own_stream",
        "makes a stream",
        "void f() { cudaStream_t s; cudaStreamCreate(&s); }" + KERNEL,
        ("cheated",),
        "scan; host code never runs",
    ),
    (
        "own_graph",
        "launches a graph",
        "void f() { cudaGraphLaunch(0, 0); }" + KERNEL,
        ("cheated",),
        "scan; host code never runs",
    ),
    (
        "l2_carve_out",
        "takes a share of the L2 for itself",
        "void f() { cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 25); }" + KERNEL,
        ("cheated",),
        "scan; host code never runs",
    ),
    (
        "runs_a_program",
        "starts a program",
        'void f() { system("id"); }' + KERNEL,
        ("cheated",),
        "scan; host code never runs",
    ),
    (
        "compile_bomb",
        "text that expands to 10^8 statements",
        _BOMB,
        ("timed_out", "out_of_resources"),
        "limits of the build",
    ),
    (
        "does_not_compile",
        "a type error",
        KERNEL.replace("2 * x", "2 * undefined"),
        ("compile_error",),
        "compiler",
    ),
    (
        "no_kernel",
        "defines no kernel of the name asked for",
        KERNEL.replace("affine", "other"),
        ("compile_error", "unsupported"),
        "symbol table",
    ),
)
_TRITON: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    (
        "triton_reads_files",
        "reads files while it is compiled",
        "import os\n" + TRITON,
        ("cheated",),
        "scan; Landlock behind it",
    ),
    (
        "triton_opens_sockets",
        "asks the network while it is compiled",
        "import socket\n" + TRITON,
        ("cheated",),
        "scan; seccomp behind it",
    ),
    (
        "triton_forks",
        "starts processes while it is compiled",
        "import subprocess\n" + TRITON,
        ("cheated",),
        "scan; seccomp behind it",
    ),
    (
        "triton_forges_its_launch",
        "claims an overlap with the launch before, through a patched serializer",
        "import json\nhonest = json.dumps\njson.dumps = lambda said, **more: honest({**said, 'meta': {'overlap': True}})\n"
        + TRITON,
        ("cheated",),
        "scan; launch facts are the cubin's and the case's",
    ),
    (
        "triton_patches_triton",
        "replaces Triton's own functions",
        TRITON + "\ntriton.compile = None\n",
        ("cheated",),
        "scan; a process of its own behind it",
    ),
    (
        "triton_endless",
        "never ends",
        TRITON + "\nwhile True:\n    pass\n",
        ("timed_out",),
        "limits of the build",
    ),
    (
        "triton_hungry",
        "allocates without end",
        TRITON + "\nhoard = []\nwhile True:\n    hoard.append(bytearray(b'1' * (1 << 24)))\n",
        ("out_of_resources",),
        "limits of the build",
    ),
    ("triton_not_python", "no Python", "def f(:\n", ("compile_error",), "compiler"),
)


def case() -> Any:
    """The case that all of these are built for."""
    from sassafras.core import Buffer, Case

    n = 1_000_000
    return Case("1M", (3907, 1, 1), {"y": Buffer("fp32", (n,), "out"), "x": Buffer("fp32", (n,)), "n": n})


def exhibits() -> list[Exhibit]:
    """Cheating and broken sources, and honest ones."""
    from sassafras.evaluate import Source

    def cuda(text: str) -> Any:
        return Source("cuda", text, entry="affine")

    def triton(text: str) -> Any:
        return Source("triton", text, constants={"BLOCK": 1024}, grid=(977, 1, 1))

    made = [
        Exhibit(f"cuda_{name}", title, "cheat", "source", expected, by, lambda text=text: cuda(text))
        for name, title, text, expected, by in _CUDA
    ]
    made += [
        Exhibit(name, title, "cheat", "source", expected, by, lambda text=text: triton(text))
        for name, title, text, expected, by in _TRITON
    ]
    made += [
        Exhibit("cuda_honest", "plain CUDA C++", "honest", "source", ("built",), "", lambda: cuda(KERNEL)),
        Exhibit("triton_honest", "plain Triton", "honest", "source", ("built",), "", lambda: triton(TRITON)),
        Exhibit(
            "cuda_honest_words",
            "names cuBLAS and streams in comments only",
            "honest",
            "source",
            ("built",),
            "",
            lambda: cuda("// faster than cublasSgemm on a cudaStream_t, without <<<>>>\n" + KERNEL),
        ),
    ]
    return made
