"""The example that every command's help ends with."""

from __future__ import annotations

from typing import Any

EXAMPLES = {
    "optimize": "kernels.py:norm --case all --effort quick",
    "check": "kernels.py:norm --case 64x4096",
    "tune": "captured --budget 5m --runner-ups 2",
    "ptxas-options": "suite:softmax --fetch 12.9.86",
    "explain": "suite:softmax --device model",
    "evolve": "examples/evolve/softmax.py --budget 10m",
    "report": "--out report.html",
    "doctor": "--json",
    "suite": "--json",
    "validate": "original.cubin candidate.cubin",
    "audit": "~/.triton/cache",
    "compare": "kernels.py a.cubin b.cubin",
    "verify": "kernels.py:norm",
    "judge": "problem.py solution.py",
    "disasm": "kernel.cubin",
    "mcp": "--root kernels",
    "status": "/tmp/status",
    "capture": "-o captured -- python serve.py",
    "run": "--status /tmp/status -- python serve.py --port 8000",
    "version": "",
    "store list": "--json",
    "store show": "3 --jsonl",
    "store export": "tuned.jsonl --winners-only",
    "store import": "tuned.jsonl",
    "store prune": "--older-than 30 --dry-run",
    "store check": "--remove",
    "store tuned": "kernel.cubin --gpu 'NVIDIA H200' -o tuned.cubin",
    "latency mine": "a.cubin b.cubin --out table.json",
    "latency show": "--kind raw",
    "gemm bench": "--grid 64x4096x4096 --dry-run",
    "gemm configs": "64x4096x4096",
    "gemm build": "--workers 8",
    "gemm choose": "64x4096x4096",
    "llm corpus": "kernels docs --licences MIT,Apache-2.0 --out corpus.jsonl",
    "llm train": "train.yaml --resume",
}


def add(app: Any, before: str = "") -> None:
    """Give each command of a Typer application, and of those below it, its example."""
    for info in app.registered_commands:
        name = before + str(info.name or info.callback.__name__)
        info.epilog = f"Example: sassafras {name} {EXAMPLES[name]}".rstrip()
    for group in app.registered_groups:
        add(group.typer_instance, f"{before}{group.name} ")
