"""Problems in a folder as a taskset of verifiers 0.4."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import verifiers.v1 as vf

from sassafras import Judge

judge_of = cache(Judge)


class KernelData(vf.TaskData):
    """A task's problem, by its file."""

    problem: str


class KernelTask(vf.Task[KernelData]):
    """Write a faster `ModelNew`."""

    @vf.reward
    async def judged(self, trace: vf.Trace) -> float:
        """0 for what is not correct, 1 for what is, and more for a gain beyond the A/A control."""
        return await asyncio.to_thread(judge_of(self.data.problem).reward, trace.last_reply)


class KernelsConfig(vf.TasksetConfig):
    """Where the problems are."""

    folder: Path = Path("problems")


class Kernels(vf.Taskset[KernelTask, KernelsConfig]):
    """A task for each KernelBench problem in a folder."""

    def load(self) -> Iterator[KernelTask]:
        """The tasks, by name."""
        for path in sorted(self.config.folder.glob("*.py")):
            prompt = f"Write a faster `ModelNew` for this `Model`, in one code block:\n\n{path.read_text()}"
            yield KernelTask(KernelData(name=path.stem, prompt=prompt, problem=str(path)), self.config.task)


__all__ = ["Kernels"]
