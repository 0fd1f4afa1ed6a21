"""Threads that call `sassafras.matmul` on the driver's stand-in, every product checked.

    python -m tests.gemm.threads_program '[{"driver": FILE, "cache": FOLDER, "launcher": FILE, "rounds": 9}]'

Run by test_threads.py, perhaps under a sanitizer; prints one line of JSON. Each of the settings is a run in a
process of its own, forked when torch is there: importing it takes longer than most runs. With "" as launcher
Python's is used. Meanwhile plans are forgotten, each time while one of them is used, and some launches fail.
Whatever the launchers ask of torch gives up the GIL: an argument block that threads share is caught in use.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from sassafras.gemm.build import launcher
from sassafras.gemm.build.cubins import cached_path
from sassafras.gemm.configs import names, registry
from sassafras.gemm.matmul import api as room
from sassafras.gemm.matmul.driver import Driver
from sassafras.gemm.matmul.launcher_python import PythonLauncher, compiled
from sassafras.gemm.matmul.planner import Planner
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.table import TableRow, TunedTable
from tests.gemm import stand_in

THREADS = 6
#: small, since the stand-in multiplies on the CPU; the third is two launches with a workspace
PROBLEMS = (
    (Shape(16, 24, 64), "tn", "small_tn_m1n2s2/w1x1x1/c1"),
    (Shape(8, 16, 64), "nn", "small_nn_m1n2s1/w1x1x1/c1"),
    (Shape(8, 16, 256), "tn", "split_k_two_pass_tn_64x64_s12q1/p2"),
    (Shape(16, 8, 128), "nn", "split_k_nn_64x64_s6q1/c2+o"),
    (Shape(7, 9, 33), "tn", "unaligned_tn_64x64_s6/c1"),
    (Shape(16, 16, 64), "tn", "small_tn_m1n2s2/w1x1x1/c1"),
)
#: the last one has a bias and an activation
FUSED = len(PROBLEMS) - 1


class Fixed(Planner):
    """With this launcher from the beginning."""

    made: Any = None

    def _build_launcher(self) -> None:
        self.launcher = self.made


def engine(settings: dict[str, Any], forgetting: set[int] | None = None) -> Fixed:
    """On the stand-in; the launcher is loaded from a file, or Python's. A thread whose number is in
    `forgetting` forgets all plans where its next launch asks for a stream."""
    stand_in.describe(Path(settings["driver"]))
    driver = Driver(settings["driver"])

    def giving_up(answer: Any) -> Any:
        def function(*given: Any) -> Any:
            time.sleep(0)
            return answer(*given)

        return function

    def stream(device: int) -> int:
        thread = threading.get_native_id()
        if forgetting and thread in forgetting:
            forgetting.discard(thread)
            Fixed.made.forget()
        return 0x1000 + 2 * thread

    side = stand_in.torch_side(
        modes=(giving_up(torch._C._len_torch_dispatch_stack),),
        empty_bytes=giving_up(lambda count, device: torch.empty(count, dtype=torch.uint8)),
        stream=giving_up(stream),
    )
    if settings["launcher"]:
        Fixed.made = compiled(launcher.load(Path(settings["launcher"])), driver, side)
    else:
        Fixed.made = PythonLauncher(driver, side)
    rows = [TableRow(s, layout, ((names.parse(name), 1.0),), 1e4) for s, layout, name in PROBLEMS]
    table = TunedTable({"gpu": "NVIDIA H200"}, rows)
    return Fixed(driver, side, cache=Path(settings["cache"]), background=False, table=table)


def prepare(cache: Path) -> None:
    """Cubins that the stand-in believes."""
    needed = [instance for _, _, c in PROBLEMS for instance in names.parse(c).instances]
    for instance in (*needed, *registry.EPILOGUE_INSTANCES):
        cached_path(instance, cache).write_bytes(b"\x7fELF")


class Product:
    """Operands of small integers, and what every order of summation gives."""

    def __init__(self, index: int, draw: random.Random) -> None:
        shape, layout, _ = PROBLEMS[index]

        def small(*extents: int) -> Any:
            count = extents[0] * (extents[1] if len(extents) > 1 else 1)
            return torch.tensor(draw.choices((-2, -1, 0, 1, 2), k=count)).view(extents).half()

        self.a = small(shape.m, shape.k)
        self.b = small(shape.k, shape.n) if layout == "nn" else small(shape.n, shape.k).t()
        wanted = self.a.double() @ self.b.double()
        self.more: dict[str, Any] = {}
        if index == FUSED:
            self.more = {"bias": small(shape.n), "activation": "relu"}
            wanted = torch.relu(wanted + self.more["bias"].double())
        self.wanted = wanted.half()
        self.out = torch.empty_like(self.wanted)

    def right(self, turn: int) -> bool:
        out = self.out.fill_(float("nan")) if turn % 2 else None
        c = room.matmul(self.a, self.b, out, **self.more)
        return torch.equal(c, self.wanted) and (out is None or c is out)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Run all rounds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of launches that fail
    prepare(Path(settings["cache"]))
    sys.setswitchinterval(1e-5)
    forgetting: set[int] = set()
    served = engine(settings, forgetting)
    room.use(served, device="cpu")
    state = stand_in.state_of(Path(settings["driver"]))
    rounds, wrong, faults = int(settings["rounds"]), [0] * THREADS, []
    begin = threading.Barrier(THREADS)

    def work(number: int) -> None:
        if number == 0:
            # how many launches fail must not depend on how long a thread is kept waiting
            state.failing_thread = threading.get_native_id()
        draw = random.Random(number)
        products = [Product(index, draw) for index in range(len(PROBLEMS))]
        begin.wait()
        for turn in range(rounds):
            index = draw.randrange(len(PROBLEMS)) if turn else 2  # all of them first call one problem
            if turn % 5 == 4 and number == turn // 5 % THREADS:
                forgetting.add(threading.get_native_id())
            wrong[number] += not products[index].right(turn)
            if number == 0 and settings.get("fail", True) and turn % 50 == 49:
                state.fail = 701
                wrong[number] += not products[index].right(turn)
                state.fail = 0

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            faults.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    members = {p["shape"]: p["member"] for p in room.status()["problems"]}
    return {
        "products": THREADS * rounds, "wrong": sum(wrong), "faults": faults, "members": members,
        "counts": served.launcher.counts(), "launches": state.launches,
    }  # fmt: skip


def alone(settings: dict[str, Any]) -> tuple[int, str, str]:
    """One run in a fork: its status, what it printed, and its errors. Only the parent returns."""
    said = [Path(settings["cache"], name) for name in ("said", "errors")]
    if not (child := os.fork()):
        for number, path in enumerate(said, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        print(json.dumps(main(settings)))
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, *(path.read_text(errors="replace") for path in said)


if __name__ == "__main__":
    print(json.dumps([alone(settings) for settings in json.loads(sys.argv[1])]))
