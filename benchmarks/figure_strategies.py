"""What the pages say of strategies.json: tables and sentences, or that nothing has been measured yet."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from figure_results import Row, result
from strategies_units import ABLATIONS

NOT_YET = "Not measured yet.\n"
#: strategies and ablations as a reader calls them
NAMES = {
    "random_walk": "random walk", "guided": "guided annealing",
    "guided_experience": "guided, no network", "ppo_fresh": "PPO fresh (CuAsmRL's preset)",
    "ppo_pretrained": "PPO pre-trained", "ppo_twin": "PPO, untrained twin",
    "fresh_as_it_is": "the preset", "fresh_no_mask": "no mask",
    "fresh_all_features": "all features", "fresh_all_moves": "all moves",
    "fresh_noisy_reward": "noisy reward (0.2 %)", "walk_memory_moves": "its moves drawn by chance, no agent",
    "greedy_memory_moves": "its moves, greedy search",
}  # fmt: skip


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    titles = head.split(" | ")
    return (
        "\n".join([f"| {head} |", "|" + "---|" * len(titles), *("| " + " | ".join(r) + " |" for r in rows)])
        + "\n"
    )


def _name(strategy: str) -> str:
    return NAMES.get(strategy, strategy)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"


def _count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else value or "-"


def _more(values: Iterable[float]) -> str:
    """The mean of percents with its sign; what rounds to nothing has none below."""
    given = list(values)
    return f"{round(sum(given) / len(given), 2) + 0.0:+.2f} %"


def _searches(count: int) -> str:
    return f"{count} search" + ("" if count == 1 else "es")


def _measured(make: Callable[[Row], str]) -> Callable[[], str]:
    """A table that says so where there is no file."""

    @functools.wraps(make)
    def made() -> str:
        try:
            found = result("strategies")
        except FileNotFoundError:
            return NOT_YET
        return make(found["summary"])

    return made


@_measured
def comparison(of: Row) -> str:
    """One row a strategy, best interquartile mean first."""
    rows = []
    for name, it in sorted(of["strategies"].items(), key=lambda item: -item[1]["iqm_final"]):
        never = it["never_reached_90_percent"]
        rows.append([
            _name(name), f"{it['units']}",
            f"**{it['iqm_final']:.3f}x** [{it['iqm_low']:.3f}, {it['iqm_high']:.3f}]",
            _times(it["geomean_final"]),
            _count(it["evaluations_to_90_percent"]), f"{never} of {it['could_reach']}",
            _times(it["geomean_believed_at_equal_gpu_seconds"]),
            _times(it["geomean_believed_at_equal_seconds"]),
            f"{it['gpu_ms_an_evaluation']:.1f}", f"{it['median_cpu_seconds']:.0f}",
        ])  # fmt: skip
    head = (
        "strategy | searches | interquartile mean | geometric mean | evaluations to 90 % | never | "
        "equal GPU seconds | equal seconds | GPU ms | thought, s"
    )
    return _table(head, rows)


@_measured
def unfinished(of: Row) -> str:
    """Strategies whose searches were cut, beside the others after as many evaluations."""
    lines = []
    for name, it in of["unfinished"].items():
        apart = ", ".join(f"{_name(o)} {_times(v)}" for o, v in it["others"].items())
        lines.append(
            f"**{_name(name)}** is not in the tables: {it['over']} of its {len(it['searches'])} searches are "
            f"over, the others were cut by the end of the sitting after {it['median_evaluations']:,.0f} "
            f"evaluations in the median. By then it believed {_times(it['geomean_believed'])} in geometric "
            f"mean ({it['judged']} searches); after as many evaluations on the same kernels the others "
            f"believed: {apart}."
        )
    return "\n".join(lines) + "\n" if lines else "All strategies are in the tables.\n"


@_measured
def kernels(of: Row) -> str:
    """One row a kernel: geometric mean over seeds by strategy."""
    names = list(of["strategies"])
    rows = [[k, *(_times(by.get(n)) for n in names)] for k, by in of["by_kernel"].items()]
    return _table(" | ".join(["kernel", *map(_name, names)]), rows)


@_measured
def said(of: Row) -> str:
    """What the comparison comes to, in words."""
    best = of["best_interquartile_mean"]
    same = ", ".join(map(_name, of["not_told_apart_from_it"]))
    seeds = {name: len(s) for name, s in of["seeds"].items()}
    fewest, most = min(seeds.values()), max(seeds.values())
    how_many = f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"
    twin, wrong = of["pretrained_over_twin"], sum(s["wrong_or_crashed"] for s in of["strategies"].values())
    refused = sum(s["refused"] for s in of["strategies"].values())
    lines = [
        f"{of['units']} searches ({how_many}), {of['searched_evaluations']:,} evaluations with ablations and "
        f"pre-ranking; {refused} refused by the validator, {wrong} wrong or crashed. "
        + (
            f"The highest interquartile mean is that of **{_name(best)}**, which these searches do not tell "
            f"apart from {same} (intervals overlap)."
            if same
            else f"**The winner is {_name(best)}**, by interquartile mean; no other interval reaches its."
        ),
        f"The pre-trained policy ended above its untrained twin on {twin['better']} of {twin['pairs']}, "
        f"below on {twin['worse']}.",
        *(
            f"{name} ended above {other} on {it['better']} of {it['pairs']}, below on {it['worse']}."
            for name, other, key in (
                ("Guided annealing", "annealing", "guided_over_anneal"),
                ("Without the network it", "annealing", "experience_over_anneal"),
                ("With the network it", "itself without", "guided_over_experience"),
            )
            if (it := of[key])["pairs"]
        ),
    ]
    if above := of["above"].get("ppo_fresh"):
        beaten = "; ".join(f"{_name(other)} {count}" for other, count in above.items())
        pairs = of["strategies"]["ppo_fresh"]["units"]
        lines.append(f"CuAsmRL's preset, of {pairs} pairs of kernel and seed, ended above: {beaten}.")
    training, rank = of["training"], of["prerank"]
    for key, where in (
        ("alone", "with a GPU to itself, its network on the CPU"),
        ("alone_gpu", "with a GPU to itself and its network on it"),
        ("shared_gpu", "of GPU and thought added up, the network on the CPU or on another GPU"),
        ("shared_turns", "of GPU and thought added up, the network on the GPU that is timed on"),
    ):  # fmt: skip
        if it := training.get(key):
            lines.append(
                f"CuAsmRL's preset: {it['steps_per_second']:.0f} steps and "
                f"{it['evaluations_per_second']:.0f} evaluations a second {where} ({_searches(it['units'])}; "
                f"{_count(it['median_evaluations'])} "
                f"evaluations, {_count(it['median_steps'])} steps, {it['median_seconds']:.0f} s)."
            )
    if rank["median_saved"] is not None:
        lines.append(
            f"Annealing whose proposals the timing model had ranked before (best of {rank['pool']}) needed "
            f"{1 - rank['median_saved']:.1f} times as many evaluations to the same result, in the median of "
            f"{rank['pairs']} pairs."
        )
    return "\n".join(lines) + "\n"


@_measured
def transfer(of: Row) -> str:
    """Evaluations to 90 % of annealing's log-gain, on kernels of unseen families."""
    it = of["transfer"]
    names = list(it["median_ratio"])
    rows = [
        [k["kernel"], _times(k["annealing_final"]),
         *(_count(k["evaluations_to_90_percent"][n]) for n in ("anneal", *names))]
        for k in it["kernels"]
    ]  # fmt: skip

    def concluded(name: str) -> str:
        ratio = it["median_ratio"][name]
        return f"{_name(name)} **{it['conclusion'][name]}**" + (
            f" (median ratio {ratio:.2f})" if ratio else ""
        )

    return (
        _table(" | ".join(["kernel", "annealing's gain", "annealing", *map(_name, names)]), rows)
        + f"\nThe goal, {it['goal']}: {'; '.join(map(concluded, it['conclusion']))}.\n"
    )


