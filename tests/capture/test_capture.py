"""A program's launches become workloads: what is recorded, merged, read back, and refused."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

import sassafras
from sassafras.capture import merge, start, stop
from sassafras.capture.contents import ContentsWriter
from sassafras.capture.roles import roles
from sassafras.capture.settings import CaptureSettings
from sassafras.core import Buffer, Custom, Kernel, WorkloadError
from sassafras.frontend import ptx
from sassafras.frontend.captured import files, values
from sassafras.frontend.captured.files import Captured, read
from sassafras.frontend.captured.workloads import Contents, workload
from sassafras.frontend.ptx.rewrites import Cache, EntryName
from sassafras.sass import Program
from sassafras.targets import load
from tests.deploy import stock
from tests.deploy.boundary import Driver, Tensor
from tests.deploy.conftest import driver, launch  # noqa: F401 (a fixture)

from .conftest import capture

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)


def test_the_programs_kernels_are_all_there(recorded: Path) -> None:
    found = read(recorded)
    launched = {v.name: v for v in found.variants if v.count}
    assert set(launched) == {"gather_kernel", "rmsnorm_kernel", "swiglu_kernel"}
    for variant in launched.values():
        assert variant.count == 8 and not variant.problem
        assert sorted(s.count for s in variant.shapes) == [2, 6]  # 256 and 64 rows
    assert sum(found.shares().values()) == pytest.approx(1.0) and not found.timed
    assert found.problems == {} and found.program == "serve_demo.py"
    # the autotuner's other configuration is kept too, with what was measured for it
    swiglu = [v for v in found.variants if v.name == "swiglu_kernel"]
    assert len(swiglu) == 2 and all(v.config and v.bench_us == 1000.0 for v in swiglu)
    assert {v.facts["constants"]["BLOCK"] for v in swiglu} == {512, 1024}
    assert launched["gather_kernel"].roles == {"y_ptr": "out", "table_ptr": "in", "index_ptr": "in"}


def test_workloads_are_what_the_program_launches(recorded: Path) -> None:
    found = read(recorded)
    for variant in found.variants:
        made = workload(found, variant)
        kernel = made.build(made.case(), "sm_90a")
        assert kernel.digest == variant.digest and kernel.arch == "sm_90a"
        assert len(Program.parse(kernel.cubin).function(kernel.name)) > 20
        assert kernel.hidden_args == 2  # Triton's two scratch pointers
        again = load(str(made.source))
        assert again.name == made.name and again.cases[0].grid == made.cases[0].grid
    gather = workload(found, found.find("gather_kernel"))
    case = gather.case()
    assert case.grid == (256, 1, 1) and list(case.args) == ["y_ptr", "table_ptr", "index_ptr", "n_cols"]
    table, index = case.args["table_ptr"], case.args["index_ptr"]
    assert isinstance(table, Buffer) and (table.dtype, table.shape) == ("fp16", (4096, 2048))
    assert isinstance(index, Buffer) and index.dtype == "i32" and isinstance(index.fill, Custom)
    import torch

    filled = index.fill.fn((256,), torch.int32, None, "cpu")
    assert filled.shape == (256,) and int(filled.min()) >= 0 and int(filled.max()) < 4096
    assert len(filled.unique()) > 200  # the program's indices, not zeros
    assert case.args["n_cols"] == 2048


def test_the_same_kernel_is_deployed_as_is_tuned(recorded: Path) -> None:
    """The workload's cubin is the very one that Triton loads, so `install` will find what is tuned for it."""
    found = read(recorded)
    variant = found.find("rmsnorm_kernel")
    kernel: Kernel = workload(found, variant).build(workload(found, variant).case(), "sm_90a")
    assert kernel.threads == 256 and kernel.cubin == found.cubin(variant)
    assert dict(kernel.parameters or ()) == {
        "y_ptr": "*fp16", "x_ptr": "*fp16", "w_ptr": "*fp16", "n_cols": "i32", "eps": "fp32",
    }  # fmt: skip


