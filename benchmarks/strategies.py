"""Compare search strategies on equal terms; write strategies.json.

    python benchmarks/strategies.py --folder runs --seconds 540            # a GPU; again until all is done
    python benchmarks/strategies.py --folder runs --remeasure              # winners in fresh processes
    python benchmarks/strategies.py --folder runs --alone                  # CuAsmRL's preset by itself
    python benchmarks/strategies.py --folder runs --turns                  # its networks on the GPU itself
    python benchmarks/strategies.py --folder runs --summary                # strategies.json of what is there
    python benchmarks/strategies.py --device model --kernels softmax --strategies anneal,ppo_twin --seeds 2 \\
        --evaluations 200 --folder /tmp/runs --out /tmp/results            # without a GPU, to try it

A unit is one search: kernel x strategy x seed, --evaluations long. Each is written to its own file in
--folder when it ends, and is not run again; one that is cut goes on where it was, with the same command
(what was measured is read, and thought about again). Seeds are outermost, so that what is there after a
short sitting is balanced; ablations come after them (`plan`). --published goes on from
a strategies.json whose units' files are gone: what it has whole is not run again.

An agent thinks longer than an evaluation takes. So several units share each GPU: its owner
(`shared_device.py`) judges one candidate at a time, alone, and a unit's clock counts the seconds of the GPU
that were its own, and beside them those of its thinking. A unit's curve is its best so far after each
evaluation that improved on it: evaluations, seconds of the GPU, speed-up, seconds of GPU and thought together
(as if the two never overlapped). Equal evaluations and equal seconds come from the same log. With --turns
the networks of CuAsmRL's preset are on the GPU that is timed on, and wait while it times, as it does while
one of them works (`turns.py`).

Every minute, and at its end, a GPU's owner prints a line, "GPU 0: {...}": how long nobody asked (idle_s),
and the mean milliseconds of every part of an evaluation (`shared_device.Spent`).

What the search believed is not what is reported: its best few are looked at --looks times more, the one
with the best median is chosen by the first half of the looks, and final_speedup is the median of the second
half. --remeasure takes the winner of each kernel (--each: of each strategy on it) to fresh processes beside
the null experiment. What the summary holds: `strategies_summary.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import gpu_count, per_gpu, read_result, use_gpu, write
from shared_device import SharedDevice, serve
from strategies_summary import summarise
from strategies_units import ABLATIONS, DEFAULT, STRATEGIES, Unit, cut, play, read, restore
from turns import Turns

#: kernels whose strongest baseline is the bundled ptxas's and that annealing made at least 2.8 % faster
#: (schedule-suite.json); five of four families that the shipped policy has not seen, one that it has.
#: Neighbours go to different GPUs
KERNELS = (
    "softmax/512x2048", "quantise_fp8/2048x4096", "attention/1x4x4096x32", "gemv_int4/4096x4096",
    "softmax/512x4095", "layernorm/2048x1024",
)  # fmt: skip
#: kernels of the ablations, one a GPU
ABLATED = KERNELS[:2]
#: an ablation's evaluations, and seconds of GPU and processor after which it ends with fewer
ABLATION_EVALUATIONS, ABLATION_CAP_S = 1000, 150.0
#: most seconds of the search that has a GPU to itself, for its rate
ALONE_CAP_S = 70.0
#: searches that share a GPU: those that mostly think, and the others
THINKERS, OTHERS = 3, 6
#: who thinks steps aside for who has the GPU: beside busy players an owner took 0.9 ms longer an evaluation
PLAYERS_NICE = 5
#: most pairs of blocks that time a candidate, as in `CudaDevice`
PAIRS = 12
#: seconds before the deadline in which nothing new begins
LAST_S = 5.0


def thinks(unit: Unit) -> bool:
    """True for agents with CuAsmRL's network, whose 27 million weights take longer than the GPU."""
    return STRATEGIES[unit.strategy][1].get("policy") == "fresh"


def plan(kernels: Sequence[str], names: Sequence[str], seeds: int, evaluations: int) -> Iterator[Unit]:
    """The comparison's units in their order; ablations at its end if it is whole."""
    for seed in range(seeds):
        # kernel by kernel: a GPU then seldom turns from one kernel's process to another's, and a sitting that
        # is cut leaves more pairs of kernel and seed that have all strategies
        yield from (Unit(k, n, seed, evaluations) for k in kernels for n in names)
    if not (set(names) == set(DEFAULT) and set(ABLATED) <= set(kernels)):
        return
    for seed in range(min(2, seeds)):
        for name in ABLATIONS:
            for k in ABLATED:
                yield Unit(k, name, seed, min(ABLATION_EVALUATIONS, evaluations), ABLATION_CAP_S)


