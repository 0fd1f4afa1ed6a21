"""`PtxSpace`: what ptxas makes of one PTX under small rewrites, options and releases.

ptxas rewrites the whole kernel, so the validator does not apply between two of its outputs: a candidate is
judged as a compiler's output is, by results on the device, bitwise against the unmodified kernel's. The best
of it is the baseline that a schedule search has to beat.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import (
    Candidate,
    Case,
    CompileError,
    CubinError,
    Kernel,
    SassafrasError,
    Workload,
)
from sassafras.frontend._ptxas import assemble, ptxas_version
from sassafras.frontend.ptxas_options import PtxasOptions, available, controls_digest
from sassafras.sass import undefined

from . import names
from .axes import Axis, option_axes, rewrite_axes
from .outputs import fingerprint, not_launched, with_release
from .reader import Entry
from .rewrites import Cache, EntryName, Rewrite, from_json, redistributes, refusal, write

#: draws of a move whose state is not refused at once
_DRAWS = 32
#: flags by which a user chooses the cache operators of a whole kernel
_OPERATORS = re.compile(r"--?(def|force)-(load|store)-cache\b|--?[df][ls]cm\b")


@dataclasses.dataclass(frozen=True, slots=True)
class PtxState:
    """What is changed: nothing, for the frontend's own kernel.

    Attributes:
        options: of ptxas.
        rewrites: of the PTX, sorted, one a slot.
    """

    options: PtxasOptions = dataclasses.field(default_factory=PtxasOptions)
    rewrites: tuple[Rewrite, ...] = ()

    def describe(self, version: str) -> str:
        """``ptxas 13.0.88 --opt-level=2; .maxnreg 64``."""
        return "; ".join((self.options.describe(version), *(one.describe() for one in self.rewrites)))

    def to_json(self) -> dict[str, Any]:
        """JSON-able, the ptxas program left out."""
        return {"options": self.options.given(), "rewrites": [one.to_json() for one in self.rewrites]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], ptxas: str = "") -> PtxState:
        """The reverse of `to_json`, under a ptxas program. Raises SassafrasError."""
        rewrites = data.get("rewrites", ())
        if not isinstance(rewrites, list | tuple):
            raise SassafrasError(f"{rewrites!r:.80} is no list of rewrites")
        return cls(PtxasOptions.read(data.get("options", {}), ptxas), _sorted(map(from_json, rewrites)))


@dataclasses.dataclass(frozen=True, slots=True)
class PtxMove:
    """Take one choice of an axis; 0 is the frontend's own."""

    axis: str
    choice: int


