"""`SourceSpace`: a kernel's source with named holes (or the whole of it), filled by a model or by chance.

It is a `core.Space` like any other, so that every strategy searches it; its random moves are edits of the
same holes from a small grammar (`mutate`), which makes random search the control of a language model.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sassafras.core import (
    Buffer,
    Candidate,
    Case,
    Evaluation,
    Kernel,
    Modelled,
    Outcome,
    SassafrasError,
    Verdict,
    Workload,
)
from sassafras.evaluate.roofline import H100, H200, NOMINAL_MHZ, flops_of, traffic
from sassafras.evaluate.source import Source, SourceEvaluator
from sassafras.frontend.cuda import CudaBuilder
from sassafras.frontend.triton import TritonBuilder

from .answer import NothingChanged, hole_texts, read_answer, whole_source
from .holes import Language, Template
from .mutate import Edit, draw, edits

#: facts of Hopper, from our docs
_NOTES = (
    "- Global loads are fastest when neighbouring threads read neighbouring 16 bytes.\n"
    "- A load takes some 700 cycles from L2: have several in flight before the first use.\n"
    "- A value read once should not displace others from the caches.\n"
)
_NOTES_OF = {
    "cuda": "- float4 loads need 16-byte alignment, which every buffer has at its start.\n"
    "- Warp shuffles are cheaper than shared memory and a barrier for sums of 32 values.\n"
    "- No includes, no host code, no streams, no global variables, no timers.",
    "triton": "- Division is slow: multiply by a reciprocal that was computed once.\n"
    "- tl.exp2 is one instruction; tl.exp is a product and tl.exp2.\n"
    "- tl.load and tl.store take cache_modifier, eviction_policy; tl.range takes num_stages.\n"
    "- Only triton.language; no Python beyond it.",
}


@dataclass(frozen=True, slots=True)
class SourceState:
    """Which text stands where.

    Attributes:
        texts: (hole, text) of the holes that differ from the first variant's, sorted by name.
        parent: digest of the candidate that it was made from.
        origin: what made it: ``baseline``, ``mutation`` or a proposer's name.
        note: the proposer's words on its design.
        builtin: the baseline's kernel, where its source is not among the variants.
    """

    texts: tuple[tuple[str, str], ...] = ()
    parent: str = field(default="", compare=False)
    origin: str = field(default="baseline", compare=False)
    note: str = field(default="", compare=False)
    builtin: bool = False


class SourceSpace:
    """Holes of one workload's source for one case.

    Args:
        workload: from a Triton kernel or CUDA C++; the kernel's source holds the markers (`holes`).
        case: the shape.
        baseline: its compiled kernel.
        judge: a `SourceEvaluator`; it builds, scans, confines, and judges.
        whole: the model may rewrite the whole source instead (no markers needed).
        gpu: name of the GPU whose bandwidth the brief's bound takes; an H200's for one, else an H100's.

    Raises:
        SassafrasError: no source at hand, or no hole in it and `whole` is not set.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        baseline: Kernel,
        judge: SourceEvaluator,
        *,
        whole: bool = False,
        gpu: str = "",
    ) -> None:
        self.workload, self.case, self.baseline, self.judge = workload, case, baseline, judge
        self.language, self.text, self.entry = self._read_source()
        self.whole, self.gpu = whole, gpu
        self.template = (Template.whole if whole else Template.parse)(self.text, self.language)
        if not self.template.holes:
            raise SassafrasError(
                "this kernel's source has no hole to fill",
                where=workload.name,
                hint="mark lines with '# hole: NAME' and '# end hole' (// in CUDA C++), or let the whole "
                "source be rewritten (--whole)",
            )
        #: source -> digest of its candidate
        self._digests = {self.text: baseline.digest}

    def _read_source(self) -> tuple[Language, str, str]:
        return source_of(self.workload)

    # -- core.Space ---------------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        """What makes two of these spaces the same."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return f"{self.language} source {digest}, {'whole' if self.whole else 'holes'}"

    def start(self) -> SourceState:
        """The baseline: nothing is changed."""
        return SourceState()

    def seed(self) -> SourceState:
        """The variant that the first proposals change."""
        return self.start()

    def moves(self, state: SourceState) -> list[Edit]:
        """Every edit that the grammar knows for the present texts."""
        return [edit for name, text in self.texts(state).items() for edit in edits(name, text, self.language)]

    def sample(self, state: SourceState, rng: np.random.Generator) -> Edit | None:
        """One of `moves`; see `mutate.draw`."""
        return draw(self.texts(state), self.language, rng)

    def apply(self, state: SourceState, move: Edit) -> SourceState:
        """The state with one hole edited. Raises AnswerError when the text leaves its hole."""
        texts = dict(self.texts(state))
        texts[move.hole] = move.apply(texts[move.hole])
        return self.state(texts, state, "mutation", move.what)

    def candidate(self, state: SourceState) -> Candidate:
        """The built kernel; where it could not be built, a stand-in that the judge knows (never runs)."""
        if not state.texts:
            return Candidate(self.baseline, {"origin": "baseline"})
        source = self._source(state)
        made = self.judge.candidate(source)
        self._digests[source.text] = made.digest
        if made.recipe.get("not_built"):
            return made
        why = _broken_launch(made.kernel, self.baseline)
        recipe = {**made.recipe, "refused": why} if why else made.recipe
        shared, meta = self.baseline.shared_bytes, self.baseline.meta
        return Candidate(replace(made.kernel, shared_bytes=shared, meta=meta), recipe)

    def prepare(self, states: Sequence[SourceState]) -> None:
        """Build several states at once; `candidate` then finds them built."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            list(threads.map(lambda state: self.judge.build(self._source(state)), states))

    def evaluate(self, candidate: Candidate) -> Outcome:
        """`core.Evaluator` for this space's candidates: the judge's verdict on their source.

        Raises:
            DeviceError, StoreError, NotSafe: not the candidate's fault.
        """
        if candidate.recipe.get("not_built"):
            return self.judge.evaluate(Source(**candidate.recipe["source"]))
        if why := candidate.recipe.get("refused"):
            kind = Modelled if self.judge.inner.device.modelled else Evaluation
            refused = kind(candidate.digest, Verdict.UNSUPPORTED, detail=why)
            return self.judge.inner.settle(candidate, refused)
        return self.judge.inner.evaluate(candidate)

    # -- texts --------------------------------------------------------------------------------------------

    def texts(self, state: SourceState) -> dict[str, str]:
        """Hole -> text, all of them; a rewritten source is one hole called ``source``."""
        return {**self.template.texts(), **dict(state.texts)}

    def source(self, state: SourceState) -> str:
        """The whole source text of a state."""
        return self.template.fill(dict(state.texts))

    def state(self, texts: Mapping[str, str], parent: SourceState, origin: str, note: str) -> SourceState:
        """The state with these texts, checked. Raises AnswerError."""
        written = sorted(self.template.written(texts).items())
        text = self.source(parent)
        digest = self._digests.get(text) or hashlib.sha256(text.encode()).hexdigest()
        return SourceState(tuple(written), digest, origin, note)

    def _source(self, state: SourceState) -> Source:
        launch: dict[str, Any] = {}
        if self.language == "cuda":
            flags = (*getattr(self.workload.build, "flags", ()), *self.case.options.get("flags", ()))
            shared = self.baseline.shared_bytes
            launch = {"threads": self.baseline.threads, "shared_bytes": shared, "flags": flags}
        return Source(
            self.language, self.source(state), entry=self.entry, recipe=self._recipe(state), **launch
        )

    def _recipe(self, state: SourceState) -> dict[str, Any]:
        return {
            "parent": state.parent,
            "origin": state.origin,
            "note": state.note[:500],
            "texts": dict(state.texts),
        }

    # -- Promptable ---------------------------------------------------------------------------------------

    @property
    def form(self) -> str:
        """What the code section must hold."""
        if self.whole:
            return "The whole source in one fenced block."
        names = ", ".join(hole.name for hole in self.template.holes)
        return (
            f"For each hole that you change ({names}) one fenced block. Its first line is `hole: NAME`, then "
            "comes the hole's new text and nothing else: no function header, no marker lines."
        )

    def brief(self) -> str:
        """The task: the kernel, how it is launched, what must stay."""
        kind = "CUDA C++" if self.language == "cuda" else "Triton"
        lines = [
            f"The {kind} kernel '{self.entry}' runs on an NVIDIA Hopper GPU (sm_90a). Make it faster.",
            f"Launch, which must stay: grid {self.case.grid}, {self.baseline.threads} threads a block, "
            f"{self.baseline.shared_bytes} bytes of dynamic shared memory.",
            "Arguments: " + "; ".join(_argument(n, a) for n, a in self.case.args.items()) + ".",
        ]
        if self.case.constants:
            lines.append(
                "Constants: " + ", ".join(f"{n} = {v}" for n, v in self.case.constants.items()) + "."
            )
        lines += self._served_too()
        tolerance = self.workload.tolerance
        lines.append(
            f"Outputs may differ from the reference by rtol {tolerance.rtol:g} and atol {tolerance.atol:g}."
        )
        lines.append(self.bound())
        if not self.whole:
            lines.append(self._holes())
        lines.append("The baseline's source:\n" + fenced(self.text, self.language))
        return "\n".join(lines) + "\n\nNotes:\n" + _NOTES + _NOTES_OF[self.language]

    def _served_too(self) -> list[str]:
        """The other cases that this code is compiled for, whose results are checked as well."""
        return [
            f"The same code must also be right for grid {case.grid} with "
            + "; ".join(_argument(n, a) for n, a in case.args.items() if a != self.case.args[n])
            + "."
            for case in self.workload.cases
            if case.name != self.case.name
            and (case.constants, case.options) == (self.case.constants, self.case.options)
        ]

    def _holes(self) -> str:
        lines = ["You rewrite only these holes; everything outside of them stays as it is:"]
        return "\n".join(
            [*lines, *(f"- {h.name}: {h.note or 'see the source'}" for h in self.template.holes)]
        )

    def bound(self) -> str:
        """The time below which no kernel can be, with the arithmetic."""
        machine, name = (H200, "H200") if "H200" in self.gpu else (H100, "H100")
        written, read = traffic(self.case, self.workload.meta.get("scratch", ()))
        bandwidth, flop = machine.dram_bytes_s, flops_of(self.case, self.workload.meta)
        memory = 1e6 * (written + read) / bandwidth
        text = (
            f"Bound on an {name}: {read} bytes to read and {written} to write take {memory:.2f} us at "
            f"{bandwidth / 1e12:.2f} TB/s of DRAM (data that stays in the L2's {machine.l2_bytes >> 20} MiB "
            "is not bound by this)"
        )
        if not flop:
            return text + "."
        peak = machine.multiprocessors * machine.flops_clock * NOMINAL_MHZ * 1e6
        compute = 1e6 * flop / peak
        kind = "memory" if memory > compute else "compute"
        return (
            f"{text}; {flop:.4g} FLOP take {compute:.2f} us at {peak / 1e12:.0f} TFLOP/s of dense FP16. "
            f"{flop / (written + read):.1f} FLOP a byte: the {kind} bound is the larger one."
        )

    def show(self, state: SourceState) -> str:
        """The texts of the holes, or the whole source."""
        if self.whole:
            return fenced(self.source(state), self.language)
        shown = [fenced(f"hole: {n}\n{t}", self.language) for n, t in self.texts(state).items()]
        return "\n".join(shown)

    def read(self, text: str, parent: SourceState, origin: str = "answer") -> SourceState:
        """The state that an answer of `origin` describes. Raises AnswerError."""
        answer = read_answer(text)
        now = self.texts(parent)
        new = {"source": whole_source(answer)} if self.whole else hole_texts(answer, now)
        state = self.state({**now, **new}, parent, origin, " ".join(answer.design.split())[:300])
        if state == parent:
            raise NothingChanged("nothing was changed", hint="propose other text than the one shown")
        return state


def fenced(text: str, language: str) -> str:
    """A fenced block, its fence longer than any in the text (docstrings hold some)."""
    label = {"cuda": "cuda", "triton": "python"}.get(language, language)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    return f"{fence}{label}\n{text.strip()}\n{fence}"


def source_of(workload: Workload) -> tuple[Language, str, str]:
    """(language, source text, entry name) of a workload that a frontend made from text.

    Triton: the kernel with the jitted functions that it calls, as a module of its own.

    Raises:
        SassafrasError: a raw cubin, or a kernel whose source is not at hand.
    """
    build = workload.build
    if isinstance(build, CudaBuilder):
        return "cuda", build.text, build.entry or ""
    if isinstance(build, TritonBuilder):
        return "triton", _triton_module(build.kernel), build.kernel.fn.__name__
    raise SassafrasError(
        "this workload has no source to rewrite",
        where=workload.name,
        hint="make it from a Triton kernel or CUDA C++; a raw cubin can be rescheduled with `optimize`",
    )


def _triton_module(kernel: Any) -> str:
    """The jitted functions that a kernel reaches, itself last, under Triton's two imports."""
    order: list[Any] = []

    def visit(function: Any) -> None:
        if function in order:
            return
        names = function.fn.__code__.co_names
        for name in names:
            other = function.fn.__globals__.get(name)
            if type(other).__name__ == "JITFunction":
                visit(other)
        order.append(function)

    visit(kernel)
    try:
        bodies = [inspect.getsource(function.fn) for function in order]
    except (OSError, TypeError) as error:
        raise SassafrasError(f"the kernel's source is not at hand: {error}") from error
    return "import triton\nimport triton.language as tl\n\n\n" + "\n\n".join(bodies)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, Buffer):
        return f"{name}: {value.role} {value.dtype} {'x'.join(map(str, value.shape))}"
    return f"{name} = {value}"


def _broken_launch(kernel: Kernel, baseline: Kernel) -> str:
    """What keeps a kernel from being launched, and deployed, in the baseline's place; empty for nothing."""
    for what in ("name", "threads", "cluster", "parameters", "hidden_args", "scratch_bytes"):
        mine, theirs = getattr(kernel, what), getattr(baseline, what)
        if mine != theirs:
            return f"{what} is {mine}, and must stay {theirs}"
    if kernel.shared_bytes > baseline.shared_bytes:
        return f"{kernel.shared_bytes} bytes of shared memory, the launch gives {baseline.shared_bytes}"
    return ""
