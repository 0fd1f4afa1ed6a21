"""A language model in the loop: proposals for the holes of several workloads, and chance on the same holes.

So that a slow model, a compiler and a GPU need not be in the same place:

    python benchmarks/llm_proposals.py --generate --proposer endpoint:MODEL --base-url URL --count 8
    python benchmarks/llm_proposals.py --generate --proposer mutate --count 8
    python benchmarks/llm_proposals.py --carry                 # cubins for a GPU machine without a compiler
    python benchmarks/llm_proposals.py --measure               # on a GPU: writes llm-proposals.json

``--generate`` asks the model (its compile errors go back to it once), or draws random edits of the same
holes; all are built confined, and what they are is kept in ``benchmarks/llm/proposals.jsonl``, sources
included. ``--measure`` takes what was carried, or builds it again, checks and times each on the GPU,
re-measures the best of each group in fresh processes, and appends every outcome to a journal, so that the
same command goes on after a kill. ``--dry-run`` does the same on the timing model and writes no result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from common import ROOT, write

from sassafras.core import Budget, Candidate, Evaluation, Modelled, SassafrasError, Verdict

WORKLOADS = ("rmsnorm", "bias_gelu", "softmax", "gemv")
PROPOSALS = ROOT / "benchmarks" / "llm" / "proposals.jsonl"


class NotRun:
    """Stands where a device would: what compiles is accepted, nothing is run, no score is made up."""

    name, arch, modelled = "not run", "sm_90a", True

    def run(self, candidate: Candidate) -> Modelled:
        """Equal cycles: neither faster nor slower."""
        return Modelled(candidate.digest, None, 1.0, 1.0)


def space_of(name: str, device: Any, arch: str = "sm_90a", cubins: Path | None = None) -> Any:
    """(workload, case, baseline, space) of an example; the baseline as it was carried, where it was."""
    from sassafras.device.cuda.protocol import kernel_from_facts
    from sassafras.evaluate.source import SourceEvaluator
    from sassafras.frontend import load
    from sassafras.llm.source_space import SourceSpace

    workload = load(str(ROOT / "examples" / "evolve" / f"{name}.py"))
    case = workload.case()
    carried = None if cubins is None else cubins / f"{name}.json"
    if carried is not None and carried.exists():
        data = carried.with_suffix(".cubin").read_bytes()
        baseline = kernel_from_facts(json.loads(carried.read_text()), data)
    else:
        baseline = workload.build(case, arch)
    judge = SourceEvaluator(device, workload, case, baseline)
    return workload, case, baseline, SourceSpace(workload, case, baseline, judge)


def read(path: Path) -> list[dict[str, Any]]:
    """Records of a JSON Lines file; a last line that was cut short is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def append(path: Path, record: dict[str, Any]) -> None:
    """One more line, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


# -- generating -----------------------------------------------------------------------------


class Keep:
    """An evaluator that writes down what every proposal was."""

    def __init__(self, space: Any, path: Path, workload: str, model: str) -> None:
        self.space, self.path, self.workload, self.model = space, path, workload, model

    def evaluate(self, candidate: Candidate) -> Any:
        """The space's own verdict, recorded."""
        outcome = self.space.evaluate(candidate)
        if candidate.recipe.get("origin") != "baseline":
            append(
                self.path,
                {
                    "workload": self.workload, "model": self.model, "digest": candidate.digest,
                    "parent": candidate.recipe.get("parent"), "texts": candidate.recipe.get("texts"),
                    "note": candidate.recipe.get("note", ""),
                    "static": "compiled" if outcome.verdict is None else outcome.verdict.value,
                    "detail": outcome.detail[:600],
                },
            )  # fmt: skip
        return outcome


class Watch:
    """A proposer that says how long each answer took."""

    def __init__(self, proposer: Any, workload: str) -> None:
        self._proposer, self.workload = proposer, workload

    @property
    def name(self) -> str:
        """The proposer's."""
        return str(self._proposer.name)

    def propose(self, request: Any) -> Any:
        """Ask."""
        reply = self._proposer.propose(request)
        print(f"  {self.workload}: {reply.answer_tokens} tokens in {reply.seconds:.0f} s", flush=True)
        return reply