@_measured
def pairs(of: Row) -> str:
    """How often each strategy ended above each other, of pairs of kernel and seed."""
    names = sorted(of["above"], key=lambda n: -of["strategies"][n]["iqm_final"])
    rows = [
        [_name(one), *("" if one == other else f"{of['above'][one][other]}" for other in names)]
        for one in names
    ]
    return _table(" | ".join(["above", *map(_name, names)]), rows)


@_measured
def ablations(of: Row) -> str:
    """CuAsmRL's preset and one change each; below them strategies after as many evaluations."""
    if not (it := of["ablations"]):
        return NOT_YET
    kernels = sorted({k for change in it["changes"].values() for k in change["final"]})
    rows = [
        [_name(name), f"{change['units']}", *(_times(change["final"].get(k)) for k in kernels),
         *(_times(change["believed"].get(k)) for k in kernels),
         "" if name == "fresh_as_it_is" else
         f"{change['above_as_it_is']['better']} of {change['above_as_it_is']['pairs']}",
         _count(change["median_evaluations"]), _count(change["median_steps"]),
         f"{change['ended_by'].get('returned', 0)}"]
        for name, change in it["changes"].items()
    ]  # fmt: skip
    rows += [
        [f"*{_name(name)}*", "", *("" for _ in kernels), *(_times(by.get(k)) for k in kernels), "",
         _count(it["evaluations"]), "", ""]
        for name, by in it["beside"].items()
    ]  # fmt: skip
    missing = [_name(n) for n in ABLATIONS if n not in it["changes"]]
    head = " | ".join([
        "preset with", "searches", *kernels, *(f"believed, {k.split('/')[0]}" for k in kernels),
        "above the preset", "evaluations", "steps", "gave up",
    ])  # fmt: skip
    return _table(head, rows) + (f"\nNot measured yet: {'; '.join(missing)}.\n" if missing else "")


