"""One kernel through every door: the same verdict, and on a GPU overlapping intervals; printed with -s.

Doors are Python, the command line, MCP over stdio and HTTP, a reward of TRL and one of verifiers; at some the
kernel is a KernelBench module, at others a flashinfer-bench Solution. Each door has a store of its own, in
which the outcome lies.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from sassafras import Judge
from sassafras.core import Evaluation, Verdict
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples" / "judge"
#: far more work than there is to copy, so that the wall time's ratio is the GPU's
REFERENCE = """import torch


def run(x, y):
    d = x[:, None, :] - y[None, :, :]
    for _ in range(4):
        d = torch.exp(-torch.sqrt(torch.abs(d)))
    return x[:, 0] * d.mean(dim=(1, 2))
"""
TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(out, x, y, rows, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    mine = tl.load(x + tl.program_id(0) * WIDTH + at)
    total = tl.zeros([WIDTH], tl.float32)
    for row in range(rows):
        d = mine - tl.load(y + row * WIDTH + at)
        for _ in tl.static_range(4):
            d = tl.exp(-tl.sqrt(tl.abs(d)))
        total += d
    scale = tl.load(x + tl.program_id(0) * WIDTH) / (rows * WIDTH)
    tl.store(out + tl.program_id(0), tl.sum(total, 0) * scale)


def compute(x, y):
    out = torch.empty_like(x[:, 0])
    kernel[(x.shape[0],)](out, x, y, y.shape[0], WIDTH=x.shape[1])
    return out
"""
IN_PLACE = """import torch


def compute(x, y):
    d = x[:, None, :] - y[None, :, :]
    for _ in range(4):
        d.abs_().sqrt_().neg_().exp_()
    return x[:, 0] * d.mean(dim=(1, 2))
"""
HONEST = "\n\ndef run(x, y):\n    return compute(x, y)\n"
#: after some calls it answers with the result of the one before
CHEAT = """

KEPT = []


def run(x, y):
    KEPT.append(compute(x, y))
    return KEPT[-1] if len(KEPT) < 4 else KEPT[-2]
"""
MODULE = """

class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        return run(x, y)
"""
VERDICTS = {"honest": Verdict.CORRECT, "cheat": Verdict.CHEATED}
#: by which intervals may miss one another: processes differ in more than a process' rounds do
SLACK = 1.05


@dataclass(frozen=True)
class Task:
    """Files of the problem and of the kernels in both formats.

    Attributes:
        folder: where they lie.
        device: where kernels run.
    """

    folder: Path
    device: str

    def write(self) -> Task:
        """The files; returned as it is."""
        gpu = self.device == "cuda"
        rows, columns = (2048, 128) if gpu else (64, 64)
        made = f"[torch.rand({rows}, {columns}), torch.randn({rows}, {columns})]"
        inputs = f"\n\ndef get_inputs():\n    return {made}\n\n\ndef get_init_inputs():\n    return []\n"
        model = MODULE.replace("ModelNew", "Model")
        (self.folder / "problem.py").write_text(REFERENCE + model + inputs)
        axes = {name: {"type": "const", "value": n} for name, n in (("rows", rows), ("columns", columns))}
        tensor = {"shape": ["rows", "columns"], "dtype": "float32"}
        definition = {"name": "problem", "op_type": "distance", "axes": axes, "reference": REFERENCE}
        definition |= {"inputs": {"x": tensor, "y": tensor}, "outputs": {"z": {**tensor, "shape": ["rows"]}}}
        (self.folder / "definition.json").write_text(json.dumps(definition))
        for name, run in (("honest", HONEST), ("cheat", CHEAT)):
            text = (TRITON if gpu else IN_PLACE) + run
            (self.folder / f"{name}.py").write_text(text + MODULE)
            spec = {"language": "triton" if gpu else "python", "target_hardware": ["any"]}
            spec |= {"entry_point": "main.py::run", "destination_passing_style": False}
            solution = {"name": name, "definition": "problem", "author": "test", "spec": spec}
            solution["sources"] = [{"path": "main.py", "content": text}]
            (self.folder / f"{name}.json").write_text(json.dumps(solution))
        return self

    def module(self, kernel: str) -> str:
        """A kernel as a KernelBench module."""
        return (self.folder / f"{kernel}.py").read_text()

    def judge(self, store: Path) -> Judge:
        """Of the KernelBench problem."""
        return Judge(self.folder / "problem.py", device=self.device, call_s=60.0, store=store)


#: what a door says: its ``verdict``, or the ``reward`` alone
Said = dict[str, Any]


def by_python(task: Task, kernel: str, store: Path) -> Said:
    with task.judge(store) as judge:
        return judge(task.folder / f"{kernel}.py").to_json()


def by_command_line(task: Task, kernel: str, store: Path) -> Said:
    words = [
        "judge",
        "definition.json",
        f"{kernel}.json",
        "--device",
        task.device,
        "--store",
        store,
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "sassafras", *words, "--call-seconds", "60"],
        cwd=task.folder, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if VERDICTS[kernel].ok else 1), done.stderr
    return dict(json.loads(done.stdout)[0])


def by_mcp_stdio(task: Task, kernel: str, store: Path) -> Said:
    pytest.importorskip("mcp.server.mcpserver", reason="needs the extra mcp")
    from tests.mcp_server.serving import over_stdio

    async def main() -> Said:
        async with over_stdio(task.folder, "--store", str(store)) as client:
            given = {"problem": "problem.py", "solution": task.module(kernel), "device": task.device}
            return _answer(await client.call_tool("judge", given))

    return asyncio.run(main())