def generate(args: argparse.Namespace) -> None:
    """Ask for proposals of every workload, and draw as many mutations."""
    from sassafras import search
    from sassafras.llm import Meter
    from sassafras.llm.evolve import Evolve
    from sassafras.llm.journal import Remembered
    from sassafras.llm.limits import proposer

    asked = proposer(args.proposer, Meter(), base_url=args.base_url, timeout_s=args.timeout)
    model = asked.name if asked is not None else "mutation"
    if asked is not None:  # a run that was killed asks nothing twice
        asked = Remembered(asked, args.replies)
    for name in args.workloads:
        began = time.monotonic()
        if any(r["workload"] == name and r["model"] == model and "tally" in r for r in read(args.proposals)):
            continue
        *_, space = space_of(name, NotRun())
        counted = Watch(asked, name) if asked is not None else None
        strategy = Evolve(
            counted, contrastive=False, exemplars=0, explore=args.explore, temperature=args.temperature,
            max_tokens=args.max_tokens, repairs=1, give_up=args.count, sections=not args.code_only,
            proposals=args.count,
        )  # fmt: skip
        limit = Budget(evaluations=2 * args.count + 1)
        search.run(strategy, space, Keep(space, args.proposals, name, model), limit, seed=args.seed)
        # nothing was run, so nothing is correct or faster yet
        known = ("proposed", "unreadable", "duplicate", "compiled", "cheated")
        tally = {key: value for key, value in strategy.tally.to_json().items() if key in known}
        record = {"workload": name, "model": model, "tally": tally}
        append(args.proposals, {**record, "seconds": round(time.monotonic() - began, 1), "seed": args.seed})
        print(f"{name}, {model}: {tally}", flush=True)


# -- measuring ------------------------------------------------------------------------------


