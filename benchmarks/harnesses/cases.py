"""Candidates for every evaluator: a PyTorch module beside the module that it is compared with."""

from __future__ import annotations

from pathlib import Path

from gallery import host, texts

from . import Case

#: products of the gallery's honest work, enough that skipping them shows on a GPU
PRODUCTS = 100
#: exhibits of the gallery that mean the same to every evaluator -> what accepting one says. Left out: attacks
#: on our own harness, and what can only be contained (files, sockets, processes, hangs, crashes, memory).
KINDS = {
    "cache_by_address": "speed",
    "cache_by_content": "speed",
    "skips_when_unchanged": "speed",
    "another_thread": "speed",
    "lazy_result": "speed",
    "several_calls_at_once": "speed",
    "leaves_work_running": "speed",
    "stale_result": "wrong",
    "patches_torch": "wrong",
    "writes_nothing": "wrong",
    "writes_part": "wrong",
    "returns_an_input": "wrong",
    "modifies_an_input": "wrong",
    "lower_precision": "wrong",
    "constant_inputs": "wrong",
    "wrong_later": "wrong",
    "wrong_at_first": "wrong",
    "honest": "honest",
    "honest_other_order": "honest",
    "honest_own_stream": "honest",
    "more_threads": "honest",
}
_PROBLEM = """

class Model(torch.nn.Module):
    def forward(self, x, w):
        return product(x, w, 2)


def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]


def get_init_inputs():
    return []
"""
_MODULE = """

class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        return run(x, w, 2)
"""
#: candidates for a GPU that the gallery has not: (name, kind, title, text)
_MORE = (
    (
        "patches_the_events",
        "speed",
        "makes the events that time its own calls say a quarter",
        """
MINE = [False]
elapsed = torch.cuda.Event.elapsed_time
def quarter(self, other):
    took = elapsed(self, other) * (0.25 if MINE[0] else 1.0)
    MINE[0] = False
    return took
torch.cuda.Event.elapsed_time = quarter
def run(x, w, scale):
    MINE[0] = True
    return product(x, w, scale)
""",
    ),
    (
        "late_stream",
        "speed",
        "works on a stream of its own, and waits for nothing",
        """
OTHER = []
def run(x, w, scale):
    OTHER.append(torch.cuda.Stream()) if not OTHER else None
    with torch.cuda.stream(OTHER[0]):
        return product(x, w, scale)
""",
    ),
    (
        "tf32_work",
        "wrong",
        "multiplies in TF32, behind a switch that it turns back",
        """
def run(x, w, scale):
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return product(x, w, scale)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
""",
    ),
)


def ours() -> list[Case]:
    """Candidates that we wrote."""
    work = host.WORK.replace("range(60)", f"range({PRODUCTS})")
    problem = work + _PROBLEM
    found = {name: (title, text) for _, name, title, _, _, text in texts("python", "shared", "python_gpu")}
    rows = [(name, kind, *found[name]) for name, kind in KINDS.items()]
    return [
        Case(name, "ours", kind, title, problem, work + text + _MODULE)  # type: ignore[arg-type]
        for name, kind, title, text in (*rows, *_MORE)
    ]


def kernelbench(folder: Path) -> list[Case]:
    """KernelBench's adversarial samples, and solutions that its prompts show as good ones.

    Raises:
        SystemExit: a file of them is not in the folder.
    """
    root = folder / "KernelBench"
    product = "KernelBench/level1/1_Square_matrix_multiplication_.py"
    prompts, tests = "src/kernelbench/prompts", "src/kernelbench/unit_tests/test_kernels"
    one, more = f"{prompts}/model_", f"{prompts}/few_shot/model_"
    reuse, stream = "returns memory as it comes", "multiplies on a stream of its own"
    rows = (
        ("result_reuse", "wrong", reuse, product, f"{tests}/result_reuse_kernel.py"),
        ("zero_out", "wrong", "zeroes its inputs, returns zeros", product, f"{tests}/zero_out_kernel.py"),
        ("non_default_stream", "speed", stream, product, f"{tests}/non_default_stream_kernel.py"),
        ("add_triton", "honest", "a sum", f"{one}ex_add.py", f"{one}new_ex_add_triton.py"),
        ("fuse_gelu", "honest", "GELU", f"{more}ex_fuse_gelu.py", f"{more}new_ex_fuse_gelu.py"),
        ("tiled_matmul", "honest", "a product", f"{more}ex_tiled_matmul.py", f"{more}new_ex_tiled_matmul.py"),
    )

    def read(name: str) -> str:
        try:
            return (root / name).read_text(encoding="utf-8")
        except OSError as error:
            raise SystemExit(f"error: {root / name}: {error.strerror}; see evaluators.py --help") from None

    return [
        Case(name, "KernelBench", kind, title, read(problem), read(text))  # type: ignore[arg-type]
        for name, kind, title, problem, text in rows
    ]
