"""Judges unmodified kernels of other projects: writes third-party.json. Needs no GPU.

    python benchmarks/third_party.py FOLDER [--jobs 2] [--out FOLDER]
    python benchmarks/third_party.py --draw 12 [--seed 0] [--without REASONS.json]     # kernels to search

FOLDER holds cubins and ``index.json``: ``{"cubins": [...], "not_compiled": [...]}``. An entry names its
repository, commit, kernel, configuration, arch and compiler; of a cubin also ``path`` below FOLDER, ``entry``
(the kernel's name in it) and ``sha256``. The result carries names and digests only. Each answer is a line of
``judged.jsonl`` in FOLDER, and the same command with the same validator goes on behind them; ``refused.json``
holds every violation of what is refused.

The rule of choosing:

1. A repository counts if it is public and its kernels compile with Triton 3.6.0 or with nvcc.
2. Kernels are those that the authors' own entry points launch, with the argument types, alignments and
   constants of that launch.
3. Configurations are the authors' own: the list that their autotuner tries for that launch, in their order,
   after their own pruning. Of more than ten, ten evenly spaced ones with the first and the last (`choose`).
   Without a list: the distinct specialisations that the launches make, under the same limit. For templates in
   CUDA C++: the instances that the authors' build, test or tuning policy names.
4. A configuration that does not compile for sm_90 is listed as not compiled and is not counted.
5. Nothing is dropped because it is refused.

``--draw`` prints kernels, not configurations, in a seeded order, at most two a repository. Drawn from are
those with an accepted configuration that Triton compiles, since a capture records no other launch. What
cannot be launched or captured is named with its reason in REASONS.json, ``{"KERNEL": "reason"}``: it takes no
place, and is printed with those that a full repository leaves out.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from common import RESULTS, Lines, command_line, read_result, validator_digest, without_gpu, write

T = TypeVar("T")
Row = dict[str, Any]

#: configurations of one kernel, at most
MOST = 10
#: kernels of one repository in a draw, at most
OF_ONE = 2

#: what a row of the result carries
PUBLIC = ("repository", "commit", "kernel", "configuration", "arch", "compiler", "sha256")
PUBLIC += ("accepted", "reason", "explanation")

#: words of a violation -> why code is refused although it is the compiler's own
EXPLAINED: dict[str, str] = {
    "more than 63 times without a wait": "a scoreboard counts to 63; that the issue is held up before was "
    "measured for some operations that raise it alone, not for LDGSTS nor for operations of several queues",
    "not judged in the time given": "the proof takes longer than the time limit of the run",
}


def choose(configurations: Sequence[T], most: int = MOST) -> list[T]:
    """At most `most` of a list, in its order: the first, the last and evenly spaced ones between them.

    Raises:
        ValueError: `most` is below 2.
    """
    if most < 2:
        raise ValueError(f"at least 2 of a list, not {most}")
    if len(configurations) <= most:
        return list(configurations)
    last = len(configurations) - 1
    return [configurations[(2 * i * last + most - 1) // (2 * (most - 1))] for i in range(most)]


def draw(
    rows: Sequence[Row], count: int, seed: int, without: Mapping[str, str]
) -> tuple[list[Row], list[Row]]:
    """The first `count` kernels of a seeded order, and those passed over ahead of the last, with the reason.

    Args:
        without: by name, why a kernel cannot be used.

    Raises:
        ValueError: `without` names no kernel of these, or `count` is no number of those that are left.
    """
    found = sorted(
        {
            (row["repository"], row["commit"], row["kernel"])
            for row in rows
            if row["accepted"] and row["compiler"].startswith("triton")
        }
    )
    if unknown := set(without) - {kernel for *_, kernel in found}:
        raise ValueError(f"no kernel to draw is called {', '.join(sorted(unknown))}")
    taken: list[Row] = []
    passed: list[Row] = []
    for index in np.random.default_rng(seed).permutation(len(found)):
        if len(taken) == count:
            break
        row: Row = dict(zip(("repository", "commit", "kernel"), found[index], strict=True))
        full = sum(each["repository"] == row["repository"] for each in taken) == OF_ONE
        reason = f"{OF_ONE} of its repository are drawn" if full else without.get(row["kernel"])
        if reason:
            passed.append({**row, "reason": reason})
        else:
            taken.append(row)
    if not 0 < count <= len(taken):
        raise ValueError(f"{len(taken)} kernels can be drawn, not {count}")
    return taken, passed


def judge(folder: str, entry: Row) -> Row:
    """The row of one cubin; `violations` holds every violation of a refused one in full.

    Raises:
        ValueError: the cubin is not the one that the index names.
    """
    from sassafras.core import SassafrasError
    from sassafras.validate import Validator

    data = Path(folder, entry["path"]).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{entry['path']} is not the cubin that the index names")
    begin = time.perf_counter()
    try:
        violations = [str(violation) for violation in Validator(data, entry["entry"]).check(data).violations]
    except SassafrasError as error:
        violations = [f"{type(error).__name__}: {error}"]
    except Exception as error:  # a fault of ours is a refusal, too
        violations = [f"{type(error).__name__}: {error} (not an error of the library's own)"]
    return {
        **entry,
        "accepted": not violations,
        "reason": violations[0] if violations else None,
        "seconds": round(time.perf_counter() - begin, 2),
        "violations": violations,
    }


def explanation(violations: Sequence[str]) -> str | None:
    """Why the code is refused, if each of its violations is explained."""
    found = [next((why for words, why in EXPLAINED.items() if words in text), None) for text in violations]
    return "; ".join(dict.fromkeys(str(why) for why in found)) if found and all(found) else None


def summarise(rows: Sequence[Row], not_compiled: Sequence[Row]) -> Row:
    """The counts of a run.

    Raises:
        ValueError: a kernel has more than `MOST` configurations.
    """
    each = Counter((row["repository"], row["kernel"]) for row in rows)
    if over := [name for (_, name), count in each.items() if count > MOST]:
        raise ValueError(f"more than {MOST} configurations of {', '.join(over)}")
    refused = [row for row in rows if not row["accepted"]]
    return {
        "configurations": len(rows),
        "distinct_cubins": len({row["sha256"] for row in rows}),
        "kernels": len(each),
        "repositories": len({row["repository"] for row in rows}),
        "accepted": len(rows) - len(refused),
        "refused": len(refused),
        "refused_unexplained": sum(row["explanation"] is None for row in refused),
        "accepted_percent": round(100 * (1 - len(refused) / len(rows)), 2) if rows else None,
        "not_compiled": len(not_compiled),
    }


def judge_all(folder: Path, entries: Sequence[Row], jobs: int, seconds: float | None = None) -> list[Row]:
    """The rows of all entries, in their order; small cubins are judged first.

    What is not judged when no answer came for `seconds` counts as refused.
    """
    answers, by = Lines(folder / "judged.jsonl"), validator_digest()
    done = {(row["sha256"], row["entry"]): row for row in answers.rows if row["validator"] == by}
    todo = {(entry["sha256"], entry["entry"]): entry for entry in entries}
    left = sorted(
        (entry for key, entry in todo.items() if key not in done),
        key=lambda entry: (folder / entry["path"]).stat().st_size,
    )
    # a worker's caches grow with every kernel
    with get_context("spawn").Pool(jobs, maxtasksperchild=25) as pool:
        answered = pool.imap_unordered(functools.partial(judge, str(folder)), left)
        for _ in left:
            try:
                row = answered.next(timeout=seconds)
            except TimeoutError:
                break
            row["validator"] = by
            done[row["sha256"], row["entry"]] = row
            answers.add(row)
    late = "not judged in the time given"
    unjudged: Row = {"accepted": False, "reason": late, "violations": [late]}
    rows = [{**done.get((entry["sha256"], entry["entry"]), unjudged), **entry} for entry in entries]
    return [{**row, "explanation": explanation(row["violations"])} for row in rows]


def main() -> None:
    """Judge every cubin of a folder, or draw kernels."""
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=2, help="Worker processes.")
    parser.add_argument("--seconds", type=float, help="Give up when no answer came for so long.")
    parser.add_argument("--draw", type=int, metavar="N", help="Print N kernels of third-party.json.")
    parser.add_argument("--seed", type=int, default=0, help="Of the draw.")
    parser.add_argument("--without", type=Path, help="Reasons by kernel that cannot be used.")
    options = parser.parse_args()
    if (options.folder is None) == (options.draw is None):
        parser.error("name a folder or --draw")
    if options.draw is not None:
        result = read_result(RESULTS / "third-party.json", of="third-party")
        try:
            without = dict(json.loads(options.without.read_text())) if options.without else {}
            taken, passed = draw(result["rows"], options.draw, options.seed, without)
        except (OSError, TypeError, ValueError) as error:
            parser.error(f"--draw {options.draw} --without {options.without}: {error}")
        print(json.dumps({"seed": options.seed, "drawn": taken, "passed_over": passed}, indent=1))
        return
    try:
        index = json.loads((options.folder / "index.json").read_text())
        index["cubins"], index["not_compiled"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{options.folder} has no index.json as the module describes it: {error!r}")
    rows = judge_all(options.folder, index["cubins"], options.jobs, options.seconds)
    summary = summarise(rows, index["not_compiled"])
    refused = [row for row in rows if not row["accepted"]]
    (options.folder / "refused.json").write_text(json.dumps(refused, indent=1) + "\n")
    environment = without_gpu() | {"nvdisasm": version("nvidia-cuda-nvdisasm")}
    environment["compilers"] = sorted({row["compiler"] for row in rows})
    public = [{name: row[name] for name in PUBLIC} for row in rows]
    command = "python benchmarks/third_party.py FOLDER"
    write("third-party", public, summary, environment, out=options.out, command=command)
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
