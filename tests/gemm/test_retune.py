"""Re-tuning where kernels changed: who enters, what is timed, and what becomes of the shipped dataset."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, ROOM, LtAlgorithm, both_ways
from sassafras.gemm.bench import candidates, runs
from sassafras.gemm.bench.dry_run import DryContestants
from sassafras.gemm.bench.options import Options, carried_over, retuning
from sassafras.gemm.bench.tune import choose, lt_candidates
from sassafras.gemm.configs.base import PLAIN
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.configs.names import parse
from sassafras.gemm.configs.registry import Config, with_dtype
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.dataset import EARLIER, Dataset, DatasetEntry, merge, shipped
from sassafras.gemm.select.table import TunedTable
from tests.scripts import run_benchmark

PARTS = r"^split_k_.*/(c[3-8]|p\d)"
LONG = Shape(512, 256, 16384)


def test_candidates_are_what_changed_and_what_is_recorded() -> None:
    for layout in ("nn", "tn"):
        new = candidates.changed(LONG, layout, PARTS, 16)
        assert len(new) == len(set(new)) == 16
        assert all(
            re.search(PARTS, c.name) and c.layout == layout and c.why_illegal(LONG) is None for c in new
        )
        assert len({c.instance for c in new}) > 5, "several instances"
        assert not [
            c for c in candidates.changed(LONG, layout, PARTS, 16, "_64x128_") if "_64x128_" in c.name
        ]
        known = candidates.recorded(LONG, layout, 4)
        assert known == [config for config, _ in shipped()[LONG].ranked(layout)[:4]]
        assert known[0].name not in {
            c.name for c in candidates.recorded(LONG, layout, 4, re.escape(known[0].name))
        }
    assert candidates.recorded(Shape(7 * 8, 64, 64), "nn", 4) == [], "never recorded"
    assert candidates.changed(Shape(64, 64, 64), "tn", PARTS, 16) == [], "one k tile cannot be split"


def test_what_is_no_expression_or_finds_nothing_is_refused() -> None:
    with pytest.raises(SassafrasError, match="not a regular expression"):
        retuning(Options(), "split_k_(")
    with pytest.raises(SassafrasError, match="no configuration has such a name"):
        retuning(Options(), "^nobody$")


def test_only_they_are_timed() -> None:
    options = retuning(Options(), PARTS, recorded=3, configs=20)
    record = choose(DryContestants(), LONG, options)
    known = {c for layout in ("nn", "tn") for c in candidates.recorded(LONG, layout, 3)}
    stems = {config.stem for config in known}
    rungs = {from_fields(given): (us, rung) for given, us, rung in record["rungs"]}
    assert known <= set(rungs), "in the modes that are recorded, too"
    assert all(re.search(PARTS, config.name) or config.stem in stems for config in rungs)
    assert len(rungs) > 40 and rungs[from_fields(record["ours"])][1] == 2
    assert record["best"].keys() == {"nn", "tn"} and not record["wrong"]
    assert any(c.mode != PLAIN for c in candidates.recorded(Shape(256, 256, 16384), "nn", 3))
    # where nothing changed: the recorded ones alone, without the rung that would send nobody home
    plain = choose(DryContestants(), Shape(64, 64, 64), options)
    assert plain["ours"] and {rung for _, _, rung in plain["rungs"]} <= {1, 2}


def test_another_gpus_best_are_timed_and_all_of_cublaslt() -> None:
    every = shipped()
    for shape in (LONG, Shape(64, 64, 64), Shape(1024, 2048, 512)):
        for layout in ("nn", "tn"):
            found = candidates.carried(shape, layout, "nvidia-h200", 3)
            plain = {replace(c, mode=PLAIN) for c in found}
            best = every[shape].ranked(layout)
            fastest = min(us for _, us in best)
            assert len(found) == len(set(found)) == len(plain) and all(
                c.layout == layout and c.why_illegal(shape) is None for c in found
            )
            assert every[shape].us(found[0]) == fastest, "the fastest in its fastest mode"
            kept = [us for c in found if (us := every[shape].us(c)) and us <= 1.06 * fastest]
            assert kept and len(found) <= 3 + 2 * len({c.FAMILY for c in found})
            for family in {c.FAMILY for c, us in best if us <= 1.25 * fastest}:
                assert family in {c.FAMILY for c in found}, "no kernel that was near is left out"
    assert candidates.carried(Shape(7 * 8, 64, 64), "nn", "nvidia-h200", 3) == [], "never recorded"
    options = carried_over(Options(), "NVIDIA H200", 3)
    stage = DryContestants()
    all_of = len(list(stage.lt.candidates(stage.lt.problem(LONG, "tn"))))
    assert len(lt_candidates(stage, stage.lt.problem(LONG, "tn"), options)) == all_of
    record = choose(DryContestants(), LONG, options)
    names = {c.stem for layout in ("nn", "tn") for c in candidates.carried(LONG, layout, "nvidia-h200", 3)}
    assert {from_fields(given).stem for given, _, _ in record["rungs"]} <= names and record["ours"]
    with pytest.raises(SassafrasError, match="no dataset of this GPU"):
        carried_over(Options(), "NVIDIA H300")


def test_few_of_cublaslt_run_where_its_best_is_known() -> None:
    asked: list[int] = []

    def heuristics(problem: object, workspace: int, count: int = 64) -> list[LtAlgorithm]:
        asked.append(count)
        return [LtAlgorithm("tn", bytes([n]) * 64, 0) for n in range(count)]

    def stage(version: int) -> SimpleNamespace:
        everything = [LtAlgorithm("tn", bytes([n]) * 64, 0) for n in range(40)]
        lt = SimpleNamespace(version=version, heuristics=heuristics, candidates=lambda problem: everything)
        return SimpleNamespace(lt=lt)

    problem = SimpleNamespace(shape=LONG, layout="tn")
    options = retuning(Options(), PARTS)
    version = shipped().header["cublaslt"]
    few = lt_candidates(stage(version), problem, options)
    assert few[0].to_json() == shipped()[LONG].lt["tn"] and asked == [3, 3]
    assert few[0].workspace not in (0, ROOM)
    assert few[1:] == both_ways(heuristics(problem, 0, 3)), "each with and without"
    assert len(lt_candidates(stage(version + 1), problem, options)) == 40, "another library"
    assert len(lt_candidates(stage(version), problem, Options())) == 40, "an ordinary sweep"


def _dataset(**shapes: dict[Config, tuple[float, int]]) -> Dataset:
    entries = [
        DatasetEntry(Shape.parse(text[1:]), ours, {"torch": {"tn": 9.0}, "lt_autotune": {"tn": 4.0}})
        for text, ours in shapes.items()
    ]
    return Dataset({"gpu": "NVIDIA H200", "kernels": "old", "date": "then"}, entries)


def test_merged_winners_are_of_the_new_run_alone() -> None:
    whole, split, other, most = (parse(f"split_k_tn_64x64_s6q1/c{n}") for n in (1, 4, 2, 8))
    old = _dataset(
        _64x64x4096={whole: (1.0, 2), split: (0.5, 2), other: (3.0, 1)}, _64x64x64={whole: (1.0, 2)}
    )
    new = _dataset(_64x64x4096={split: (2.0, 2), most: (1.5, 2)})
    new.header["kernels"] = "new"
    merged = merge(old, new, PARTS)
    entry = merged[Shape(64, 64, 4096)]
    assert entry.ours[whole] == (1.0, 2 - EARLIER) and entry.ours[split] == (2.0, 2)
    assert entry.ours[other] == (3.0, 1 - EARLIER)
    assert merged[Shape(64, 64, 64)] == old[Shape(64, 64, 64)], "what was not re-tuned stays"
    rows = TunedTable.from_dataset(merged).rows
    assert [config for config, _ in rows[Shape(64, 64, 4096), "tn"].ours] == [most]
    assert rows[Shape(64, 64, 64), "tn"].ours[0][0] == whole
    assert merged.header["earlier"]["kernels"] == "old" and merged.header["kernels"] == "new"
    # other kernels' times of what changed are gone; twice merged is as good as once
    gone = merge(old, _dataset(_64x64x4096={whole: (1.1, 2)}), PARTS)[Shape(64, 64, 4096)]
    assert split not in gone.ours and gone.ours[whole] == (1.1, 2)
    assert merge(merged, new, PARTS)[Shape(64, 64, 4096)].ours == entry.ours
    for bad in ("modelled", "gpu"):
        foreign = _dataset(_64x64x64={whole: (1.0, 2)})
        foreign.header[bad] = "something"
        with pytest.raises(SassafrasError):
            merge(old, foreign, PARTS)


def test_what_is_written_is_the_whole_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shipped()
    few = Dataset(whole.header, [whole[shape] for shape in (*sorted(whole.entries)[::50], LONG)])
    monkeypatch.setattr(runs, "shipped", lambda gpu, part: few)
    fast = parse("split_k_tn_64x80_s9q1/c8")
    new = _dataset(_512x256x16384={fast: (9.0, 2)})
    paths = runs.save_sweep(new, tmp_path, changed=PARTS)
    assert [path.name for path in paths] == [
        "nvidia-h200.jsonl.gz", "nvidia-h200.retuned.jsonl.gz", "nvidia-h200.table.json",
    ]  # fmt: skip
    merged = Dataset.load(paths[0])
    assert len(merged) == len(few) > 20 and len(Dataset.load(paths[1])) == 1
    assert merged[LONG].ranked()[0][0] == fast
    assert TunedTable.load(paths[2]).rows[LONG, "tn"].ours == ((fast, 9.0),)


def test_scripts(tmp_path: Path) -> None:
    for command in (
        ["--from", "NVIDIA H200", "--bands", "<1e8", "--shapes", "2", "--gpus", "1", "--fresh"],
        ["--only-configs", PARTS, "--shapes", "6", "--gpus", "1", "--fresh"],
        ["--only-configs", PARTS, "--bands", ">1e12", "--shapes", "1", "--gpus", "1"],
    ):
        done = run_benchmark("hgemm", "sweep", *command, "--dry-run", "--out", tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    # (the journal holds the shapes of the sweep before as well)
    assert done.stdout.startswith("1 of 1 shapes, ") and "shapes, 1 and " not in done.stdout
    assert Dataset.load(tmp_path / "sweep-dry.jsonl.gz").modelled


def test_the_plain_heuristic_gets_what_is_recommended_and_never_less_than_it_asks() -> None:
    stage = DryContestants()
    options = Options(configs=4, known=True)
    given = [a["workspace"] for a in choose(stage, Shape(64, 64, 64), options)["heuristic"].values()]
    assert given == [RECOMMENDED_WORKSPACE] * 2
    wants = [LtAlgorithm("tn", bytes([2]) + bytes(63), 64 << 20)]
    stage.lt.heuristics = lambda problem, workspace, count=64: []
    stage.lt.candidates = lambda problem: wants
    assert choose(stage, Shape(64, 64, 64), Options(configs=4))["heuristic"]["tn"]["workspace"] == 64 << 20


@pytest.mark.parametrize(
    "damage",
    [{"layout": "xx"}, {"blob": "zz"}, {"blob": "00"}, {"workspace": -5}, {"workspace": None}, {"blob": 3}],
)
def test_a_damaged_algorithm_is_refused(damage: dict[str, object]) -> None:
    whole = LtAlgorithm("tn", bytes(64), 256).to_json()
    assert LtAlgorithm.from_json(whole).workspace == 256
    with pytest.raises(SassafrasError, match="not a cuBLASLt algorithm"):
        LtAlgorithm.from_json(whole | damage)
    with pytest.raises(SassafrasError, match="not a cuBLASLt algorithm"):
        LtAlgorithm.from_json({name: whole[name] for name in whole if name not in damage})


def test_bf16_is_selected_among_the_same_configurations_twins() -> None:
    shape = Shape(1024, 2048, 512)
    record = choose(DryContestants(), shape, carried_over(Options(dtype="bf16"), "NVIDIA H200", 3))
    found = [from_fields(given) for given, _, _ in record["rungs"]]
    assert found and {config.dtype for config in found} == {"bf16"}
    fp16 = {
        with_dtype(c, "bf16")
        for layout in ("nn", "tn")
        for c in candidates.carried(shape, layout, "nvidia-h200", 3)
    }
    assert {replace(c, mode=PLAIN) for c in found} <= {replace(c, mode=PLAIN) for c in fp16 if c}
    with pytest.raises(SassafrasError, match="a type that no kernel multiplies"):
        Options(dtype="fp8")