class PtxSpace:
    """The kernels that ptxas makes of one PTX. Implements `core.Space` and `core.Playable`.

    Args:
        kernel: what the frontend itself makes of it, the start of the space, byte for byte.
        ptx: the text.
        tools: other ptxas programs; None: all on this machine, but those that are older than the PTX.
        flags: the frontend's own flags, kept in front.
        controls: options of the user's with a file each, ``--OPTION=FILE`` (`PtxasOptions.controls`).
        own: the frontend's own ptxas, where `tools` may not hold it.

    Raises:
        SassafrasError: the PTX is not understood, or a file of `controls` cannot be read.
        ToolMissing: one of `tools` cannot be run.
    """

    def __init__(
        self,
        kernel: Kernel,
        ptx: str,
        tools: Sequence[str | Path] | None = None,
        flags: Sequence[str] = (),
        controls: Sequence[str] = (),
        own: str = "",
    ) -> None:
        self.kernel, self.ptx, self.base_flags = kernel, ptx, tuple(flags)
        self.entry = Entry.read(ptx, kernel.name)
        program, own = own, str(kernel.meta.get("ptxas", ""))
        versions = {own: program} if program and ptxas_version(program) == own else dict[str, str]()
        for path in [str(t) for t in tools] if tools is not None else available():
            version = ptxas_version(path)
            # CUDA 12 reads PTX 8, CUDA 13 PTX 9
            if tools is not None or version == own or _release(version)[0] >= self.entry.version[0] + 4:
                versions.setdefault(version, path)
        self.own_version = own
        #: version -> program; the frontend's own is the empty string
        self.tools = {own: "", **{v: p for v, p in sorted(versions.items()) if v != own}}
        self._own_path = versions.get(own, "")
        #: option with a file -> the file's digest
        self.controls = {each: controls_digest(each) for each in controls}
        newest = max(map(_release, self.tools))
        self._operators_given = any(_OPERATORS.match(flag) for flag in flags)
        fixed = ("load_cache", "store_cache", " Cache") if self._operators_given else ()
        self.axes = {
            one.name: one
            for one in (
                *option_axes(self.entry, tuple(self.tools.values()), kernel.threads, tuple(self.controls)),
                *rewrite_axes(self.entry, kernel.threads, kernel.shared_bytes, newest),
            )
            if len(one.choices) > 1 and not one.name.endswith(fixed)
        }
        self._built: dict[PtxState, Candidate | str] = {}
        self._ready: dict[PtxState, Candidate | str] = {}
        self._distinct: dict[str, Candidate] = {fingerprint(kernel.cubin): self._own}

    @property
    def description(self) -> str:
        """What two searches must share to be the same one."""
        files = "".join(f", controls {digest[:16]}" for digest in self.controls.values())
        return (
            f"ptx {hashlib.sha256(self.ptx.encode()).hexdigest()[:16]}, ptxas {', '.join(self.tools)}{files}"
        )

    # -- core.Space ---------------------------------------------------------------------------------------

    def start(self) -> PtxState:
        """The frontend's own setting and text."""
        return PtxState()

    def moves(self, state: PtxState) -> list[PtxMove]:
        """Every change of one axis."""
        return [
            PtxMove(one.name, choice)
            for one in self.axes.values()
            for choice in range(len(one.choices))
            if choice != self.chosen(state, one)
        ]

    def sample(self, state: PtxState, rng: np.random.Generator) -> PtxMove | None:
        """One change whose state is not refused: a kind of axis, an axis of it, a choice, each uniformly."""
        kinds = list(dict.fromkeys(one.kind for one in self.axes.values()))
        for _ in range(_DRAWS if kinds else 0):
            kind = kinds[int(rng.integers(len(kinds)))]
            able = [one for one in self.axes.values() if one.kind == kind]
            one = able[int(rng.integers(len(able)))]
            choice = int(rng.integers(len(one.choices)))
            move = PtxMove(one.name, choice)
            if choice != self.chosen(state, one) and not self.refusal(self.apply(state, move)):
                return move
        return None

    def apply(self, state: PtxState, move: PtxMove) -> PtxState:
        """The changed state.

        Raises:
            SassafrasError: no such axis or choice in this space.
        """
        one = self.axes.get(move.axis)
        if one is None or not 0 <= move.choice < len(one.choices):
            raise SassafrasError(f"{move.axis} = {move.choice!r} is not in this space", where="ptx")
        if one.option:
            options = dataclasses.replace(state.options, **{one.option: one.choices[move.choice]})
            return dataclasses.replace(state, options=options)
        put = one.choices[move.choice]
        cleared = one.slots | {each.slot for each in put}
        kept = (each for each in state.rewrites if each.slot not in cleared)
        return dataclasses.replace(state, rewrites=_sorted((*kept, *put)))

    def candidate(self, state: PtxState) -> Candidate:
        """The kernel of a state; where it is refused, a stand-in with ``refused`` in its recipe, which the
        judge knows and which never runs."""
        try:
            return self.build(state)
        except CompileError as error:
            recipe = {**self._recipe(state), "refused": str(error)}
            stand_in = json.dumps(["refused", self.description, self._recipe(state)], sort_keys=True)
            return Candidate(self.kernel.with_cubin(stand_in.encode()), recipe)

    def build(self, state: PtxState) -> Candidate:
        """The kernel of a state. States with the same code give the candidate that was made first, so that
        nothing is measured twice.

        Raises:
            CompileError: a rewrite is not legal here, ptxas refused it or is not here, or it could not be
                launched.
        """
        if state not in self._built:
            made = self._ready.pop(state, None) or self._tried(state)
            if isinstance(made, Candidate):
                made = self._distinct.setdefault(fingerprint(made.kernel.cubin), made)
            self._built[state] = made
        found = self._built[state]
        if isinstance(found, str):
            raise CompileError(found)
        return found

    def ahead(self, states: Sequence[PtxState]) -> None:
        """Have ptxas make these at a time, for `build`: a process each."""
        left = [s for s in dict.fromkeys(states) if s not in self._built and s not in self._ready]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._ready.update(zip(left, pool.map(self._tried, left), strict=True))

    def _tried(self, state: PtxState) -> Candidate | str:
        """The kernel of a state, or why it is refused."""
        try:
            return self._own if state == PtxState() else self._assembled(state)
        except CompileError as error:
            return str(error)

    @cached_property
    def _own(self) -> Candidate:
        return Candidate(self.kernel, self._recipe(PtxState()))

    @cached_property
    def _own_undefined(self) -> str:
        """What the own kernel reads that nothing writes: then it is the source, and in every output."""
        return undefined.explain(self.kernel.cubin, self.kernel.name)

    def _recipe(self, state: PtxState) -> dict[str, Any]:
        flags, version = list(state.options.flags()), self.version(state.options)
        recipe = {"space": "ptx", "ptxas": version, "flags": flags, **state.to_json()}
        if state.options.controls is not None:
            recipe["controls"] = controls_digest(state.options.controls)
        return recipe

    def version(self, options: PtxasOptions) -> str:
        """The release of the ptxas that a setting names."""
        return next(v for v, path in self.tools.items() if path == options.ptxas)

    def refusal(self, state: PtxState) -> str:
        """Why a state is refused before ptxas sees it; empty for nothing."""
        version = self.version(state.options)
        if not state.options.ptxas and not self._own_path and state != PtxState():
            return f"the frontend's own ptxas {version} was not found: pass its path in tools"
        operators = state.options.load_cache or state.options.store_cache
        if self._operators_given and (operators or any(isinstance(one, Cache) for one in state.rewrites)):
            return "the kernel's flags name its cache operators, and it may rely on them"
        if state.options.max_registers is not None and (why := redistributes(self.entry)):
            return why
        if why := refusal(self.entry, state.rewrites, self.kernel.threads):
            return why
        for one in state.rewrites:
            if (least := one.release(self.entry)) > _release(version):
                return f"{one.describe()} needs ptxas {least[0]}.{least[1]} or newer, not {version}"
        return ""

    def _assembled(self, state: PtxState) -> Candidate:
        if why := self.refusal(state):
            raise CompileError(why)
        text = write(self.entry, state.rewrites, self.kernel.threads)
        kernel, flags = self.kernel, (*self.base_flags, *state.options.flags())
        tool = state.options.ptxas or self._own_path
        data = assemble(text, kernel.arch, tool, flags=flags, where=kernel.name)
        for one in state.rewrites:
            if isinstance(one, EntryName):
                try:
                    data = names.restore(data, one.prefix + kernel.name, kernel.name)
                except CubinError as error:
                    raise CompileError(str(error)) from error
        if why := not_launched(data, kernel):
            raise CompileError(why, where=kernel.name)
        if not self._own_undefined and (why := undefined.explain(data, kernel.name)):
            raise CompileError(f"ptxas {self.version(state.options)}: {why}", where=kernel.name)
        meta = {
            **kernel.meta,
            "ptxas": self.version(state.options),
            "ptxas_flags": list(state.options.flags()),
            "ptx_rewrites": [one.to_json() for one in state.rewrites],
        }
        return Candidate(dataclasses.replace(kernel, cubin=data, meta=meta), self._recipe(state))

    def sweep(self) -> Iterator[PtxState]:
        """What `sassafras ptxas-options` tries: each release alone, then each other option under each."""
        options = [one for one in self.axes.values() if one.option and one.option != "ptxas"]
        for path in self.tools.values():
            yield PtxState(PtxasOptions(ptxas=path))
        for path in self.tools.values():
            for one in options:
                for value in one.choices[1:]:
                    yield PtxState(dataclasses.replace(PtxasOptions(ptxas=path), **{one.option: value}))

    def distinct(self, states: Sequence[PtxState] | None = None) -> tuple[list[Candidate], list[str]]:
        """Candidates with different code, first come first, and what was refused."""
        seen: dict[str, Candidate] = {}
        refused = []
        for state in states if states is not None else list(self.sweep()):
            try:
                made = self.build(state)
                seen.setdefault(made.digest, made)
            except CompileError as error:
                said = f"{state.describe(self.version(state.options))}: {error}"
                refused.append(said.splitlines()[0][:200])
        return list(seen.values()), refused

    # -- core.Playable: a row an axis, an action a choice of it --------------------------------------------

    @property
    def actions(self) -> tuple[str, ...]:
        """Choices by number, as many as the longest axis has."""
        return tuple(f"choice {n}" for n in range(max(len(one.choices) for one in self.axes.values())))

    def chosen(self, state: PtxState, one: Axis) -> int:
        """The choice that a state has made; -1 for a group whose members differ."""
        if one.option:
            return one.choices.index(getattr(state.options, one.option))
        now = {each for each in state.rewrites if each.slot in one.slots}
        own = ({each for each in choice if each.slot in one.slots} for choice in one.choices)
        return next((n for n, choice in enumerate(own) if choice == now), -1)

    def features(self, state: PtxState) -> np.ndarray:
        """float32 (axes, choices): 1 where a choice is made."""
        made = np.array([self.chosen(state, one) for one in self.axes.values()])
        return (made[:, None] == np.arange(len(self.actions))).astype(np.float32)

    def links(self, state: PtxState) -> np.ndarray:
        """int32 (axes, 1): -1, no axis depends on another."""
        return np.full((len(self.axes), 1), -1, dtype=np.int32)

    def legal(self, state: PtxState) -> np.ndarray:
        """bool (axes, choices): what may be tried."""
        lengths = np.array([len(one.choices) for one in self.axes.values()])
        there: np.ndarray = np.arange(len(self.actions)) < lengths[:, None]
        return there & (self.features(state) == 0)

    def act(self, state: PtxState, row: int, action: int) -> tuple[PtxMove, int] | None:
        """The move that takes a choice; None where its state is refused."""
        move = PtxMove(list(self.axes)[row], action)
        return None if self.refusal(self.apply(state, move)) else (move, row)