def shares(units: Sequence[Unit], kernels: Sequence[str], gpus: int) -> list[list[Unit]]:
    """Units by GPU. All strategies of a kernel and seed have the same one; with every seed kernels move on by
    two, so that four GPUs have as much to do each though there are six kernels."""
    found: list[list[Unit]] = [[] for _ in range(gpus)]
    for unit in units:
        at = list(kernels).index(unit.kernel)
        mine = [g for g in range(gpus) if g % len(kernels) == at] if gpus > len(kernels) else []
        if not mine:
            mine = [(at + 2 * unit.seed) % gpus]
        found[mine[unit.seed % len(mine)]].append(unit)
    return found


def lonely_or_not(workload: Any, case: str | None, lonely: bool) -> Any:
    """A workload's case by name (None: its first), with one CTA an SM where that is asked for."""
    from sassafras.training import environment as game

    chosen = workload.case(case)
    return game.lonely(chosen) if lonely else chosen


def opener(device: str, lonely: bool, kernel: str, pairs: int = PAIRS) -> Any:
    """(baseline, device, what opens it) of a kernel. `pairs`: of blocks, most that time a candidate."""
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.jobs.opening import DEFAULT_ARCH
    from sassafras.targets import load
    from sassafras.timing_model import ModelDevice

    name, _, case = kernel.partition("/")
    workload = load(f"suite:{name}")
    chosen = lonely_or_not(workload, case or None, lonely)
    made: Any = CudaDevice(pairs=pairs) if device == "cuda" else ModelDevice("sm_90a")
    baseline = workload.build(chosen, getattr(made, "arch", None) or DEFAULT_ARCH)
    return baseline, made, partial(made.open, workload, chosen, baseline)


class Lists:
    """Units of one GPU for whoever has time: two lists, each begun from its front. Travels to processes."""

    def __init__(self, context: Any, units: Sequence[Unit]) -> None:
        self.lists = [[u for u in units if thinks(u)], [u for u in units if not thinks(u)]]
        self.taken = [context.Value("i", 0), context.Value("i", 0)]

    def take(self, first: int) -> Unit | None:
        """The next unit of a list, or of the other where it is empty."""
        for which in (first, 1 - first):
            with self.taken[which].get_lock():
                at = self.taken[which].value
                if at < len(self.lists[which]):
                    self.taken[which].value = at + 1
                    return self.lists[which][at]
        return None


def player(
    connection: Any, lists: Lists, first: int, folder: str, given: dict[str, Any], network: int | None,
    turns: Turns | None,
) -> None:  # fmt: skip
    """A process: plays one unit after the other at a GPU that it shares.

    `network`: the GPU of its networks, the only one that it sees. Nothing is timed there, or it is shared by
    `turns`, and then has the networks of those who mostly think.
    """
    os.nice(PLAYERS_NICE)
    if network is not None:
        use_gpu(network)
    hello = connection.recv()
    while time.time() < given["deadline"] - LAST_S and (unit := lists.take(first)) is not None:
        try:
            device = SharedDevice(connection, hello, unit.kernel)
            away = network is not None and (turns is None or thinks(unit))
            play(
                unit, device, Path(folder), given["lonely"], given["looks"], given["deadline"],
                "cuda" if away else "cpu", turns if thinks(unit) else None,
            )  # fmt: skip
        except EOFError:
            return
        except Exception:
            traceback.print_exc()


