"""One kernel's mutants: opened once, then made and judged until its time is over."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from planted import Subject, moves, names
from second_model import IDLE, SecondModel, Unread

from sassafras.core import SassafrasError
from sassafras.sass import Emitter, Program
from sassafras.validate import Validator

from .edits import Editor
from .pool import Say

Row = dict[str, Any]
#: disagreements written down for each kernel
KEPT = 12
COUNTED = ("mutants", "approved", "equal", "different", "idle", "same_bytes", "repeated")
#: seconds between two reports of a kernel
_REPORT_S = 3.0
#: mutants of every kernel that opens in time
LEAST = 200
#: part of a kernel's time that is kept for planted copies
_PLANTING = 0.25


class LeftOut(Exception):
    """Why a kernel has no mutants."""


class KernelRun:
    """A kernel of which mutants are made, and what became of them so far.

    Args:
        data: the cubin.
        name: the kernel.
        seed: of this run.

    Raises:
        LeftOut: the validator or the second model does not accept the compiler's own code, or nothing in it
            can be edited.
    """

    def __init__(self, data: bytes, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        try:
            self.validator = Validator(data, name)
            if not (report := self.validator.check(data)).ok:
                raise LeftOut(f"the validator refuses the original: {report.violations[0]}"[:300])
            self.second = SecondModel(data, name)
        except Unread as error:
            raise LeftOut(f"the second model cannot read it: {error}") from None
        except SassafrasError as error:
            raise LeftOut(f"the validator cannot read it: {error}"[:300]) from None
        if not self.second.sound:
            raise LeftOut(f"the second model does not accept the original: {self.second.trouble}")
        self.program = Program.parse(data)
        self.editor = Editor(self.program.function(name), seed)
        if self.editor.empty:
            raise LeftOut("nothing in it can be edited")
        self._emitter = Emitter(self.program, name)
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.found: list[Row] = []
        self.planted: dict[str, int] = {}
        self._seen: set[bytes] = set()
        self._next = 0
        self._validating = self._judging = 0.0

    def mutants(self, to: int, until: float) -> bool:
        """Make mutants up to number `to`, or until `until` (``time.perf_counter()``); True if all are."""
        while self._next < to and time.perf_counter() < until:
            self._one(self._next)
            self._next += 1
        return self._next >= to

    def _one(self, number: int) -> None:
        made = self.editor.make(number)
        if made is None:
            self.counts["same_bytes"] += 1
            return
        order, words, edits = made
        mark = hashlib.blake2b(words, digest_size=8).digest()
        if mark in self._seen:
            self.counts["repeated"] += 1
            return
        self._seen.add(mark)
        mutant = self._emitter.write(order, words)
        start = time.perf_counter()
        approved = self.validator.check(mutant).ok
        middle = time.perf_counter()
        self._validating += middle - start
        if approved:
            judged = self.second.judge(mutant)
            self._judging += time.perf_counter() - middle
            if judged.verdict == IDLE:
                self.counts["idle"] += 1
                return
            self.counts["approved"] += 1
            self.counts[judged.verdict] += 1
            if judged.verdict != "equal" and len(self.found) < KEPT:
                self.found.append(
                    {"number": number, "edits": edits, "why": judged.why, "where": judged.where}
                )
        self.counts["mutants"] += 1
        self.kinds.update(edits)

    def plant(self, most: int, until: float) -> None:
        """Judge copies that are another program: how many of them `Validator.via` proved, and the second
        model."""
        counts: Counter[str] = Counter()
        subject = Subject(self.program, self.name)
        for source in (names, moves):
            rng = np.random.default_rng([self.seed, len(subject.code)])
            for n, mutant in enumerate(source(subject, rng, 1)):
                if n >= most or time.perf_counter() > until:
                    break
                counts["copies"] += 1
                if self.validator.via(mutant.cubin).ok:
                    counts["proved"] += 1
                    counts["proved_by_second"] += self.second.via(mutant.cubin).verdict == "equal"
                    self.validator = Validator(self.validator.original.tobytes(), self.name)
        self.planted = dict(counts)

    def row(self) -> Row:
        """What became of them so far."""
        judged = self.counts["approved"] + self.counts["idle"]
        return {
            "instructions": len(self.validator.function),
            **{k: self.counts[k] for k in COUNTED},
            "planted": self.planted, "disagreements": list(self.found), "kinds": dict(self.kinds),
            "validating_ms": round(1e3 * self._validating / max(1, self._next), 3),
            "judging_ms": round(1e3 * self._judging / max(1, judged), 3),
        }  # fmt: skip


def run(
    say: Say, path: str, name: str, share_s: float, until: float, most: int, seed: int, copies: int
) -> Row:
    """Open a kernel; make its mutants for `share_s` seconds, not beyond `until` (``time.time()``).

    The first `LEAST` are made even if they take longer than the share. Says the row so far when the kernel is
    open and every few seconds; returns the whole row.
    """
    begin = time.perf_counter()
    data = Path(path).read_bytes()
    row: Row = {"sha256": hashlib.sha256(data).hexdigest()[:16], "mutants": 0}

    def now() -> Row:
        return row | kernel.row() | {"seconds": round(time.perf_counter() - begin, 2)}

    try:
        kernel = KernelRun(data, name, seed)
    except LeftOut as why:
        return row | {"left_out": str(why), "seconds": round(time.perf_counter() - begin, 2)}
    opened = time.perf_counter()
    row["opened_s"] = round(opened - begin, 2)
    last = opened + until - time.time()
    end = min(last, opened + share_s)
    say(now())
    kernel.mutants(min(LEAST, most), last)
    planting = opened + (1 - _PLANTING) * (end - opened)
    _until(kernel, most, planting, say, now)
    if copies:
        kernel.plant(copies, end)
    _until(kernel, most, end, say, now)
    return now()


def _until(kernel: KernelRun, most: int, until: float, say: Say, now: Callable[[], Row]) -> None:
    """Make mutants, and say now and then what became of them."""
    while not kernel.mutants(most, min(until, time.perf_counter() + _REPORT_S)):
        if time.perf_counter() >= until:
            return
        say(now())
