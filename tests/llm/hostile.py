"""Hostile texts for the holes of `bias_gelu` (CUDA) and `softmax` (Triton), and for whole sources."""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.core import Verdict

CHEAT = (Verdict.CHEATED,)
REFUSED = (Verdict.CHEATED, Verdict.UNSUPPORTED, Verdict.COMPILE_ERROR)
STOPPED = (Verdict.TIMED_OUT, Verdict.OUT_OF_RESOURCES, Verdict.COMPILE_ERROR)


@dataclass(frozen=True)
class Hostile:
    """A planted text and the verdicts that are right for it."""

    name: str
    text: str
    verdicts: tuple[Verdict, ...]


CUDA = (
    Hostile("reads a file", 'y[0] = fopen("/etc/passwd", "r") != 0;', CHEAT),
    Hostile("includes passwd", '#include "/etc/passwd"', CHEAT),
    Hostile("includes passwd, spliced", '#inc\\\nlude "/etc/passwd"', REFUSED),
    Hostile("includes passwd, digraph", '%:include "/etc/passwd"', CHEAT),
    Hostile("includes passwd, trigraph", '??=include "/etc/passwd"', CHEAT),
    Hostile("imports passwd", '#import "/etc/passwd"', REFUSED),
    Hostile("includes by a macro", '#define WHERE "/etc/passwd"\n#include WHERE', REFUSED),
    Hostile("incbin", 'asm volatile(".incbin \\"/etc/passwd\\";");', CHEAT),
    Hostile("incbin, in pieces", 'asm volatile(".inc" "bin \\"/etc/passwd\\";");', REFUSED),
    Hostile("opens a socket", "y[0] = socket(2, 1, 0);", CHEAT),
    Hostile("forks", "y[0] = fork();", CHEAT),
    Hostile("starts a program", 'y[0] = system("id");', CHEAT),
    Hostile("calls cuBLAS", "cublasSgemm_v2(0, 0, 0, 1, 1, 1, 0, x, 1, x, 1, 0, y, 1);", CHEAT),
    Hostile("side stream", "cudaStream_t s; cudaStreamCreateWithFlags(&s, 1);", CHEAT),
    Hostile("launches a kernel", "bias_gelu<<<1, 1>>>(y, x, bias, gate, cols, count);", CHEAT),
    Hostile("device limit", "cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20);", CHEAT),
    Hostile("graph", "cudaGraphLaunch(0, 0);", CHEAT),
    Hostile(
        "endless templates",
        "struct A { template <int N> static __device__ int f() { return f<N + 1>() + f<N + 2>(); } };\n"
        "y[0] = A::f<0>();",
        STOPPED,
    ),
    Hostile(
        "huge compile",
        "float z = x[0];\n#define B0 z = sinf(z) + z * z;\n"
        + "".join(f"#define B{i} {f'B{i - 1} ' * 10}\n" for i in range(1, 7))
        + "B6\ny[0] = z;",
        STOPPED,
    ),
)

WHOLE_CUDA = (
    Hostile("host code with cuBLAS", "#include <cublas_v2.h>", CHEAT),
    Hostile("reads a user's header", '#include "../../../../root/.bashrc"', CHEAT),
    Hostile("another language's host", "#include <unistd.h>\nstatic int pid = fork();", REFUSED),
    Hostile("macro bomb", "#define A A0 A0\n#define A0 fopen (\nint f() { return A }", REFUSED),
)

TRITON = (
    Hostile("reads a file", 'open("/etc/passwd").read()', CHEAT),
    Hostile("imports", 'import os\nos.system("touch /tmp/sassafras-was-here")', CHEAT),
    Hostile("reaches for builtins", "tl.__builtins__['open']('/etc/passwd')", CHEAT),
    Hostile("evaluates", "eval('1 + 1')", CHEAT),
    Hostile("calls torch", "import torch\ntorch.matmul(x_ptr, x_ptr)", CHEAT),
)

WHOLE_TRITON = (
    Hostile("writes a file", 'open("/tmp/sassafras-was-here", "w")', CHEAT),
    Hostile("opens a socket", "import socket\nsocket.socket()", CHEAT),
    Hostile("forks", "import os\nos.fork()", CHEAT),
    Hostile(
        "hides behind getattr", 'getattr(triton, "runtime").driver.active.get_current_stream(0)', REFUSED
    ),
    Hostile(
        "hangs the build",
        "while True:\n    pass",
        (Verdict.TIMED_OUT, Verdict.COMPILE_ERROR, Verdict.CHEATED),
    ),
    Hostile(
        "takes all memory",
        "x = [0] * (1 << 36)",
        (Verdict.OUT_OF_RESOURCES, Verdict.COMPILE_ERROR, Verdict.TIMED_OUT),
    ),
)