def run(parts: list[list[Unit]], folder: Path, given: argparse.Namespace, deadline: float) -> None:
    """Play all units until the deadline; one owner a GPU, and some players."""
    context = get_context("spawn")
    # one thread each, but for those whose settings say otherwise: there are many, and their seconds count
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave their cores to others
    options = {"lonely": given.lonely, "looks": given.looks, "deadline": deadline}
    owners, players = [], []
    # in turn: processes that share a GPU wait for each other's slices of it
    networks = cycle(range(len(parts), len(parts) + given.network_gpus) if given.network_gpus else [None])
    # kept here: a lock that nobody in this process knows any more is gone before its processes have begun
    shared = [Lists(context, units) for units in parts]
    turns = [Turns.new() if given.turns else None for _ in parts]
    opens = partial(opener, given.device, given.lonely, pairs=given.pairs)
    for gpu, (units, lists) in enumerate(zip(parts, shared, strict=True)):
        if not units:
            continue
        heavy, light = (min(len(part), most) for part, most in zip(lists.lists, given.players, strict=True))
        pipes = [context.Pipe() for _ in range(heavy + light)]
        theirs = [end for end, _ in pipes]
        kernels = list(dict.fromkeys(u.kernel for u in units))
        owner = context.Process(target=serve, args=(gpu, kernels, opens, theirs, turns[gpu]))
        owner.start()
        owners.append(owner)
        for n, (_, mine) in enumerate(pipes):
            which = 0 if n < heavy else 1
            network = gpu if given.turns and given.device == "cuda" else next(networks)
            its = (mine, lists, which, str(folder), options, network, turns[gpu])
            process = context.Process(target=player, args=its)
            process.start()
            players.append(process)
        for pipe in pipes:  # each end is held by one process alone, so that its death is noticed
            for end in pipe:
                end.close()
    for process in players:
        process.join()
    for owner in owners:
        owner.join(timeout=30)
        if owner.is_alive():
            owner.kill()
    for lock in turns:
        if lock is not None:
            lock.end()


def remeasure(kernel: str, names: list[str], each: bool, folder: str, deadline: float) -> int:
    """The kernel's winner (each: every strategy's best seed) in fresh processes beside the null."""
    import base64
    import zlib

    from sassafras.core import Candidate
    from sassafras.core.files import write_whole

    rows = [r for r in read(Path(folder)) if r["kernel"] == kernel and r.get("winner")]
    rows = [r for r in rows if r["strategy"] in names and not r["modelled"]]
    wanted = [[r for r in rows if r["strategy"] == name] for name in names] if each else [rows]
    baseline, device, ready = opener("cuda", False, kernel)
    done, opened = 0, False
    try:
        for mine in wanted:
            if not mine or time.time() > deadline:
                continue
            top = max(mine, key=lambda r: r["final_speedup"])
            if "remeasured" in top:
                continue
            if not opened:
                ready()
                opened = True
            cubin = zlib.decompress(base64.b64decode(top["winner"]))
            outcome = device.remeasure(Candidate(baseline.with_cubin(cubin)))
            top["remeasured"] = {
                "verdict": str(outcome.verdict), "speedup": outcome.speedup, "null": outcome.null,
                "low": outcome.interval and outcome.interval.low,
                "high": outcome.interval and outcome.interval.high,
                "null_low": outcome.null_interval and outcome.null_interval.low,
                "null_high": outcome.null_interval and outcome.null_interval.high,
                "baseline_us": outcome.baseline_us,
            }  # fmt: skip
            path = Unit(kernel, top["strategy"], top["seed"], 0).path(Path(folder))
            write_whole(path, json.dumps(top))
            print(kernel, top["strategy"], top["seed"], top["remeasured"], flush=True)
            done += 1
    finally:
        device.close()
    return done