def room() -> str:
    """What the preset's set of moves holds, by kernel; needs no GPU."""
    try:
        rows = result("strategies-room")["rows"]
    except FileNotFoundError:
        return NOT_YET
    lines = [
        [r["kernel"], f"{r['instructions']:,}", f"{r['memory_actions']}", f"{r['all_actions']:,}",
         f"{r['distinct']:,}", f"{r['longest_without_new']:,}"]
        for r in rows
    ]  # fmt: skip
    head = "kernel | instructions | the preset's moves | all moves | schedules found | longest without a new"
    return _table(head + " one", lines)


def ablation_values(rows: Iterable[Row]) -> dict[str, str]:
    """Each ablation beside the preset with the same kernel and seed: by how many percent it ended above (mean
    of log ratios; below: negative), over all pairs and by kernel, how often, its fewest and most evaluations;
    ``seeds_apart``: most that two of the preset's own seeds differ on one kernel."""
    by = {(r["kernel"], r["seed"], r["strategy"]): r for r in rows if not r.get("cut") and "error" not in r}
    preset = {(k, s): 100 * math.log(r["final_speedup"]) for (k, s, n), r in by.items() if n == ABLATIONS[0]}
    apart = [abs(a - b) for (k, _), a in preset.items() for (other, _), b in preset.items() if k == other]
    found = {"seeds_apart": f"{max(apart, default=0.0):.2f} %", "pairs": f"{len(preset)}"}
    for name in ABLATIONS:
        mine = {(k, s): r for (k, s, n), r in by.items() if n == name}
        more = {at: 100 * math.log(r["final_speedup"]) - preset[at] for at, r in mine.items() if at in preset}
        if not more:
            continue
        seconds = [r["seconds"] for r in mine.values()]
        found |= {
            f"{name}.percent": _more(more.values()),
            f"{name}.above": f"{sum(v > 0 for v in more.values())}",
            f"{name}.fewest": f"{min(r['evaluations'] for r in mine.values()):,}",
            f"{name}.most": f"{max(r['evaluations'] for r in mine.values()):,}",
            f"{name}.least_seconds": f"{min(seconds):.0f}", f"{name}.most_seconds": f"{max(seconds):.0f}",
        }  # fmt: skip
        for kernel in {k for k, _ in more}:
            these = [v for (k, _), v in more.items() if k == kernel]
            found[f"{name}.{kernel.split('/')[0]}"] = _more(these)
            best = max(r["final_speedup"] for (k, _), r in mine.items() if k == kernel)
            found[f"{name}.{kernel.split('/')[0]}.best"] = f"{best:.3f}x"
    return found


