"""`benchmarks/peers.py`: packs, workers that die, resumption and the summary, on the modelled clock."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sassafras.gemm.problem.shape import BANDS, Shape, cuda_l2_grid, stratified

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KERNELS = "kernels/h100_F32F16F16F32"
#: what a library does at its nth call
LIBRARY = """
extern "C" {
static int calls = 0, relieved = 0;
int peers_call(void*, void*, void*, void*, long long, long long, long long, void*) { ++calls; %s }
const char* peers_trouble() { return "no kernel for this"; }
void peers_relieve(int yes) { relieved = yes; }
}
"""
BODIES = {
    "64x64x64": "return 0;",
    "64x64x128": "__builtin_trap();",
    "64x128x64": "return 1;",
    "128x64x64": "return calls == 2;",  # the first capture
    "64x64x256": "return relieved == 0 && calls > 1 && calls < 3;",
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers
    import peers_build

    return peers, peers_build


def committed(folder: Path, files: dict[str, str]) -> Path:
    """A checkout with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def test_a_pack_is_drawn_by_bands_and_is_the_same_each_time(modules: Any, tmp_path: Path) -> None:
    _, building = modules
    shapes = stratified(cuda_l2_grid(), 60)
    text = "#include <torch/types.h>\nauto BM = Int<96>{};\nconst auto BN=Int<64>{};\nauto kBK = Int< 32 >{};"
    theirs = committed(
        tmp_path / "l2",
        {f"{KERNELS}/{s.m}_{s.n}_{s.k}.cu": text if s.m == 64 else "CollectiveBuilder" for s in shapes},
    )
    cutlass = committed(tmp_path / "cutlass", {"include/a.h": "", "tools/util/include/b.h": "", "other": "x"})

    def packed(count: int, seed: int) -> dict[str, Any]:
        return dict(building.pack(theirs, cutlass, ("HEAD", "HEAD"), count, seed, tmp_path / "p.tar.xz"))

    index = packed(20, 3)
    first = (tmp_path / "p.tar.xz").read_bytes()
    assert packed(20, 3) == index and (tmp_path / "p.tar.xz").read_bytes() == first
    drawn = [Shape.parse(kernel["shape"]) for kernel in index["kernels"]]
    assert set(drawn) <= set(shapes) and len(set(drawn)) == len(drawn) <= 20
    assert {s.band for s in drawn} == {s.band for s in shapes} == set(BANDS)
    assert [k["shape"] for k in packed(20, 4)["kernels"]] != [str(s) for s in drawn]
    for kernel, s in zip(index["kernels"], drawn, strict=True):
        tiled = (96, -(-s.n // 64) * 64, -(-s.k // 32) * 32)
        assert kernel["padded"] == (tiled if s.m == 64 else (s.m, s.n, s.k))
        assert kernel["builder"] is (s.m != 64)
    packed(20, 3)
    digest = building.unpacked(tmp_path / "p.tar.xz", tmp_path / "folder")
    assert building.index_of(tmp_path / "folder")["cutlass"] == index["cutlass"]
    assert (tmp_path / "folder/cutlass/tools/util/include/b.h").exists() and len(digest) == 16
    assert not (tmp_path / "folder/cutlass/other").exists()


@pytest.mark.parametrize(
    ("line", "sums"),
    [
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%f1", {"fp32"}),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f16.f16.f16 {%r1", {"fp16"}),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1", {"fp32"}),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1", {"fp16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1", {"fp32"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {%r1", {"fp16"}),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%rd1]", set()),
        ("fma.rn.f32 %f1, %f2", set()),
    ],
)
def test_ptx_says_in_what_tensor_cores_sum(modules: Any, line: str, sums: set[str]) -> None:
    import re

    found = {kind for kind, words in modules[1].SUMS.items() if re.search(words, line)}
    assert found == sums


def test_errors_are_named_without_folders(modules: Any) -> None:
    said = "/a/b/x.cu(3): error: no such thing\nnote: there\n1 error detected in /a/b/x.cu.\n"
    assert modules[1].first_errors(said) == "x.cu(3): error: no such thing | 1 error detected in x.cu."
    assert modules[1].first_errors("killed\n") == "killed"


KERNEL = """
#include <torch/extension.h>
#include <torch/types.h>
#define CHECK(T, kind) if ((T).options().dtype() != (kind)) { std::cout << (T).options() << std::endl; }
__global__ void one(half* c) { c[threadIdx.x] = __float2half(1.0f); }
void cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  CHECK(a, torch::kHalf)
  if (a.size(1) != b.size(0)) throw std::runtime_error("sizes differ");
  auto kind = torch::TensorOptions().dtype(torch::kFloat32).device(a.device());
  auto partial = torch::empty({2, c.numel()}, kind);
  one<<<1, 1>>>(reinterpret_cast<half*>(c.data_ptr<at::Half>()));
}
"""


@pytest.mark.skipif(not shutil.which("nvcc"), reason="compiles with nvcc")
def test_a_file_with_torchs_headers_becomes_a_library_and_the_build_goes_on(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, building = modules
    files = {f"{KERNELS}/64_64_64.cu": KERNEL, f"{KERNELS}/64_64_128.cu": "#error unheard of"}
    theirs = committed(tmp_path / "l2", files)
    cutlass = committed(tmp_path / "cutlass", {"include/a.h": "", "tools/util/include/b.h": ""})
    archive, folder = tmp_path / "p.tar.xz", tmp_path / "folder"
    building.pack(theirs, cutlass, ("HEAD", "HEAD"), 2, 0, archive)
    building.unpacked(archive, folder)
    compiler = building.Compiler(building.nvcc(None), folder)
    assert building.build(archive, folder, compiler, 1, 0.0) == [], "the time limit starts none"
    records = {record["shape"]: record for record in building.build(archive, folder, compiler, 2, 1e9)}
    assert records["64x64x64"]["sums"] == [] and "unheard of" in records["64x64x128"]["error"]
    assert str(tmp_path) not in records["64x64x128"]["error"]
    said = subprocess.run(["nm", "-D", folder / "lib/64x64x64.so"], capture_output=True, text=True).stdout
    assert {"peers_call", "peers_trouble", "peers_relieve"} <= set(said.split())
    capsys.readouterr()
    again = building.build(archive, folder, compiler, 1, 1e9)
    assert capsys.readouterr().out == "" and {r["shape"]: r for r in again} == records


@pytest.mark.skipif(not shutil.which("g++"), reason="compiles small libraries")
def test_a_row_that_dies_ends_alone_and_the_same_command_goes_on(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, _ = modules
    folder, out = tmp_path / "built", tmp_path / "out"
    (folder / "lib").mkdir(parents=True)
    shapes = [*BODIES, "256x64x64", "64x256x64"]
    kernels = [{"shape": s, "padded": [*map(int, s.split("x"))], "builder": False} for s in shapes]
    index = {"cuda_l2": "c", "cutlass": "d", "seed": 0, "of": 7, "kernels": kernels}
    (folder / "index.json").write_text(json.dumps(index))
    lines: list[dict[str, Any]] = [{"header": {}}, {"shape": "256x64x64", "error": "no such header"}]
    for shape, body in BODIES.items():
        source = folder / f"{shape}.cpp"
        source.write_text(LIBRARY % body)
        subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / "lib" / f"{shape}.so", source], check=True)
        lines.append({"shape": shape, "seconds": 1.0, "sums": ["fp32"]})
    (folder / "build.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    def run() -> tuple[int, dict[str, Any]]:
        words = ["peers.py", "run", "--folder", str(folder), "--out", str(out), "--dry-run"]
        monkeypatch.setattr("sys.argv", words)
        code = peers.main()
        return code, json.loads((out / "peers-dry.json").read_text())

    journal = out / "peers-dry.jsonl"
    code, found = run()
    assert code == 0
    failed = found["summary"]["failed"]
    assert "signal" in failed["64x64x128"] and failed["64x128x64"].startswith("run: no kernel for this")
    assert failed["256x64x64"] == "compilation: no such header"
    assert failed["64x256x64"] == "compilation: not reached"
    rows = {row["shape"]: row for row in found["rows"]}
    assert set(rows) == {"64x64x64", "128x64x64", "64x64x256"}
    assert rows["64x64x64"]["captured"] == "as written" and rows["64x64x64"]["calls"] == "graphs"
    relieved = rows["128x64x64"]
    assert (relieved["captured"], relieved["calls"]) == ("relieved", "loops")
    assert "no kernel for this" in relieved["why_not_captured"][0]
    for way in ("back_to_back", "elementwise", "isolated"):
        for column in (way, f"graphs_{way}"):
            us = relieved[column]["us"]
            ratio, low, high = relieved[column]["theirs_over_ours"]
            assert low <= ratio <= high and ratio == pytest.approx(us["theirs"] / us["sassafras"], rel=0.02)
        assert relieved[way]["control"][0] == pytest.approx(1, abs=0.02)
    before = journal.read_text()
    kept = [line for line in before.splitlines() if '"64x64x64"' not in line]
    journal.write_text("\n".join(kept) + "\n")
    assert run()[0] == 0
    assert journal.read_text().startswith("\n".join(kept) + "\n"), "rows that are there stay"
    assert len(journal.read_text().splitlines()) == len(before.splitlines())
    monkeypatch.setattr(peers, "GIVEN_UP", 2)
    kept = [line for line in kept if '"64x64x128"' not in line and '"64x128x64"' not in line]
    journal.write_text("\n".join(kept[:1] + [line for line in kept if '"128x64x64"' in line]) + "\n")
    for shape in ("64x64x64", "64x64x256"):
        (folder / "lib" / f"{shape}.so").unlink()
    code, found = run()
    assert code == 3 and set(found["summary"]["failed"].values()) >= {"run: not reached"}
    assert "not loaded" in found["summary"]["failed"]["64x64x64"]


def row(shape: str, ratio: float, calls: str = "graphs", graphs: float | None = None) -> dict[str, Any]:
    def column(value: float) -> dict[str, Any]:
        held = {"theirs_over_ours": value, "lt_over_ours": 1.1, "lt_over_theirs": 1.1 / value, "control": 1.0}
        return {name: [v, 0.99 * v, 1.01 * v] for name, v in held.items()}

    found: dict[str, Any] = {"shape": shape, "band": Shape.parse(shape).band, "calls": calls, "sums": "fp32"}
    found["captured"] = "as written" if calls == "graphs" else "no" if graphs is None else "relieved"
    for way in ("back_to_back", "elementwise", "isolated"):
        found[way] = column(ratio)
        found |= {f"graphs_{way}": column(graphs)} if graphs else {}
    return found


def test_the_summary_has_means_by_band_and_names_who_is_faster(modules: Any) -> None:
    rows = [
        row("64x64x64", 2.0),
        row("64x128x64", 0.5),
        row("4096x4096x4096", 1.0),
        row("8192x4096x4096", 4.0, "loops", 1.21),
        row("4096x8192x4096", 8.0, "loops"),
    ]
    rows.append(row("128x128x128", 99.0) | {"ours_wrong": 0.5})
    summary = modules[0].summarised(rows, {"1x1x1": "run: died", "2x2x2": "wrong: NaN"})
    assert summary["ours_wrong"] == ["128x128x128"], "a row of which our result is wrong counts nowhere else"
    assert summary["theirs_over_ours_isolated"] == pytest.approx(32 ** (1 / 5), abs=1e-4)
    assert summary["theirs_over_ours_graphs_isolated"] == pytest.approx(1.21 ** (1 / 4), abs=1e-4)
    assert (summary["shapes"], summary["shapes_graphs"]) == (5, 4)
    assert set(summary["bands"]) == {"<1e8", "1e11-1e12"}
    assert summary["bands"]["<1e8"]["theirs_over_ours_back_to_back"] == 1.0
    assert summary["bands"]["<1e8"]["shapes"] == 2 and summary["bands"]["1e11-1e12"]["shapes_graphs"] == 2
    assert summary["lt_over_ours_elementwise"] == 1.1
    assert summary["counts"]["isolated"] == {"ahead": 3, "behind": 1, "even": 1}
    assert summary["counts_graphs"]["isolated"] == {"ahead": 2, "behind": 1, "even": 1}
    assert list(summary["theirs_faster"]["back_to_back"]) == ["64x128x64"]
    assert summary["failed"] == {"1x1x1": "run: died"} and summary["wrong"] == {"2x2x2": "wrong: NaN"}


def test_rows_without_figures_say_why(modules: Any) -> None:
    kernels = [
        {"shape": s, "padded": [1, 1, 1], "builder": False} for s in ("1x1x1", "2x2x2", "3x3x3", "4x4x4")
    ]
    built: dict[str, Any] = {k["shape"]: {"sums": []} for k in kernels[:3]}  # type: ignore[misc]
    built["4x4x4"] = {"error": "syntax"}
    done = {"1x1x1": {"error": "illegal address"}, "2x2x2": {"wrong": "NaN", "captured": ""}}
    rows, missing = modules[0].results(kernels, built, done)
    assert rows == [] and missing == {
        "1x1x1": "run: illegal address",
        "2x2x2": "wrong: NaN",
        "3x3x3": "run: not reached",
        "4x4x4": "compilation: syntax",
    }