def test_parts_of_several_processes_add_up(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(recorded, folder)
    (part,) = folder.glob("part-*.json")
    shutil.copy(part, folder / "part-other-1.json")
    (folder / "part-damaged-2.json").write_text('{"format": 1, "vari')
    (folder / "part-damaged-3.json").write_text("[]")
    without = json.loads(part.read_text())
    del without["variants"][0]["shapes"]
    (folder / "part-damaged-4.json").write_text(json.dumps(without))
    (folder / "part-damaged-5.json").write_text("[" * 100_000)
    for number, odd in ((6, {"last": math.nan}), (7, {"last": -1.0}), (8, {"problems": {"x": -1}})):
        (folder / f"part-damaged-{number}.json").write_text(json.dumps(json.loads(part.read_text()) | odd))
    os.mkfifo(folder / "part-damaged-9.json")
    twice = merge(folder)
    assert sum("is damaged and was left out" in text for text in twice.problems) == 8
    assert all(v.count == 16 for v in twice.variants if v.count)
    assert len(twice.variants) == len(read(recorded).variants)
    with pytest.raises(WorkloadError, match="no Triton kernel"):
        merge(tmp_path)
    before = (folder / "captured.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))  # as on a full disk
    try:
        with pytest.raises(WorkloadError, match="cannot write the capture"):
            merge(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / "captured.json").read_bytes() == before


def test_counts_are_written_where_the_program_began_whatever_its_clock_says(
    driver: Driver,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    start("captured")
    try:
        launch(stock.scale)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        monkeypatch.setattr(time, "time", lambda: 1.0)
        time.sleep(2.1)
        launch(stock.scale)
        (part,) = (tmp_path / "captured").glob("part-*.json")
        assert json.loads(part.read_text())["variants"][0]["shapes"][0]["count"] == 2
    finally:
        stop()


def test_launches_of_shapes_that_were_not_timed_take_time_too(recorded: Path) -> None:
    variant = read(recorded).find("rmsnorm_kernel")
    assert variant.gpu_us is None
    first, second = variant.shapes
    timed = (replace(first, count=6, timed=2, gpu_us=20.0), replace(second, count=2))
    assert replace(variant, shapes=timed, uncounted=4).gpu_us == pytest.approx(120.0)
    both = (timed[0], replace(second, count=2, timed=1, gpu_us=40.0))
    assert replace(variant, shapes=both, uncounted=3).gpu_us == pytest.approx(60 + 80 + 3 * 20)
    # nor has a kernel no share whose shapes were launched once each
    found = read(recorded)
    others = [v for v in found.variants if v.digest != variant.digest]
    mixed = replace(found, variants=(replace(variant, shapes=timed), *others))
    assert mixed.timed and mixed.shares() == pytest.approx(found.shares())


@triton.jit
def shifted(x, y, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + SHIFT, mask=i < n)


def test_each_float_that_is_compiled_in_and_each_type_is_another_kernel(
    driver: Driver,  # noqa: F811
    tmp_path: Path,
) -> None:
    start(tmp_path)
    try:
        for n, constant in ((9, 0.5), (9, 0.25), (9, 0.5), (True, 0.5), (1, 0.5)):
            shifted[(1,)](Tensor(), Tensor(address=8192), n, SHIFT=constant, BLOCK=256)
    finally:
        stop()
    assert sorted(variant.count for variant in merge(tmp_path).variants) == [1, 1, 1, 2]


def test_a_kernel_that_is_once_launched_beside_others_is_none_to_search(
    driver: Driver,  # noqa: F811
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "plain", tmp_path / "other", tmp_path / "both"]
    for folder, ways in zip(folders, ((False,), (True,), (False, True)), strict=True):
        start(folder)
        try:
            for beside in ways:
                shifted[(1,)](Tensor(), Tensor(address=8192), 9, SHIFT=1, BLOCK=256, launch_pdl=beside)
        finally:
            stop()
    problems = [[v.problem for v in merge(folder).variants] for folder in folders]
    assert problems[0] == [""] and "dependent launch" in problems[1][0] and problems[2] == problems[1]
    for part in folders[1].glob("part-*"):
        shutil.copy(part, folders[0] / f"{part.stem}-x.json")
    assert [v.problem for v in merge(folders[0]).variants] == problems[1]


def test_a_call_that_was_launched_another_way_before_is_a_call_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "store.sqlite"))

    def made(beside: bool) -> str:
        args = (Tensor(), Tensor(address=8192), 9, 1, 256)
        call = lambda: shifted[(1,)](*args, launch_pdl=beside)  # noqa: E731
        return sassafras.workload_of(call, device="model").name

    first = made(False)
    with pytest.raises(WorkloadError, match="programmatic dependent launch"):
        made(True)
    assert made(False) == first


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_what_tritons_own_ptxas_made_is_rewritten_whichever_it_is(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "store.sqlite"))
    call = lambda: shifted[(1,)](Tensor(), Tensor(address=8192), 9, 1, 256)  # noqa: E731
    made = sassafras.workload_of(call, device="model", arch=arch)
    space = ptx.of(made, made.case(), arch, [])
    assert list(space.tools.values()) == [""] and space.own_version
    assert space.build(ptx.PtxState(rewrites=(EntryName("k_"),))).digest == space.kernel.digest
    assert space.build(ptx.PtxState(rewrites=(Cache(0, "cs"),))).digest != space.kernel.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=99),
        lambda d: d.pop("variants"),
        lambda d: d["variants"][0].update(digest="../../etc/passwd"),
        lambda d: d["variants"][0]["shapes"][0].update(grid=[0, 1, 1]),
        lambda d: d["variants"][0]["shapes"][0]["args"].update(x_ptr={"data": "../../x"}),
        lambda d: d["variants"][0].update(shapes="none"),
        lambda d: d.update(variants=[]),
        lambda d: d["variants"].append(d["variants"][0]),
        lambda d: d.update(wall_s=math.nan),
        lambda d: d["variants"][0].pop("signature"),
        lambda d: d["variants"][0].update(threads=math.nan),
        lambda d: d["variants"][0].update(bench_us=-1.0),
        lambda d: d["variants"][0]["shapes"][0].update(count=-5),
        lambda d: d["variants"][0]["shapes"][0].update(count=math.inf),
        lambda d: d["variants"][0]["shapes"][0].update(count=10**400),
        lambda d: d["variants"][0]["shapes"][0].update(gpu_us=math.nan, timed=1),
        lambda d: d["variants"][0]["shapes"][0]["args"]["x_ptr"].pop("dtype"),
        lambda d: d["variants"][0]["shapes"][0]["args"]["x_ptr"].update(shape=[math.inf]),
        lambda d: d["variants"][0]["shapes"][0]["args"]["x_ptr"].update(strides=[1]),
        lambda d: d["variants"][0]["shapes"][0]["args"]["x_ptr"].update(low="a", high="b"),
    ],
)
def test_damaged_captures_are_refused(recorded: Path, tmp_path: Path, change: Any) -> None:
    data = json.loads((recorded / "captured.json").read_text())
    # by digest, which the path of the checkout changes
    data["variants"].sort(key=lambda variant: "x_ptr" not in variant["shapes"][0]["args"])
    change(data)
    (tmp_path / "captured.json").write_text(json.dumps(data))
    with pytest.raises(WorkloadError):
        read(tmp_path)


