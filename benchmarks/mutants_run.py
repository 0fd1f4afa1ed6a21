"""Mutants of many kernels, judged by the validator and, if approved, by the second model: mutants-run.json.

    python benchmarks/mutants_run.py FOLDER... --learn FILE      # what the second model learns first
    python benchmarks/mutants_run.py FOLDER... --learnt FILE     # CPU only, all cores, 480 seconds

Every kernel for sm_90 of the cubins in the folders gets the same time (`mutants/shares.py`), up to `--most`
mutants. A mutant has one to four random edits (`mutants/edits.py`): instructions exchanged, moved within a
block or over a branch; stall counts, waits, scoreboards, reuse flags, guards and registers changed. Of each
kernel some copies are planted as well (`planted`: values under wrong names, instructions over branches where
that matters), which `Validator.via` must refuse.

A mutant does not count where its bytes equal the original's, or where the second model sees the same program
instruction by instruction (only yield bits or unused flags differ). An approved one is *equal* by the second
model, or a *disagreement*: wrong, or more than the model knows. A disagreement is written down with its
number: ``--rebuild KERNEL NUMBER`` makes its bytes again for a GPU.

Approved and different must be explained one by one; a kernel of which the second model does not accept the
compiler's own code is left out and named, as is one that was not open when the time was over. The result file
is replaced by a newer one every 30 seconds; at `--seconds` whatever still runs is killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
from common import command_line
from mutants import learning
from mutants.edits import Editor
from mutants.kernel_run import Row, run
from mutants.pool import Event, Job, Pool
from mutants.shares import Item, Shares
from mutants.summary import Results

from sassafras.core import SassafrasError
from sassafras.sass import Emitter, Program
from sassafras.sass.cubin import Cubin

#: seconds between two result files
_WRITE_S = 30.0
#: seconds before the end at which kernels end by themselves
_MARGIN_S = 3.0


def kernels(folders: list[Path], most: int | None) -> list[Item]:
    """Every kernel for sm_90, equal code once; with `most`, as many, evenly taken."""
    found, seen = [], set()
    for number, folder in enumerate(folders):
        for path in sorted(folder.rglob("*.cubin")):
            if "parse-only" in path.parts:
                continue
            try:
                cubin = Cubin.parse(path.read_bytes())
            except SassafrasError:
                continue
            if cubin.sm != 90:
                continue
            for entry in cubin.entries.values():
                mark = hashlib.blake2b(entry.text.data, digest_size=16).digest()
                if mark not in seen:
                    seen.add(mark)
                    shown = str(path.relative_to(folder))
                    found.append(Item(str(path), shown, number, entry.name, entry.text.size // 16))
    if most and most < len(found):
        found = [found[n] for n in np.linspace(0, len(found) - 1, most).astype(int)]
    return found


def rebuild(item: Item, number: int, seed: int, out: Path) -> Path:
    """Write one mutant.

    Raises:
        ValueError: this number changed nothing.
    """
    program = Program.parse(Path(item.path).read_bytes())
    made = Editor(program.function(item.name), seed).make(number)
    if made is None:
        raise ValueError(f"number {number} changed nothing")
    place = Path(out, f"{Path(item.path).stem}-{number}.cubin")
    place.write_bytes(Emitter(program, item.name).write(made[0], made[1]))
    return place


def mutate(options: argparse.Namespace, items: list[Item], taught: learning.Rows, begin: float) -> Row:
    """Run all kernels; write the result file on the way and at the end; its summary."""
    until = begin + options.seconds
    results = Results(len(options.folders), _command(options), options.seed, options.workers, options.out)
    for item in items:
        results.rows[item] = _row(item) | {"left_out": "time: it was not begun"}
    shares, opening = Shares(items, options.workers, until - _MARGIN_S), set[Item]()

    def following() -> Job | None:
        given = shares.following()
        if given is None:
            return None
        item, share_s = given
        opening.add(item)
        results.rows[item]["left_out"] = "time: it was not open"
        arguments = (
            item.path, item.name, share_s, until - _MARGIN_S, options.most, options.seed, options.copies
        )  # fmt: skip
        return Job(item, run, arguments, options.seconds / 3)

    def hear(event: Event) -> None:
        item: Item = event.key
        known = results.rows[item]
        if event.kind in ("said", "done"):
            known.pop("left_out", None)
            known |= event.value
            if item in opening and "opened_s" in known:
                opening.discard(item)
                shares.opened(item, known["opened_s"])
        elif event.kind == "failed":
            known["left_out"] = event.value
        elif "left_out" not in known:
            known["cut"] = "time"
        if event.kind != "said":
            shares.ended(item)
            for found in known.get("disagreements", ()):
                print(f"{known['cubin']}: {item.name[:60]}: {found}", flush=True)

    written = time.time()
    for event in Pool(options.workers, learning.teach, (taught,)).run(following, until):
        if event.kind != "tick":
            hear(event)
        elif time.time() > written + _WRITE_S:
            written = time.time()
            results.write(written - begin)
            print(
                f"{written - begin:.0f} s: {len(shares.left)} kernels left, {results.mutants} mutants",
                flush=True,
            )
    path, summary = results.write(time.time() - begin)
    print(json.dumps({k: v for k, v in summary.items() if k != "left_out"}, indent=1))
    print(f"wrote {path}")
    return summary


def _row(item: Item) -> Row:
    return {"kernel": item.name, "cubin": item.shown, "folder": item.folder, "mutants": 0}


def main() -> int:
    """See the module; 0 where no approved mutant is different."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=480.0, help="time of the whole run, in seconds")
    parser.add_argument("--most", type=int, default=20_000, help="mutants of one kernel, at most")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="worker processes")
    parser.add_argument("--kernels", type=int, help="at most so many, evenly taken")
    parser.add_argument("--copies", type=int, default=1, help="planted copies of each kind and kernel")
    parser.add_argument("--learn", type=Path, metavar="FILE", help="write what all kernels show, and end")
    parser.add_argument("--learnt", type=Path, metavar="FILE", help="read it instead of learning first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rebuild", nargs=2, metavar=("KERNEL", "NUMBER"), help="write a mutant to --out, and end"
    )
    options = parser.parse_args()
    begin = time.time()
    try:
        items = kernels(options.folders, options.kernels)
        if not items:
            raise ValueError("there is no kernel for sm_90 in " + ", ".join(map(str, options.folders)))
        if options.rebuild:
            name, number = options.rebuild
            for item in items:
                if item.name == name:
                    print(rebuild(item, int(number), options.seed, options.out))
            return 0
        if options.learn:
            rows = learning.learn(items, options.workers, begin + options.seconds, _say)
            learning.keep(options.learn, rows)
            return 0
        if options.learnt:
            taught = learning.kept(options.learnt)
        else:
            taught = learning.learn(items, options.workers, begin + 0.25 * options.seconds, _say)
    except ValueError as error:
        parser.error(str(error))
    return 1 if mutate(options, items, taught, begin)["disagreements"] else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _command(options: argparse.Namespace) -> str:
    return (
        f"python mutants_run.py {len(options.folders)} folders --seconds {options.seconds:g} "
        f"--most {options.most} --copies {options.copies} --seed {options.seed}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