def told(command: str) -> str:
    """A command line without a machine's folders: of a path from the root its last part."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command.split())


def publish(folder: Path, out: str | None, commits: str | None = None) -> Path:
    """strategies.json, from all units in the folder; `commits`: that they were measured at."""
    rows = read(folder)
    if not rows:
        raise SystemExit(f"no units in {folder}: run some first")
    found = [r["environment"] for r in rows if r.get("environment")]
    environment = dict(found[0]) if found else {}
    commands = list(dict.fromkeys(told(e["command"]) for e in found if e.get("command")))
    if commands:
        environment["command"] = commands[0]
    under_way = [] if any(r.get("modelled") for r in rows) else cut(folder)
    kept = [
        {k: round(v, 6) if isinstance(v, float) else v for k, v in r.items()
         if k not in ("environment", "winner", "curve")} | {"curve": thinned(r.get("curve", []))}
        for r in (*rows, *under_way)
    ]  # fmt: skip
    name = "strategies-modelled" if any(r.get("modelled") for r in rows) else "strategies"
    summary = summarise(rows, under_way)
    for strategy, of in summary["strategies"].items():
        print(
            f"{strategy:16} {of['units']:3} units, interquartile mean {of['iqm_final']:.4f} "
            f"[{of['iqm_low']:.4f}, {of['iqm_high']:.4f}]"
        )
    return write(
        name, kept, summary, environment, out=out, commits=commits,
        command="; ".join(["python " + c for c in [*commands, "strategies.py --summary"]]),
    )  # fmt: skip


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """A curve without steps below a hundredth of a percent (its last point stays), as it is published."""
    kept: list[list[float]] = []
    for point in curve:
        if not kept or point[2] > kept[-1][2] + 1e-4 or point is curve[-1]:
            kept.append([point[0], *(round(x, 5) for x in point[1:])])
    return kept


def main() -> None:
    """Command line."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--folder", type=Path, required=True, help="where units are kept")
    parse.add_argument("--kernels", default=",".join(KERNELS))
    parse.add_argument("--strategies", default=",".join(DEFAULT))
    parse.add_argument("--seeds", type=int, default=5)
    parse.add_argument("--evaluations", type=int, default=3000)
    parse.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parse.add_argument("--lonely", action="store_true", help="one CTA an SM (timing model: not chaotic then)")
    parse.add_argument("--looks", type=int, default=14, help="at the leaders, after the search")
    parse.add_argument("--gpus", type=int, help="[default: all]")
    parse.add_argument("--players", default=f"{THINKERS},{OTHERS}", help="searches at a GPU: thinkers,others")
    parse.add_argument(
        "--pairs", type=int, default=PAIRS,
        help="most pairs of blocks that time a candidate: fewer take less time and leave more noise; "
        "the same in all sittings of a comparison",
    )  # fmt: skip
    parse.add_argument(
        "--network-gpus", type=int, default=0,
        help="so many GPUs, the last ones, hold agents' networks, and nothing is timed there [default: 0, "
        "networks are on the CPU]",
    )  # fmt: skip
    parse.add_argument(
        "--turns", action="store_true", help="networks of CuAsmRL's preset are on the GPU that is timed on"
    )
    parse.add_argument("--published", type=Path, help="a strategies.json: what it has whole is not run again")
    parse.add_argument("--seconds", type=float, default=1e7, help="stop after so many")
    parse.add_argument("--remeasure", action="store_true")
    parse.add_argument("--each", action="store_true", help="re-measure every strategy's winner")
    parse.add_argument(
        "--alone", action="store_true", help="CuAsmRL's preset on the first kernel, nobody beside it"
    )
    parse.add_argument("--summary", action="store_true")
    parse.add_argument("--commits", help="of the sittings, where --summary is not run at the only one")
    parse.add_argument("--out")
    given = parse.parse_args()
    given.players = tuple(int(n) for n in given.players.split(","))
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.published:
        count = restore(read_result(given.published, "environment", of="strategies"), given.folder)
        print(f"{count} units of {given.published} are taken as they are", flush=True)
    if given.summary:
        print(publish(given.folder, given.out, given.commits))
        return
    deadline = time.time() + given.seconds
    kernels, names = given.kernels.split(","), given.strategies.split(",")
    if unknown := [n for n in names if n not in STRATEGIES]:
        raise SystemExit(f"unknown strategies {unknown}; there are {', '.join(STRATEGIES)}")
    if len(given.players) != 2 or min(given.players) < 1:
        raise SystemExit("--players are two numbers of at least 1")
    if not 4 <= given.pairs <= 1000:
        raise SystemExit("--pairs is a number of at least 4")
    if given.turns and given.network_gpus:
        raise SystemExit("--turns has the networks on the GPU that is timed on, --network-gpus on others")
    there = (gpu_count() if given.device == "cuda" else 1) or 1
    gpus = given.gpus or there - given.network_gpus
    if given.network_gpus and not 0 < gpus <= there - given.network_gpus < there:
        raise SystemExit(f"{given.network_gpus} of {there} GPUs for networks leave too few to time on")
    if given.remeasure:
        items = [(k, names, given.each, str(given.folder), deadline) for k in kernels]
        for number, result in per_gpu(remeasure, items, gpus):
            if isinstance(result, Exception):
                traceback.print_exception(result)
                print(f"{kernels[number]}: {result}", flush=True)
        print(publish(given.folder, given.out))
        return
    if given.alone:
        name = "fresh_alone_gpu" if given.turns else "fresh_alone"
        # (a search that the deadline cuts has no row; half of the time is the start's)
        unit = Unit(kernels[0], name, 0, given.evaluations, min(ALONE_CAP_S, given.seconds / 2))
        units, gpus, given.players = [unit], 1, (1, 1)
    else:
        units = list(plan(kernels, names, given.seeds, given.evaluations))
    todo = [u for u in units if not u.path(given.folder).exists()]
    run(shares(todo, kernels, gpus), given.folder, given, deadline)
    if read(given.folder):
        print(publish(given.folder, given.out))
    print(f"{sum(not u.path(given.folder).exists() for u in units)} units left", flush=True)


if __name__ == "__main__":
    main()