def test_what_is_no_file_of_a_capture_is_refused(recorded: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # nothing ever comes out of it
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "folder.json" / "captured.json").mkdir(parents=True)
    for path in (*tmp_path.iterdir(), "x" * 5000, "\0", "/dev/zero"):
        with pytest.raises(WorkloadError):
            read(path)
    shutil.copytree(recorded, tmp_path / "c")
    found = read(tmp_path / "c")
    variant = found.find("gather_kernel")
    for name, read_it in ((f"{variant.digest}.cubin", found.cubin), (f"{variant.digest}.ptx", found.ptx)):
        (tmp_path / "c" / name).unlink()
        os.mkfifo(tmp_path / "c" / name)
        with pytest.raises(WorkloadError, match="no file"):
            read_it(variant)


def test_a_workload_is_loaded_again_from_the_index_that_it_came_from(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run.json.d"
    shutil.copytree(recorded, folder)
    data = json.loads((folder / "captured.json").read_text())
    for variant in data["variants"]:
        variant["shapes"] = variant["shapes"][:1]
    (folder / "less.json").write_text(json.dumps(data))
    first = load(f"{folder / 'less.json'}:gather_kernel")
    assert len(first.cases) == 1 and load(str(first.source)).cases == first.cases


def test_damaged_files_are_refused(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(recorded, folder)
    found = read(folder)
    variant = found.find("gather_kernel")
    made = workload(found, variant)
    path = folder / f"{variant.digest}.cubin"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(WorkloadError, match="damaged"):
        made.build(made.case(), "sm_90a")
    index = made.case().args["index_ptr"]
    assert isinstance(index, Buffer) and isinstance(index.fill, Custom)
    for npz in folder.glob("*.npz"):
        with npz.open("wb") as file:  # an object array would need pickle
            np.savez(file, data=np.array([{"a": 1}], dtype=object))
    import torch

    with pytest.raises(WorkloadError, match="cannot be read"):
        index.fill.fn((256,), torch.int32, None, "cpu")
    with pytest.raises(WorkloadError, match="0 captured kernels"):
        found.find("nothing")


def test_contents_are_as_large_as_the_user_lets_them_be(tmp_path: Path) -> None:
    import torch

    size = 257 << 20
    kept = ContentsWriter(CaptureSettings(tmp_path, tensor_bytes=size, all_bytes=size))
    one = kept._one(torch.arange(1 << 20, dtype=torch.int32))
    path = tmp_path / f"{one['data']}.npz"
    data = path.read_bytes()
    with path.open("r+b") as file:  # an archive is read from its end
        file.seek(size)
        file.write(data)
    assert path.stat().st_size > size
    assert int(Contents(path)((1 << 20,), torch.int64, None, "cpu")[-1]) == (1 << 20) - 1


def test_contents_of_a_view_lie_where_its_strides_say(tmp_path: Path) -> None:
    import torch

    whole = torch.arange(1, 25, dtype=torch.int32).reshape(4, 6)
    for view in (whole.t(), whole[:, ::2], whole[1:3, 1:4], whole[:, :1].expand(4, 3), whole[0, 0]):
        facts = values.tensor_facts(view, "*i32") | ContentsWriter(CaptureSettings(tmp_path))._one(view)
        row = {"grid": [1, 1, 1], "args": {"x": facts}, "id": "s", "count": 1}
        row |= {"in_graph": 0, "timed": 0, "gpu_us": 0.0}
        digest = "0" * 64
        made = files.variant(
            {
                **dict.fromkeys(("name", "function", "config", "source_hash", "problem"), ""),
                "digest": digest, "bench_us": None, "roles": {}, "shapes": [row], "uncounted": 0,
                "threads": 32, "ctas": 1, "shared_bytes": 0, "scratch_bytes": 0,
                "signature": {"x": "*i32"}, "constants": {},
            }
        )  # fmt: skip
        buffer = workload(Captured(tmp_path, (made,), 0.0, "", "", "", {}), made).case().args["x"]
        assert isinstance(buffer, Buffer) and isinstance(buffer.fill, Custom)
        flat = buffer.fill.fn(buffer.shape, torch.int32, None, "cpu").reshape(-1)
        assert torch.equal(flat.as_strided(view.shape, view.stride()), view)
        (path,) = tmp_path.glob("*.npz")
        with path.open("wb") as file:
            np.savez(file, data=np.zeros(view.shape, dtype=np.int32))
        with pytest.raises(WorkloadError, match="damaged"):
            buffer.fill.fn(buffer.shape, torch.int32, None, "cpu")
        path.write_bytes(b"PK\x03\x04")
        with pytest.raises(WorkloadError, match="cannot be read"):
            buffer.fill.fn(buffer.shape, torch.int32, None, "cpu")
        path.unlink()


def test_the_program_is_not_disturbed(recorded: Path, tmp_path: Path) -> None:
    """Its exit code passes, its own sitecustomize runs, and Triton's cache is the same as without us."""
    program = tmp_path / "p.py"
    program.write_text("import sys; print('hello'); sys.exit(7)\n")
    ran = capture(tmp_path / "c", str(program), cache=tmp_path / "cache")
    assert "hello" in ran.stdout and ran.returncode == 7
    assert ran.stderr == f"error: {tmp_path / 'c'}: the program ended with 7: no Triton kernel was launched\n"
    program.write_text("pass")
    ran = capture(tmp_path / "c", str(program), cache=tmp_path / "cache")
    assert ran.returncode == 2 and "is the program's Python this environment's" in ran.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "not empty" in capture(tmp_path / "full", str(program), cache=tmp_path / "cache").stderr


def test_importing_it_is_light() -> None:
    code = (
        "import sys, sassafras.capture.recording\n"
        "print([m for m in ('triton', 'torch', 'numpy') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert ran.stdout.strip() == "[]", ran.stderr


def test_roles_of_the_suites_kernels() -> None:
    """Read off TTIR, they are those that the suite's authors declared."""
    from sassafras import suite
    from sassafras.frontend.triton import _compile, _target

    seen = 0
    for name in ("softmax", "gemm_leakyrelu", "attention_causal", "topk_gating", "paged_decode"):
        made = suite.load(name)
        case, build = made.cases[0], made.build
        signature, constants, attributes, options, _ = build._bind(case, _target(90), name)  # type: ignore[attr-defined]
        compiled = _compile(build.kernel, signature, constants, attributes, options, _target(90), name)  # type: ignore[attr-defined]
        declared = {k: v.role for k, v in case.args.items() if isinstance(v, Buffer)}
        assert roles(compiled.asm["ttir"]) == declared, name
        seen += len(declared)
    assert seen > 12
    assert roles("nothing of ours") is None
    unknown = (
        "tt.func public @f(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>) attributes {\n"
        "%0 = tt.new_thing %a : x\n%1 = tt.load %b : y\n}"
    )
    assert roles(unknown) == {"a": "inout", "b": "in"}