def of(
    workload: Workload,
    case: Case,
    arch: str,
    tools: Sequence[str | Path] | None = None,
    controls: Sequence[str] = (),
    kernel: Kernel | None = None,
) -> PtxSpace:
    """The space of one case of a workload, or around a kernel that was built for it.

    Raises:
        SassafrasError: the workload has no PTX (a raw cubin).
        CompileError, ToolMissing, UnsupportedArch, WorkloadError: as its frontend raises them.
    """
    make = getattr(workload.build, "ptx", None)
    if make is None:
        raise SassafrasError(
            "ptxas options and rewrites need PTX, and a raw cubin has none",
            where=workload.name,
            hint="start from the Triton or CUDA source",
        )
    kernel = kernel or workload.build(case, arch)
    flags = getattr(workload.build, "ptxas_flags", lambda case, arch: ())(case, arch)
    text = make(case, kernel.arch)
    own = getattr(workload.build, "own_ptxas", lambda arch: "")(arch)
    several = [*(tools if tools is not None else available()), *([own] if own else [])]
    kernel = with_release(kernel, text, several, flags)
    return PtxSpace(kernel, text, tools, flags, controls, own)


def _sorted(rewrites: Any) -> tuple[Rewrite, ...]:
    return tuple(sorted(rewrites, key=lambda one: (one.slot, repr(one))))


def _release(version: str) -> tuple[int, int]:
    """``(13, 0)`` of ``13.0.88``; ``(0, 0)`` of an unknown one."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