def values() -> dict[str, str]:
    """Figures of strategies.json and strategies-room.json that pages quote."""
    whole = result("strategies")
    of, held = whole["summary"], result("strategies-room")["summary"]
    training = of["training"]
    found = {
        "searches": f"{of['units']}", "pairs": f"{of['strategies']['anneal']['units']}",
        "evaluations": f"{of['searched_evaluations']:,}",
        "whole": f"{training['whole']['units']}",
        "whole.seconds": f"{training['whole']['median_seconds']:.0f}",
        "whole.wall": f"{training['whole_wall_seconds']:.0f}",
        "gave_up": f"{training['ended_by'].get('returned', 0)}",
        "least": f"{training['least_evaluations']}",
        "room.least": f"{100 * held['least_share']:.1f} %", "room.most": f"{100 * held['most_share']:.1f} %",
        "room.idle": f"{held['longest_without_new']:,}", "room.distinct": f"{held['least_distinct']:,}",
        "apart.before": f"{training['shared_gpu']['units']}",
        "apart.after": f"{training['shared_turns']['units']}",
        "apart.percent": f"{abs(training['turns_apart']['percent']):.2f} %",
        "apart.p": f"{training['turns_apart']['p']:.2f}",
        "transfer.guided": f"{of['transfer']['median_ratio']['guided']:.2f}",
        "transfer.ppo": f"{of['transfer']['median_ratio']['ppo_pretrained']:.2f}",
    }  # fmt: skip
    found |= {f"ablations.{name}": text for name, text in ablation_values(whole["rows"]).items()}
    if needed := [1.0 - saved for saved in of["prerank"]["by_kernel"].values()]:
        found |= {
            "prerank.pairs": f"{of['prerank']['pairs']}", "prerank.kernels": f"{len(needed)}",
            "prerank.worse": f"{sum(v > 1.0 for v in needed)}",
            "prerank.least": f"{min(needed):.1f}", "prerank.most": f"{max(needed):.1f}",
        }  # fmt: skip
    for name, by in of["above"].items():
        found |= {f"{name}.above.{other}": f"{count}" for other, count in by.items()}
    for name, it in of["strategies"].items():
        found |= {
            f"{name}.iqm": f"{it['iqm_final']:.3f}",
            f"{name}.equal": _times(it["geomean_believed_at_equal_seconds"]),
        }
    for key in ("alone", "alone_gpu", "shared_gpu", "shared_turns"):
        if it := training[key]:
            found |= {
                f"{key}.steps": f"{it['steps_per_second']:.0f}",
                f"{key}.evaluations": f"{it['evaluations_per_second']:.0f}",
            }
    return found


@_measured
def remeasured(of: Row) -> str:
    """Winners in five fresh processes, beside the null experiment."""
    rows = [
        [it["kernel"], _name(it["strategy"]), f"{it['seed']}", _times(it["final_speedup"]),
         f"**{_times(r['speedup'])}** [{r['low']:.3f}, {r['high']:.3f}]",
         f"{r['null']:.3f} [{r['null_low']:.3f}, {r['null_high']:.3f}]"]
        for it in of["remeasured"] if (r := it["remeasured"]) and r["speedup"] and r["low"] and r["null_low"]
    ]  # fmt: skip
    if not rows:
        return NOT_YET
    return _table("kernel | found by | seed | the search's last looks | re-measured | null", rows)


TABLES: dict[str, Callable[[], str]] = {
    "strategies": comparison, "strategies-kernels": kernels, "strategies-said": said,
    "strategies-unfinished": unfinished, "strategies-transfer": transfer,
    "strategies-ablations": ablations, "strategies-remeasured": remeasured, "strategies-pairs": pairs,
    "strategies-room": room,
}  # fmt: skip