def by_mcp_http(task: Task, kernel: str, store: Path) -> Said:
    mcp = pytest.importorskip("mcp")
    from tests.mcp_server.serving import over_http

    async def main(port: int) -> Said:
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
            given = {"problem": "definition.json", "file": f"{kernel}.json", "device": task.device}
            return _answer(await client.call_tool("judge", given))

    with over_http(task.folder, "--store", str(store)) as (port, _):
        return asyncio.run(main(port))


def _answer(answer: Any) -> Said:
    assert not answer.is_error, answer.content[0].text
    (theirs,) = answer.structured_content["theirs"]
    assert "sassafras" in theirs.get("metadata", {}) or theirs["evaluation"]["log"].startswith("sassafras: ")
    return dict(answer.structured_content)


def by_trl(task: Task, kernel: str, store: Path) -> Said:
    """The trainer's own generations: a model whose every answer is the kernel."""
    pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    answer = f"```python\n{task.module(kernel)}```"
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "write": 2, answer: 3}, unk_token="<pad>"))
    words.add_tokens([AddedToken(answer, normalized=False)])
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, **size))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(float("norm" in name or "embed" in name))
        model.lm_head.weight[3] = 4.0
    problem = str(task.folder / "problem.py")
    rows = Dataset.from_list([{"prompt": "write", "problem": problem}] * 2)
    settings = GRPOConfig(
        str(task.folder / "trl"), max_steps=1, per_device_train_batch_size=2, num_generations=2, use_cpu=True,
        max_completion_length=1, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
        mask_truncated_completions=False,
    )  # fmt: skip
    with _example("trl_reward", task, store) as module:
        trainer = GRPOTrainer(
            model, reward_funcs=module.reward, args=settings, train_dataset=rows, processing_class=tokens
        )
        trainer.train()
    return {"reward": trainer.state.log_history[0]["rewards/reward/mean"]}


def by_verifiers(task: Task, kernel: str, store: Path) -> Said:
    vf = pytest.importorskip("verifiers.v1")
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, TraceTask
    from verifiers.v1.types import AssistantMessage

    folder = task.folder / "verifiers"
    folder.mkdir(exist_ok=True)
    (folder / "problem.py").write_text((task.folder / "problem.py").read_text())
    message = AssistantMessage(content=f"<think>hm</think>\n\n```python\n{task.module(kernel)}```\n")
    with _example("verifiers_taskset", task, store) as module:
        (given,) = module.Kernels(module.KernelsConfig(folder=folder))
        trace = vf.Trace(
            task=TraceTask(type="KernelTask", data=given.data),
            agent=AgentInfo(config=vf.AgentConfig()),
            nodes=[MessageNode(message=message, sampled=True)],
        )
        asyncio.run(given.score(trace))
    return {"reward": trace.reward}


class _example:
    """An example's names while it is entered; its judge is the task's, with the store of its door."""

    def __init__(self, name: str, task: Task, store: Path) -> None:
        self._name, self._judge, self._patch = name, task.judge(store), pytest.MonkeyPatch()

    def __enter__(self) -> Any:
        self._patch.syspath_prepend(str(EXAMPLES))
        module = __import__(self._name)
        self._patch.setattr(module, "judge_of", lambda path: self._judge)
        self._patch.delitem(sys.modules, self._name)
        return module

    def __exit__(self, *exception: object) -> None:
        self._patch.undo()
        self._judge.close()


DOORS: dict[str, Callable[[Task, str, Path], Said]] = {
    "command-line": by_command_line,
    "mcp-stdio": by_mcp_stdio,
    "mcp-http": by_mcp_http,
    "trl": by_trl,
    "verifiers": by_verifiers,
}
ON_GPU = [pytest.mark.gpu, pytest.mark.alone]
FENCED = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


class Judged:
    """What came of the kernels, by door; each is judged once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._found: dict[tuple[str, str], tuple[Said, Evaluation]] = {}

    def __call__(self, door: str, kernel: str) -> tuple[Said, Evaluation]:
        """(what the door says, the outcome in its store)."""
        if (door, kernel) not in self._found:
            path = self.task.folder / f"{door}-{kernel}.sqlite"
            said = DOORS.get(door, by_python)(self.task, kernel, path)
            with Store.open(path, readonly=True) as store:
                (run,) = store.runs()
                *_, last = store.evaluations(run.id)
            assert isinstance(last, Evaluation)
            self._found[door, kernel] = said, last
        return self._found[door, kernel]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    yield Judged(Task(tmp_path_factory.mktemp(f"doors-{request.param}"), request.param).write())


@FENCED
@pytest.mark.parametrize("kernel", VERDICTS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_judges_as_python_does(judged: Judged, door: str, kernel: str) -> None:
    on_gpu = judged.task.device == "cuda"
    if not on_gpu and (door, kernel) not in (("mcp-stdio", "honest"), ("mcp-http", "cheat")):
        pytest.skip("on a CPU test_judge.py knocks at this door")
    said, found = judged(door, kernel)
    print(f"{door} {kernel}: {found.verdict} {found.speedup} {found.interval} {found.detail}")
    assert found.verdict is VERDICTS[kernel], found.detail
    assert said.get("verdict", found.verdict) == found.verdict
    assert (said["reward"] > 0) == found.verdict.ok
    if not on_gpu:
        return
    _, wanted = judged("python", kernel)
    print(f"python {kernel}: {wanted.verdict} {wanted.speedup} {wanted.interval} {wanted.detail}")
    assert wanted.verdict is found.verdict, wanted.detail
    if found.verdict.ok:
        assert found.interval is not None and wanted.interval is not None
        assert found.interval.low <= SLACK * wanted.interval.high
        assert wanted.interval.low <= SLACK * found.interval.high
        assert wanted.interval.low > 1.5 and said["reward"] > 1.5
