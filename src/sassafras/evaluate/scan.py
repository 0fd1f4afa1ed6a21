"""What can be told from a candidate's text and from its binary alone, before anything of it runs.

A scan is no proof of innocence: a determined author hides from any text search. It refuses the obvious early,
with a reason that a language model can learn from; confinement and the device's checks are what holds. CUDA
C++ is read as the preprocessor reads it (see `phases`).
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from elftools.elf.elffile import ELFFile

from sassafras.core import CubinError, Verdict

from .phases import directives, readings

#: headers that device code needs and that declare nothing which reaches beyond the kernel
HEADERS = frozenset({
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h", "cooperative_groups.h",
    "cuda_pipeline.h", "cuda_awbarrier.h", "stdint.h", "cstdint", "cuda_runtime.h", "cuda.h", "math.h",
    "cmath", "limits", "climits", "float.h", "cfloat", "type_traits", "utility", "algorithm", "stddef.h",
    "cstddef", "vector_types.h", "vector_functions.h", "math_constants.h", "sm_61_intrinsics.h",
    "curand_kernel.h", "crt/mma.h",
})  # fmt: skip
_HEADER_TREES = ("cooperative_groups/", "cuda/", "cub/", "cute/", "cutlass/")

#: all directives of a kernel; not line, which would give the compiler's messages to another file
_DIRECTIVES = frozenset({
    "", "define", "undef", "if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif", "pragma",
    "error", "warning",
})  # fmt: skip
_READING_DIRECTIVES = frozenset({"embed", "import", "include_next", "include_alias"})

#: (what a candidate must not do, pattern in CUDA C++); the first match is the reason
_CUDA_PATTERNS: tuple[tuple[str, str], ...] = (
    ("calls a library that it is compared with", r"\b(cublas|cudnn|cusparse|cusolver|cufft|cutensor)\w*"),
    ("launches kernels of its own (dynamic parallelism)", r"<<<|\bcudaLaunch\w*|\bcuLaunch\w*"),
    ("uses streams or events", r"\b(cuda|cu)(Stream|Event)\w*"),
    ("uses CUDA graphs", r"\b(cuda|cu)Graph\w*"),
    (
        "changes device-wide limits or caches",
        r"\b(cuda|cu)(Device|Ctx|Func)(Set|Reset)\w*|\bcudaLimit\w*|\bcu(da)?AccessPolicy\w*"
        r"|\bcudaCtxResetPersistingL2Cache\b|\bcu(da)?Profiler\w*",
    ),
    (
        "manages memory on the host",
        r"\b(cuda|cu)(Malloc|Free|Mem|Host|Pool)\w*|\b(cuda|cu)(Import|Export|Ipc)\w*",
    ),
    (
        "loads or compiles code at run time",
        r"\b(nvrtc|nvJitLink|cuModule|cuLibrary|cuLink)\w*|\bdl(open|sym)\b",
    ),
    (
        "reads or writes files",
        r"\b(fopen|freopen|open|creat|ifstream|ofstream|fstream|mmap)\s*[(<]|\.incbin\b",
    ),
    (
        "starts programs or threads of the host",
        r"\b(system|popen|fork|vfork|exec[lv]p?e?|posix_spawn|pthread_create)\s*\(|std::(thread|async|jthread)",
    ),
    ("opens sockets", r"\b(socket|connect|getaddrinfo|gethostbyname)\s*\("),
    ("reads the environment", r"\b(getenv|setenv|putenv)\s*\("),
)
_CUDA = tuple((why, re.compile(pattern)) for why, pattern in _CUDA_PATTERNS)

#: modules that Triton source may import
TRITON_MODULES = frozenset(
    {"triton", "math", "typing", "__future__", "functools", "itertools", "dataclasses"}
)
#: modules that a Python host candidate may import besides
PYTHON_MODULES = TRITON_MODULES | {"torch", "numpy", "collections", "operator", "contextlib", "enum"}
_BUILTINS = frozenset({
    "eval", "exec", "compile", "open", "input", "__import__", "globals", "locals", "vars", "breakpoint",
    "setattr", "delattr", "memoryview",
})  # fmt: skip
_ATTRIBUTES: tuple[tuple[str, str], ...] = (
    ("reaches into Python's internals", r"__(subclasses|bases|mro|globals|code|closure|builtins|dict|reduce|"
     r"loader|spec|class|import|getattribute|self)\w*__"),
    ("uses streams or events", r"(Stream|stream|ExternalStream|current_stream|set_stream|Event)"),
    ("uses CUDA graphs", r"(CUDAGraph|graph|make_graphed_callables|graph_pool_handle)"),
    ("calls a library that it is compared with", r"(matmul|mm|bmm|addmm|addbmm|baddbmm|einsum|linear|"
     r"scaled_dot_product_attention|conv[123]d|cublas\w*|cudnn\w*|_scaled_mm|tensordot)"),
    ("changes device-wide limits or state", r"(set_per_process_memory_fraction|cudaDeviceSetLimit|set_device|"
     r"set_default_device|set_default_dtype|set_float32_matmul_precision|allow_tf32|set_num_threads|"
     r"use_deterministic_algorithms|cudart)"),
    ("starts processes or threads", r"(Thread|Process|Pool|Popen|fork|spawn|system)"),
    ("loads code or files", r"(load_library|load_inline|cpp_extension|load|save|from_file|hub|ctypes|"
     r"classes|ops|_C)"),
)  # fmt: skip
#: of a source
_MOST_BYTES = 1 << 20
_NAMES = tuple((why, re.compile(f"^(?:{pattern})$")) for why, pattern in _ATTRIBUTES)
#: modules whose attributes a candidate must not replace, and what a PyTorch program sets in them
_PATCHED = frozenset({"torch", "triton", "tl", "time", "numpy", "np"})
_SETTINGS = ("torch.backends.", "torch._inductor.config.", "torch._dynamo.config.", "triton.knobs.")
#: opcodes that accumulate in FP16, and packed-half reductions
_NARROW = re.compile(r"^(HMMA\.\d+\.F16$|HMMA\.\d+\.F16\.|HGMMA\S*\.F16$|HGMMA\.\w+\.F16(\.|$))")
_PACKED = re.compile(r"^(RED|ATOMG?|REDG?)\S*\.(F16x2|F16|BF16|BF16x2)(_V\d)?[.\w]*")


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """Why a candidate is refused.

    Attributes:
        verdict: `cheated`, `unsupported` or `compile_error`.
        reason: one sentence, for humans and language models.
        where: line of the source, or symbol of the binary.
    """

    verdict: Verdict
    reason: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.where})" if self.where else self.reason


@dataclass(frozen=True, slots=True)
class Binary:
    """What a cubin's tables say.

    Attributes:
        entries: kernels in it.
        undefined: symbols that it expects from elsewhere.
        state_bytes: bytes of writable global variables: memory that survives from launch to launch.
        narrow: FP16-accumulating matrix instructions and packed-half reductions, by opcode.
    """

    entries: tuple[str, ...]
    undefined: tuple[str, ...]
    state_bytes: int
    narrow: Mapping[str, int] = field(default_factory=dict)


def scan_cuda(text: str) -> ScanFinding | None:
    """The first thing in CUDA C++ that a candidate kernel must not have, or None."""
    if len(text) > _MOST_BYTES:
        return ScanFinding(Verdict.UNSUPPORTED, f"the source is longer than {_MOST_BYTES} bytes")
    if "\0" in text:
        return ScanFinding(Verdict.COMPILE_ERROR, "the source holds a NUL byte")
    for code in readings(text):
        if finding := _judge_directives(text, code) or _judge_patterns(text, code):
            return finding
    return None


def _judge_directives(text: str, code: str) -> ScanFinding | None:
    for name, line in directives(code):
        if name in _READING_DIRECTIVES:
            return ScanFinding(Verdict.CHEATED, f"reads or writes files: {line[:80]!r}", _line(text, name))
        if name != "include":
            if name not in _DIRECTIVES:
                return ScanFinding(
                    Verdict.UNSUPPORTED, f"the directive #{name} is not allowed", _line(text, name)
                )
            continue
        found = re.fullmatch(r"(?:#|%:)\s*include\s*[<\"]([\w./+-]+)[>\"]\s*", line)
        header = found[1] if found else line
        allowed = (
            found is not None
            and ".." not in header
            and (header in HEADERS or header.startswith(_HEADER_TREES))
        )
        if not allowed:
            sly = header.startswith("/") or ".." in header or '"/' in header or header.startswith("cublas")
            return ScanFinding(
                Verdict.CHEATED if sly else Verdict.UNSUPPORTED,
                f"includes {header!r}, which device code has no need of",
                _line(text, header),
            )
    return None


def _judge_patterns(text: str, code: str) -> ScanFinding | None:
    for why, pattern in _CUDA:
        if match := pattern.search(code):
            return ScanFinding(Verdict.CHEATED, f"{why}: {match[0].strip()!r}", _line(text, match[0]))
    return None


def scan_python(text: str, language: str = "triton") -> ScanFinding | None:
    """The first thing in Triton or Python source that a candidate must not have, or None.

    Args:
        language: ``triton``, ``python``, or ``module``: a whole PyTorch program, which may import, build and
            call anything; only patches of what measures or compares are refused by their text.
    """
    if len(text) > _MOST_BYTES:
        return ScanFinding(Verdict.UNSUPPORTED, f"the source is longer than {_MOST_BYTES} bytes")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ScanFinding(Verdict.COMPILE_ERROR, f"Python cannot read it: {error}")
    modules = TRITON_MODULES if language == "triton" else PYTHON_MODULES
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', '?')}"
        if language == "module" and not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names: list[str | None] = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [None if node.level else node.module]
            for name in names:
                if name is None or name.split(".")[0] not in modules:
                    return ScanFinding(Verdict.CHEATED, f"imports {name or 'a relative module'!r}", where)
            for alias in node.names:
                if finding := _judge_name(alias.name.split(".")[-1], language, where):
                    return finding
        elif isinstance(node, ast.Name) and (node.id in _BUILTINS or node.id.startswith("__")):
            if node.id != "__name__":
                return ScanFinding(Verdict.CHEATED, f"uses {node.id!r}", where)
        elif isinstance(node, ast.Attribute):
            if finding := _judge_name(node.attr, language, where):
                return finding
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name | ast.Attribute):
                    root = target.value
                    while isinstance(root, ast.Attribute):
                        root = root.value  # type: ignore[assignment]
                    setting = language == "module" and ast.unparse(target).startswith(_SETTINGS)
                    if isinstance(root, ast.Name) and root.id in _PATCHED and not setting:
                        return ScanFinding(Verdict.CHEATED, f"patches {ast.unparse(target)}", where)
        elif isinstance(node, ast.Global | ast.Nonlocal) and language == "python":
            return ScanFinding(Verdict.CHEATED, "keeps state from call to call (global variables)", where)
    return None


def _judge_name(name: str, language: str, where: str) -> ScanFinding | None:
    for why, pattern in _NAMES:
        if pattern.match(name) and not (language == "triton" and name == "load"):
            return ScanFinding(Verdict.CHEATED, f"{why}: {name!r}", where)
    return None


def scan_cubin(
    cubin: bytes, entry: str, *, fp32_accumulation: bool = False
) -> tuple[ScanFinding | None, Binary]:
    """The first thing in a built cubin that a candidate must not have (or None), and what was read.

    Args:
        cubin: the file.
        entry: the kernel that will be launched.
        fp32_accumulation: the workload demands it: no FP16 accumulator, no packed-half reduction.

    Raises:
        CubinError: not a cubin.
    """
    from sassafras.sass.cubin import Cubin

    parsed = Cubin.parse(cubin)
    try:
        table = ELFFile(io.BytesIO(cubin)).get_section_by_name(".symtab")
        undefined = tuple(
            sorted(
                symbol.name
                for symbol in (table.iter_symbols() if table else ())
                if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name and not symbol.name.startswith(".nv.")
            )
        )
    except Exception as error:  # pyelftools raises many types on malformed tables
        raise CubinError(f"malformed symbol table: {error}", where=".symtab") from error
    state = sum(s.size for s in parsed.sections if re.match(r"\.nv\.global(\.init)?(\.|$)", s.name))
    narrow = _narrow_opcodes(cubin, entry) if fp32_accumulation and entry in parsed.entries else {}
    binary = Binary(tuple(parsed.entries), undefined, state, narrow)
    if entry not in parsed.entries:
        found = ", ".join(parsed.entries)
        return ScanFinding(Verdict.COMPILE_ERROR, f"there is no kernel {entry!r}; it defines {found}"), binary
    for name in undefined:
        if re.match(
            r"cuda(Launch|GetParameterBuffer|Graph|Stream|Event|Device|Malloc|Memcpy)|cnp|cublas", name
        ):
            why = "launches work of its own (dynamic parallelism)"
            return ScanFinding(Verdict.CHEATED, why, f"symbol {name}"), binary
    if narrow:
        why = "precision downgrade: the workload demands FP32 accumulation"
        return ScanFinding(Verdict.CHEATED, why, ", ".join(f"{n} x {op}" for op, n in narrow.items())), binary
    return None, binary


def _narrow_opcodes(cubin: bytes, entry: str) -> dict[str, int]:
    from sassafras.sass import Program

    counts: dict[str, int] = {}
    for instruction in Program.parse(cubin).function(entry).instructions:
        if is_narrow(instruction.opcode):
            counts[instruction.opcode] = counts.get(instruction.opcode, 0) + 1
    return counts


def is_narrow(opcode: str) -> bool:
    """True for matrix instructions that accumulate in FP16 and for packed-half reductions."""
    return bool(_NARROW.match(opcode) or _PACKED.match(opcode))


def _line(text: str, word: str) -> str:
    at = text.find(word.strip())
    return f"line {text.count(chr(10), 0, at) + 1}" if at >= 0 else ""