def groups(records: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """(workload, model, its proposals that compiled), in the order of the file, one per binary."""
    keys = dict.fromkeys((r["workload"], r["model"]) for r in records if "texts" in r or "tally" in r)
    for workload, model in keys:
        mine = [r for r in records if (r["workload"], r["model"]) == (workload, model) and r.get("texts")]
        yield workload, model, list({r["digest"]: r for r in mine if r["static"] == "compiled"}.values())


def carry(args: argparse.Namespace) -> None:
    """Build what compiled, and the baselines: for a machine without a compiler or without Landlock."""
    from sassafras.device.cuda.protocol import kernel_facts

    args.cubins.mkdir(parents=True, exist_ok=True)
    for workload, model, proposals in groups(read(args.proposals)):
        *_, baseline, space = space_of(workload, NotRun())
        (args.cubins / f"{workload}.cubin").write_bytes(baseline.cubin)
        (args.cubins / f"{workload}.json").write_text(json.dumps(kernel_facts(baseline)))
        for proposal in proposals:
            made = space.candidate(space.state(proposal["texts"], space.start(), model, ""))
            (args.cubins / f"{proposal['digest']}.cubin").write_bytes(made.kernel.cubin)
        print(f"{workload}, {model}: {len(proposals)} cubins", flush=True)


def candidate_of(args: argparse.Namespace, space: Any, proposal: dict[str, Any], model: str) -> Candidate:
    """The carried cubin in the baseline's place, or the source built here."""
    path = args.cubins / f"{proposal['digest']}.cubin"
    if path.exists():
        recipe = {"origin": model, "texts": proposal["texts"], "parent": proposal["parent"]}
        return Candidate(space.baseline.with_cubin(path.read_bytes()), recipe)
    made: Candidate = space.candidate(space.state(proposal["texts"], space.start(), model, ""))
    return made


def measure(args: argparse.Namespace) -> None:
    """Check and time what compiled; re-measure each group's best; write the result."""
    records = read(args.proposals)
    journal = Path(args.journal or Path(os.environ.get("OUT", args.proposals.parent)) / "llm-measured.jsonl")
    device = open_device(args.dry_run)
    done = {(r["workload"], r["digest"]): r for r in read(journal) if "verdict" in r}
    finals = {(r["workload"], r["model"]): r for r in read(journal) if "final" in r}
    deadline = time.monotonic() + args.seconds
    opened = None
    for workload, model, proposals in groups(records):
        waiting = [p for p in proposals if (workload, p["digest"]) not in done]
        if not waiting and (workload, model) in finals:
            continue
        if opened is None or opened[0] != workload:
            loaded = space_of(workload, device, device.arch, args.cubins)
            device.open(*loaded[:3])
            opened = (workload, loaded)
        space = opened[1][3]
        found: dict[str, Any] = {}
        for proposal in proposals:
            if time.monotonic() > deadline:
                print("out of time; the same command goes on", flush=True)
                return
            candidate = candidate_of(args, space, proposal, model)
            known = done.get((workload, proposal["digest"]))
            if known is None:
                known = judge(space, candidate, workload, proposal["digest"])
                append(journal, known)
                done[workload, proposal["digest"]] = known
            if known.get("speedup"):
                found[proposal["digest"]] = (known["speedup"], candidate)
        best = max(found.values(), default=None, key=lambda row: row[0])
        final = {"workload": workload, "model": model, "final": final_of(device, best)}
        append(journal, final)
        finals[workload, model] = final
    device.close()
    rows, summary = summarise(records, done, finals)
    if args.dry_run:
        print(json.dumps(summary, indent=1))
        return
    print("wrote", write("llm-proposals", rows, summary, device.environment(), out=args.out))


def open_device(dry_run: bool) -> Any:
    """The GPU, comparing with the reference; or the timing model between programs."""
    if dry_run:
        from sassafras.llm.program_model import ProgramModel

        return ProgramModel()
    from sassafras.device import CudaDevice

    return CudaDevice(bitwise=False)


def judge(space: Any, candidate: Candidate, workload: str, digest: str) -> dict[str, Any]:
    """One outcome as a record."""
    outcome = space.evaluate(candidate)
    verdict = "modelled" if outcome.verdict is None else outcome.verdict.value
    record = {"workload": workload, "digest": digest, "verdict": verdict, "detail": outcome.detail[:300]}
    if outcome.cost is not None:
        record["speedup"] = 1 / outcome.cost
    return record


def final_of(device: Any, best: tuple[float, Candidate] | None) -> dict[str, Any]:
    """The frozen winner of a group, in fresh processes beside the null; empty when there is none."""
    if best is None or device.modelled:
        return {}
    outcome = device.remeasure(best[1])
    if not isinstance(outcome, Evaluation) or not outcome.verdict.ok:
        return {"verdict": str(outcome.verdict), "detail": outcome.detail[:300]}
    assert outcome.interval is not None
    assert outcome.null_interval is not None
    return {
        "verdict": str(Verdict.CORRECT), "speedup": outcome.speedup, "speedup_low": outcome.interval.low,
        "speedup_high": outcome.interval.high, "null": outcome.null, "null_low": outcome.null_interval.low,
        "null_high": outcome.null_interval.high, "digest": outcome.digest,
        "faster": outcome.interval.low > max(1.0, outcome.null_interval.high),
    }  # fmt: skip


def summarise(
    records: list[dict[str, Any]], done: dict[tuple[str, str], dict[str, Any]], finals: dict[Any, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows by workload and model, and their totals by model."""
    rows = []
    for workload, model, proposals in groups(records):
        mine = [r for r in records if (r["workload"], r["model"]) == (workload, model)]
        tally = next((r["tally"] for r in mine if "tally" in r), {})
        judged = [done[workload, p["digest"]] for p in proposals if (workload, p["digest"]) in done]
        verdicts = Counter(row["verdict"] for row in judged)
        static = Counter(r["static"] for r in mine if "static" in r)
        rows.append(
            {
                "workload": workload, "model": model, "proposed": tally.get("proposed", len(mine)),
                "unreadable": tally.get("unreadable", 0), "duplicate": tally.get("duplicate", 0),
                "compiled": static["compiled"], "correct": verdicts["correct"],
                "faster": sum(row.get("speedup", 0) > 1 and row["verdict"] == "correct" for row in judged),
                "cheated": verdicts["cheated"] + static["cheated"], "verdicts": dict(verdicts),
                "best": finals.get((workload, model), {}).get("final", {}),
            }
        )  # fmt: skip
    summary: dict[str, Any] = {"workloads": len({row["workload"] for row in rows})}
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        keys = ("proposed", "unreadable", "duplicate", "compiled", "correct", "faster", "cheated")
        summary[model] = {key: sum(row[key] for row in own) for key in keys}
        summary[model]["workloads_faster"] = sum(bool(row["best"].get("faster")) for row in own)
    return rows, summary


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generate", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--carry", action="store_true", help="build what compiled into --cubins")
    parser.add_argument("--cubins", type=Path, default=ROOT / ".carry" / "llm", help="built beforehand")
    parser.add_argument("--dry-run", action="store_true", help="on the timing model; writes no result")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--proposer", default="mutate")
    parser.add_argument("--base-url")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--count", type=int, default=8, help="proposals a workload")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--explore", type=float, default=0.5)
    parser.add_argument("--max-tokens", type=int, default=500)
    parser.add_argument("--code-only", action="store_true", help="no analysis, no design: for small models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--proposals", type=Path, default=PROPOSALS)
    parser.add_argument(
        "--replies", type=Path, default=Path("sassafras-out/replies.jsonl"), help="raw answers"
    )
    parser.add_argument(
        "--journal", help="outcomes, by default llm-measured.jsonl in $OUT or beside the proposals"
    )
    parser.add_argument("--seconds", type=float, default=480.0, help="measure for no longer than this")
    parser.add_argument("--out", help="folder of the result file")
    args = parser.parse_args()
    if args.generate + args.measure + args.carry != 1:
        parser.error("one of --generate, --carry and --measure")
    try:
        generate(args) if args.generate else carry(args) if args.carry else measure(args)
    except SassafrasError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
