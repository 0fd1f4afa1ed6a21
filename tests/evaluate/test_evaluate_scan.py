"""Scans of source text and of built binaries."""

from __future__ import annotations

import pytest

from sassafras.core import Verdict
from sassafras.evaluate.scan import is_narrow, scan_cubin, scan_cuda, scan_python
from tests.kernels import matmul_cubin, softmax_cubin

KERNEL = (
    'extern "C" __global__ void k(float* y, const float* x, int n) { y[threadIdx.x] = x[threadIdx.x]; }\n'
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#include <cublas_v2.h>\n", "cublas_v2.h"),
        ('#include "/etc/passwd"\n', "/etc/passwd"),
        ('#include "../../secret.h"\n', "secret.h"),
        ('#in\\\nclude "/etc/passwd"\n', "/etc/passwd"),
        ("void host() { cublasHgemm(0); }\n", "library"),
        ("__global__ void p() { k<<<1, 1>>>(0, 0, 0); }\n", "dynamic parallelism"),
        ("void f() { cudaStreamCreate(0); }\n", "streams"),
        ("void f() { cudaGraphLaunch(0, 0); }\n", "graphs"),
        ("void f() { cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1); }\n", "limits"),
        ("void f() { cuCtxSetLimit(0, 1); }\n", "limits"),
        ("void f() { FILE* f = fopen(\"/etc/passwd\", \"r\"); }\n", "files"),
        ("void f() { system(\"id\"); }\n", "programs"),
        ("#embed \"/etc/passwd\"\n", "files"),
        ("void f() { socket(1, 2, 3); }\n", "sockets"),
        # what a look at the text as it is written does not see
        ('#inc\\ \t \nlude "/etc/passwd"\n', "/etc/passwd"),
        ('#inc\\\r\nlude "/etc/passwd"\n', "/etc/passwd"),
        ('#inc\\ \r\nlude "/etc/passwd"\n', "/etc/passwd"),
        ('%:include "/etc/passwd"\n', "/etc/passwd"),
        ('??=include "/etc/passwd"\n', "/etc/passwd"),
        ('/* */ # /* */ include "/etc/passwd"\n', "/etc/passwd"),
        ('const char* a = R"(" /* )"; // \n#include "/etc/passwd"\n// */\n', "/etc/passwd"),
        ('const char* a = R"x( )" // )x";\n#include "/etc/passwd"\n', "/etc/passwd"),
        ('const char* a = u8R"(\\)"; void f() { system("id"); } //"', "programs"),
        ("const char* a = R\"(\\\n)\";\n#include \"/etc/passwd\"\n", "/etc/passwd"),
        ("char a = '\"'; // \"\n#include \"/etc/passwd\"\n", "/etc/passwd"),
        ("int a = 1'000; /* ' */\n#include \"/etc/passwd\"\n", "/etc/passwd"),
        ("int a = 1'0; // '\nvoid f() { system(\"id\"); }\n", "programs"),
        ("// a comment that goes on \\\n, and ends\nvoid f() { sys\\\ntem(\"id\"); }\n", "programs"),
        ("// comment \\ \nvoid f() { system(\"id\"); }\n", "programs"),
        ("#include_next \"secret.h\"\n", "files"),
        ("#import \"secret.h\"\n", "files"),
        ("#define F \"/etc/passwd\"\n#include F\n", "#include F"),
    ],
)  # fmt: skip
def test_cuda_source_that_reaches_beyond_the_kernel_is_refused(text: str, reason: str) -> None:
    finding = scan_cuda(text + KERNEL)
    assert finding is not None
    assert finding.verdict is (Verdict.UNSUPPORTED if reason == "#include F" else Verdict.CHEATED)
    assert reason in str(finding)


@pytest.mark.parametrize(
    "line", ['#line 1 "other.cu"', "#ident 5", "#pragma once\n#assert x", '# 1 "other.cu"']
)
def test_a_directive_that_is_not_on_the_list_is_refused(line: str) -> None:
    finding = scan_cuda(f"{line}\n{KERNEL}")
    assert finding is not None
    assert finding.verdict is Verdict.UNSUPPORTED
    assert "is not allowed" in str(finding)


@pytest.mark.parametrize(
    "text",
    [
        'const char* a = R"(\n#include "/etc/passwd"\n)";\n',
        "int a = 1'000'000; float b = .5e-3f; char c = '\\'';\n",
        "#pragma unroll\n#if defined(A) && 1\n#elif 0\n#else\n#endif\n#\n",
        '// ends with a backslash \\\n system("id"); is still the comment\n',
        "#define ADD(a, b) \\\n  ((a) + (b))\n",
        "",
        "#include <cuda_fp16.h>\n#include <mma.h>\n#include <cooperative_groups.h>\n",
        '// cublas does this with <<<grid>>> on a cudaStream_t\n/* system("id") */\n',
        "#include <cuda/barrier>\n__shared__ float tile[1024];\n",
        '__device__ void f() { asm volatile("cp.async.commit_group;"); printf("%d", 1); }\n',
    ],
)
def test_ordinary_device_code_passes(text: str) -> None:
    assert scan_cuda(text + KERNEL) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os\n", "imports 'os'"),
        ("import subprocess as s\n", "imports"),
        ("from . import x\n", "relative"),
        ("__import__('os')\n", "__import__"),
        ("eval('1')\n", "eval"),
        ("open('/etc/passwd')\n", "open"),
        ("().__class__.__bases__\n", "internals"),
        ("import triton\ntriton.jit = None\n", "patches triton.jit"),
        ("x = (1).__reduce__\n", "internals"),
    ],
)
def test_triton_source_that_reaches_beyond_the_kernel_is_refused(text: str, reason: str) -> None:
    finding = scan_python(text)
    assert finding is not None
    assert finding.verdict is Verdict.CHEATED
    assert reason in str(finding)


def test_unreadable_python_is_a_compile_error() -> None:
    finding = scan_python("def f(:\n")
    assert finding is not None
    assert finding.verdict is Verdict.COMPILE_ERROR


def test_an_ordinary_triton_module_passes() -> None:
    text = (
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef k(x, y, n, B: tl.constexpr):\n"
        "    o = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(y + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)\n"
        "    tl.dot(x, y)\n"
    )
    assert scan_python(text) is None


def test_honest_binaries_pass_and_their_tables_are_read() -> None:
    finding, binary = scan_cubin(softmax_cubin(), "softmax", fp32_accumulation=True)
    assert finding is None
    assert binary.entries == ("softmax",)
    assert not binary.undefined
    assert binary.state_bytes == 0
    finding, binary = scan_cubin(matmul_cubin(), "matmul", fp32_accumulation=True)
    assert finding is None
    assert not binary.narrow


def test_another_entry_is_a_compile_error() -> None:
    finding, _ = scan_cubin(softmax_cubin(), "other")
    assert finding is not None
    assert finding.verdict is Verdict.COMPILE_ERROR
    assert "softmax" in str(finding)


@pytest.mark.parametrize(
    ("opcode", "narrow"),
    [
        ("HMMA.16816.F16", True),
        ("HMMA.16816.F32", False),
        ("HMMA.16816.F32.BF16", False),
        ("HGMMA.64x128x16.F16", True),
        ("HGMMA.64x128x16.F32", False),
        ("HGMMA.64x128x16.F32.BF16", False),
        ("RED.E.ADD.F16x2.RN.STRONG.GPU", True),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", False),
        ("HFMA2", False),
    ],
)
def test_narrow_accumulation_is_told_from_the_opcode(opcode: str, narrow: bool) -> None:
    assert is_narrow(opcode) is narrow
