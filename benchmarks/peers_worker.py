"""The process that times one peer's kernel beside ours. It serves one row, and may die of it (see peers.py).

The parent asks for ``load`` and ``time`` when nothing else uses the GPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from products import Calls, Products, mixed, timed_chains

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.cublas import find_library
from sassafras.cuda.timing import balanced
from sassafras.cuda.worker_loop import Answer, Handler, serve
from sassafras.gemm.bench import context
from sassafras.gemm.bench.timing import Isolated
from sassafras.gemm.bench.worker import _stage
from sassafras.gemm.build.cubins import build
from sassafras.gemm.matmul.choice import member_of
from sassafras.gemm.matmul.problem import Problem
from sassafras.gemm.problem.shape import Product, Shape

#: environment variable: no GPU, and no torch
DRY = "PEERS_DRY"
#: rows of C that are compared with FP64; halves on either side of C that a kernel must leave alone
ROWS, GUARD = 128, 16384
#: RMS error over torch's above which a result is wrong: sums in FP16 are some 20 times torch's at k = 16,384
WRONG = 100.0
#: isolated calls at most; rounds, and launches at most, of a loop without graphs
SINGLE, ROUNDS, LOOP = 30, 7, 100
#: the control is ours a second time
RATIOS = {
    "theirs_over_ours": ("theirs", "sassafras"),
    "lt_over_ours": ("lt_autotune", "sassafras"),
    "lt_over_theirs": ("lt_autotune", "theirs"),
    "control": ("control", "sassafras"),
}
Times = dict[str, list[float]]


class Peer:
    """A kernel of theirs on a product's operands, with the copies and the padding of their harness.

    C lies between guards; without padding it is the product's. Raises DeviceError: it cannot be loaded.
    """

    def __init__(self, here: Products, library: Path, padded: Sequence[int]) -> None:
        self.stage, self.shape, self.extents = here.stage, here.product.shape, tuple(padded)
        try:
            for stem in () if self.stage.modelled else ("libcuda", "libcudart"):  # torch's
                ctypes.CDLL(find_library(stem)._name, mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise DeviceError(f"not loaded: {error}") from error
        self._call = self._library.peers_call
        self._call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 3 + [ctypes.c_void_p]
        self._library.peers_trouble.restype = ctypes.c_char_p
        self.relieve = self._library.peers_relieve  # (1): its waits succeed at once during a capture
        addresses = [0] * 5 if self.stage.modelled else self._buffers(here.sets[0])
        self._given = (*addresses[:4], *padded, addresses[4])

    def _buffers(self, operands: Any) -> list[int]:
        import torch

        (m, n, k), shape = self.extents, self.shape
        a, columns = operands.a, operands.b["tn"]
        if padded := (m, n, k) != (shape.m, shape.n, shape.k):
            a, columns = a.new_zeros(m, k), a.new_zeros(n, k)
            a[: shape.m, : shape.k], columns[: shape.n, : shape.k] = operands.a, operands.b["tn"]
        self._raw = torch.full((2 * GUARD + m * n,), 7.0, dtype=torch.float16, device="cuda")
        self._c = self._raw[GUARD : GUARD + m * n].view(m, n)
        self.c = self._c[: shape.m, : shape.n]
        operands.c = operands.c if padded else self.c
        self._held = [a, columns.t().contiguous(), columns]
        return [*(each.data_ptr() for each in (*self._held, self._c)), int(self.stage.gpu.stream)]

    def __call__(self) -> None:
        """Enqueue a call. Raises DeviceError with its words."""
        if self._call(*self._given):
            raise DeviceError(self._library.peers_trouble().decode(errors="replace"))
        if self.stage.modelled:
            self.stage.gpu.launch(3.0 + self.shape.flop / 5e8)

    def filled(self, value: float) -> Any:
        """C of a call on a C that holds this value."""
        self._c.fill_(value)
        self()
        self.stage.gpu.sync()
        return self.c.clone()

    def intact(self) -> bool:
        """Nothing was written on either side of C."""
        return self.stage.modelled or bool((self._raw[:GUARD] == 7).all() and (self._raw[-GUARD:] == 7).all())


class Row:
    """One shape: what is prepared, and then timed."""

    def open(self, question: Answer) -> Answer:
        """A GPU, or the modelled clock, and what chooses our kernels."""
        dry = bool(os.environ.get(DRY))
        self.stage = _stage({"dry": dry, "cache": question.get("cache"), "options": {"seed": 0}})
        self.chooser: Any = None if dry else context.chooser(self.stage)
        return {"cublaslt": self.stage.lt.version}

    def kernels(self, question: Answer) -> Answer:
        """Compile our kernels for these shapes, and the launcher; how many there are."""
        products = [Product(Shape.parse(text), "tn", "fp16") for text in question["shapes"]]
        choices = [member_of(self.chooser, Problem.of(product)).config for product in products]
        needed = list(dict.fromkeys(i for config in choices if config for i in config.instances))
        build(needed, None)
        Products(self.stage, products[0].shape, "fp16", cold=False).calls("sassafras")
        return {"kernels": len(needed)}

    def load(self, question: Answer) -> Answer:
        """Operands, and the peer's first call, in which it may time configurations of its own."""
        self.here = Products(self.stage, Shape.parse(question["shape"]), "fp16", cold=False)
        self.peer = Peer(self.here, Path(question["library"]), question["padded"])
        self.peer()
        return {"synchronised": self.stage.gpu.sync()}

    def prepare(self, question: Answer) -> Answer:
        """Errors, and how the peer is captured: ``as written``, ``relieved`` of its waits, or not at all."""
        found, fill, limit = ({}, 0.0, 0.0) if self.stage.modelled else self._compared()
        captured, why = self._captured(fill, limit) if not found.get("wrong") else ("", [])
        found |= {"captured": captured, "why_not_captured": why, "served": self.stage.served().get("tn")}
        return found

    def _compared(self) -> tuple[Answer, float, float]:
        """Errors against FP64 on some rows, and against torch on all of C; what C has to hold; a bound."""
        import torch

        peer, operands = self.peer, self.here.sets[0]
        theirs = peer.filled(0.0)
        again = peer.filled(float("nan"))
        results = {"theirs": theirs}
        for name in ("torch", "sassafras"):
            operands.c.fill_(float("nan"))
            self.here.calls(name)[0]()
            results[name] = operands.c.clone()
        at = torch.linspace(0, peer.shape.m - 1, min(ROWS, peer.shape.m), device="cuda").long()
        exact = operands.a[at].double() @ operands.b["tn"].double().t()
        errors = {}
        for name, result in results.items():
            off = result[at].double() - exact
            errors[name] = [float(off.square().mean().sqrt()), float(off.abs().max())]
        whole = float((theirs.float() - results["torch"].float()).square().mean().sqrt())
        accumulates = bool(theirs.isfinite().all()) and not bool(again.isfinite().all())
        found: Answer = {"errors": errors, "off_torch": whole, "needs_zeros": accumulates}
        bound = WRONG * errors["torch"][0]
        if not (errors["theirs"][0] <= bound and whole <= bound):
            found["wrong"] = f"RMS error {errors['theirs'][0]:.3g} against FP64, {whole:.3g} against torch"
        elif not peer.intact():
            found["wrong"] = "wrote outside of C"
        if not errors["sassafras"][0] <= 1.1 * errors["torch"][0] + 1e-7:
            found["ours_wrong"] = errors["sassafras"][0]
        return found, 0.0 if accumulates else float("nan"), 2 * whole + 1e-6

    def _captured(self, fill: float, limit: float) -> tuple[str, list[str]]:
        """How the peer's calls become a graph whose results are right; why it does not otherwise."""
        why: list[str] = []
        for how in ("as written", "relieved"):
            self.peer.relieve(int(how == "relieved"))
            try:
                block = self.stage.block(self.peer, 1)
                if self.stage.modelled or self._replayed(block, fill, limit):
                    return how, why
                raise DeviceError("a graph's results are wrong")
            except Exception as error:
                if getattr(error, "sticky", False):
                    raise
                why.append(f"{how}: {error}"[:160])
        self.peer.relieve(0)
        return "", why

    def _replayed(self, block: Any, fill: float, limit: float) -> bool:
        direct = self.peer.filled(fill)
        self.peer._c.fill_(fill)
        self.stage.gpu.replay(block.graph)
        self.stage.gpu.sync()
        return bool((self.peer.c.float() - direct.float()).square().mean().sqrt() <= limit)

    def time(self, message: Answer) -> Answer:
        """Times by each way: of graphs, and where waits were taken out or nothing is captured, of loops."""
        seconds, captured = message["seconds"], message["captured"]
        calls: Calls = {name: self.here.calls(name) for name in ("sassafras", "torch")}
        us = self.stage.watch.one(calls["torch"][0])
        most = int(min(1000, max(12, 0.5e6 / (5 * max(200.0, us)))))
        self.single = int(min(SINGLE, max(7, 1e5 // us)))
        algorithms = self.stage.lt.candidates(self.here.lt)[:most]
        calls["lt_autotune"] = self.here.calls(self.here.fastest(algorithms))
        calls |= {"theirs": [self.peer], "control": calls["sassafras"]}
        ways: Answer = {}
        if captured:
            self.peer.relieve(int(captured == "relieved"))
            try:
                ways["graphs"] = self._graphs(calls, seconds)
            except Exception as error:  # one graph of one call was right; several may not be possible
                if getattr(error, "sticky", False):
                    raise
                captured = ""
                ways |= {"captured": "", "why_not_captured": [str(error)[:160]]}
        if captured != "as written":
            self.peer.relieve(0)
            ways["loops"] = self._loops(calls, seconds)
        self.stage.gpu.sync()
        if not self.peer.intact():
            ways["wrong"] = "wrote outside of C"
        return {**ways, "algorithms": len(algorithms)}

    def _graphs(self, calls: Calls, seconds: float) -> Answer:
        single = Isolated(self.stage, list(calls.values()))
        table = single.calls(self.single, 1e9, np.random.default_rng(0))[0]
        single.close()
        isolated = dict(zip(calls, table.T.tolist(), strict=True))
        return self._ways(calls, lambda chains: timed_chains(self.stage, chains, 1, seconds), isolated)

    def _loops(self, calls: Calls, seconds: float) -> Answer:
        rough = sum(self.stage.watch.one(call) for (call,) in calls.values())
        many = int(min(LOOP, max(4, 4e6 * seconds // (ROUNDS * rough))))
        isolated = looped(self.stage, calls, self.single, 1)
        found = self._ways(calls, lambda chains: looped(self.stage, chains, ROUNDS, many), isolated)
        return {"launches": many, **found}

    def _ways(self, calls: Calls, timed: Callable[[Calls], Times], isolated: Times) -> Answer:
        own = {} if self.stage.modelled else mixed({"theirs": [self.peer]}, lambda: self.peer.c.mul_(0.5))
        behind = mixed(calls, self.here.between()) | own  # on the C that each has written
        return {
            "back_to_back": ratios(timed(calls)),
            "elementwise": ratios(timed(behind)),
            "isolated": ratios(isolated),
        }


def looped(stage: Any, calls: Calls, rounds: int, launches: int) -> Times:
    """Microseconds a product: a loop of the host between two events, contestants interleaved, no graphs."""
    names = list(calls)
    found: Times = {name: [] for name in names}

    def loop() -> None:
        for call in launches * list(calls[name]):
            call()

    for which in balanced(len(names), rounds + 1):
        name = names[which]
        stage.gpu.sync()
        found[name].append(stage.watch.one(loop) / launches)
    return {name: us[1:] for name, us in found.items()}  # without the first round


def ratios(us: Times) -> Answer:
    """Medians of all, and ratios of rounds with intervals: [median, low, high]."""

    def over(base: str, name: str) -> list[float]:
        paired = np.divide(us[base], us[name])
        interval = bootstrap_median(paired)
        return [round(float(value), 4) for value in (np.median(paired), interval.low, interval.high)]

    medians = {name: round(float(np.median(those)), 3) for name, those in us.items()}
    return {"us": medians, **{ratio: over(*names) for ratio, names in RATIOS.items()}}


def preload() -> None:
    """Import what workers need, and leave CUDA alone."""
    if not os.environ.get(DRY):
        for module in ("torch", "cuda.bindings.driver", "sassafras.gemm.matmul.api"):
            import_module(module)


def served() -> int:
    """Serve one parent (`worker_loop.serve`)."""
    row = Row()

    def asked(do: str) -> Handler:
        return lambda message, blobs: getattr(row, do)(message)

    return serve({do: asked(do) for do in ("open", "kernels", "load", "prepare", "time")})


main = served  # by this name a fork server calls it; it is no command
if __name__ == "__main__":
    sys.exit(main())
