"""`verify` as far as it goes without a GPU, and the reading of compute-sanitizer's reports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sassafras.api.validate import prove
from sassafras.api.verify import Verification, VerificationStep, verify
from sassafras.core import Candidate, Evaluation, Interval, SassafrasError, StoreError, Verdict
from sassafras.cuda.environment import available
from sassafras.deploy.check import revalidate
from sassafras.evaluate.gpu.sanitizer import parse
from sassafras.sass.cubin import Cubin
from sassafras.schedule.spaces import space_of
from sassafras.store import Store
from sassafras.targets import load
from sassafras.validate import Validator

no_gpu = pytest.mark.skipif(available()[0], reason="there is a GPU")


def _steps(found: Verification) -> dict[str, str]:
    return {step.name: step.status for step in found.steps}


@no_gpu
def test_without_a_gpu_the_proof_is_done_and_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "none.sqlite"))
    found = verify("suite:rotary")
    assert not found.failed
    assert not found.complete
    assert _steps(found) == {
        "the validator's proof": "passed", "the binary's tables": "passed",
        "every case in fresh processes": "not done", "sampling": "not done", "compute-sanitizer": "not done",
    }  # fmt: skip
    text = found.summary()
    assert "byte for byte the original" in text
    assert "no usable GPU" in text
    assert "as far as was looked; not done: every case in fresh processes, sampling" in text


@pytest.mark.parametrize("name, of", [("rotary", "renaming"), ("gemv_int4", "blocks")])
def test_schedules_of_a_copy_are_proved(name: str, of: str, tmp_path: Path) -> None:
    workload = load(f"suite:{name}")
    kernel = workload.build(workload.case(), "sm_90a")
    space = space_of(of, Validator)(kernel)
    state, rng = space.start(), np.random.default_rng(0)
    for _ in range(3):
        state = space.apply(state, space.sample(state, rng))
    winner = space.emit(state)  # type: ignore[attr-defined]
    assert space.via and not Validator(kernel.cubin).check(winner).ok  # type: ignore[attr-defined]
    assert prove(kernel.cubin, winner)[1].ok
    tuned = Candidate(kernel.with_cubin(winner))
    gained = Evaluation(
        tuned.digest, Verdict.CORRECT, 9.0, 10.0, 1.1, Interval(1.09, 1.11), 1.0, Interval(0.99, 1.01), 60
    )
    with Store.open(tmp_path / "store.sqlite") as store:
        store.save_winner(kernel, tuned, gained, gpu="NVIDIA H200", workload=name, case="")
        assert revalidate(store.winners()[0], kernel.cubin) is None
    # one instruction twice: of no copy a schedule
    at = Cubin.parse(kernel.cubin).entries[kernel.name].text.offset + 16 * 20
    wrong = winner[:at] + winner[at + 16 : at + 32] + winner[at + 16 :]
    refused = prove(kernel.cubin, wrong)[1]
    assert not refused.ok and refused.violations[0].kind == "instructions"


@no_gpu
def test_a_patched_kernel_fails_and_is_not_run(tmp_path: Path) -> None:
    workload = load("suite:rotary")
    kernel = workload.build(workload.cases[0], "sm_90a")
    entry = Cubin.parse(kernel.cubin).entries[kernel.name]
    data = bytearray(kernel.cubin)
    at = entry.text.offset + 16 * 20
    data[at : at + 16] = data[at + 16 : at + 32]
    path = tmp_path / "patched.cubin"
    path.write_bytes(bytes(data))
    found = verify(workload, path)
    assert found.failed
    assert _steps(found)["the validator's proof"] == "failed"
    assert all("not proved is not run" in s.detail for s in found.steps if s.status == "not done")
    assert found.summary().endswith("It is wrong.")


@no_gpu
def test_a_stored_kernel_is_found_by_its_id_and_by_its_workload(tmp_path: Path) -> None:
    workload = load("suite:rotary")
    case = workload.cases[0]
    kernel = workload.build(case, "sm_90a")
    outcome = Evaluation(
        kernel.digest, Verdict.CORRECT, 9.0, 10.0, 1.1, Interval(1.09, 1.11), 1.0, Interval(0.99, 1.01), 60
    )
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        facts = {"environment": {"target": "suite:rotary"}}
        number = store.save_winner(
            kernel, Candidate(kernel), outcome, gpu="NVIDIA H200", workload="rotary", case=case.name,
            facts=facts,
        )  # fmt: skip
    for found in (verify(stored=number, store=path), verify("suite:rotary", store=path)):
        assert found.what.startswith("stored, local")
        assert found.digest == kernel.digest
        assert not found.failed
    with pytest.raises(StoreError, match="no measured kernel 99"):
        verify(stored=99, store=path)
    with pytest.raises(SassafrasError, match=rf"the stored kernel {number} and a cubin are both given"):
        verify("suite:rotary", kernel.cubin, stored=number, store=path)
    other = verify("suite:swiglu", store=path)
    assert other.what.startswith("the original itself")
    with pytest.raises(StoreError, match="the target compiles to"):
        verify("suite:swiglu", stored=number, store=path)


def test_bad_calls_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SassafrasError, match="nothing to verify"):
        verify()
    # the original, which is never wrong, does not stand in for the kernel of a store that cannot be read
    with pytest.raises(StoreError, match="no store here"):
        verify("suite:rotary", store=tmp_path / "typo.sqlite")
    (tmp_path / "damaged.sqlite").write_bytes(b"no database" * 99)
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "damaged.sqlite"))
    with pytest.raises(StoreError, match=r"damaged\.sqlite"):
        verify("suite:rotary")
    if not available()[0]:
        with pytest.raises(SassafrasError, match="no such cubin"):
            verify("suite:rotary", tmp_path / "missing.cubin")


def test_what_is_complete_and_what_is_wrong() -> None:
    done, failed, left = (VerificationStep("s", status, "d") for status in ("passed", "failed", "not done"))  # type: ignore[arg-type]
    assert Verification("k", "d", "o", "w", (), (done, done)).summary().endswith("found wrong with it.")
    assert Verification("k", "d", "o", "w", (), (done, failed)).failed
    assert not Verification("k", "d", "o", "w", (), (done, left)).complete


MEMCHECK = """2 launches of affine on 1000000
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at affine+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000000014 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
#: what a library's questions to the driver look like to memcheck
PROBE = (
    '========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to '
    "cuGetProcAddress_v2.\n"
    "=========     Saved host backtrace up to driver entry point at error\n"
    "=========         Host Frame:  [0xd4a2] in cydriver.cpython-312-x86_64-linux-gnu.so\n=========\n"
)
FAILED_CALL = (
    '========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA '
    "API call to cuStreamSynchronize.\n"
    "=========     Saved host backtrace up to driver entry point at error\n=========\n"
)
PROBES_ALONE = "========= COMPUTE-SANITIZER\n" + 18 * PROBE + "========= ERROR SUMMARY: 18 errors\n"
PROBES_AND_A_WRITE = MEMCHECK.replace("COMPUTE-SANITIZER\n", "COMPUTE-SANITIZER\n" + 2 * PROBE).replace(
    "1 error\n", "3 errors\n"
)
PROBES_BEYOND_THE_LIMIT = PROBES_ALONE.replace("18 errors", "19 errors")
PROBES_AND_A_CALL = (
    "========= COMPUTE-SANITIZER\n" + PROBE + FAILED_CALL + "========= ERROR SUMMARY: 2 errors\n"
)
#: what `single` prints of a launch that failed, where the tool reports no calls
LAUNCH = "the kernel's launch failed: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION (715)\n"
LAUNCH_ALONE = "========= COMPUTE-SANITIZER\n" + LAUNCH + "========= ERROR SUMMARY: 0 errors\n"
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reverse+0x40 and Read access at reverse+0x90
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("tool", "text", "status", "errors", "words"),
    [
        ("memcheck", MEMCHECK, 0, 1, "Invalid __global__ write of size 4 bytes; at affine+0x90"),
        ("racecheck", RACECHECK, 0, 1, "Race reported between Write access"),
        ("memcheck", "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", 0, 0, ""),
        (
            "racecheck",
            "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
            0,
            0,
            "",
        ),
        ("initcheck", "========= COMPUTE-SANITIZER\nTraceback\nImportError: torch\n", 1, None, "ImportError"),
        ("memcheck", "========= ERROR SUMMARY: 0 errors\nSegmentation fault\n", 139, None, "status 139"),
        ("memcheck", "", 0, None, "no output"),
        ("memcheck", PROBES_ALONE, 0, 0, ""),
        ("memcheck", PROBES_AND_A_WRITE, 0, 1, "Invalid __global__ write of size 4 bytes; at affine+0x90"),
        ("memcheck", PROBES_BEYOND_THE_LIMIT, 0, 1, ""),
        ("memcheck", PROBES_AND_A_CALL, 0, 1, "CUDA_ERROR_LAUNCH_FAILED"),
        ("memcheck", LAUNCH_ALONE, 3, 1, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
        ("synccheck", LAUNCH, 3, 1, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    ],
)
def test_sanitizer_reports_are_read(
    tool: str, text: str, status: int, errors: int | None, words: str
) -> None:
    found = parse(tool, text, status)
    assert found.errors == errors
    assert found.clean is (errors == 0)
    assert words in (found.first or found.detail) or words in found.detail
    assert "cuGetProcAddress" not in found.first


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for the tool")
def test_only_memcheck_is_told_not_to_report_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lines as the tool gets them; a script in its place prints them back."""
    from sassafras.core import Kernel
    from sassafras.evaluate.gpu import sanitizer
    from sassafras.targets import load

    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\necho "$@" >> "$SEEN"\necho \'========= ERROR SUMMARY: 0 errors\'\n')
    tool.chmod(0o755)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setattr(sanitizer, "program", lambda: str(tool))
    workload = load("suite:rotary")
    kernel = Kernel(b"not loaded", "rotary", "sm_90a", 128)
    findings = sanitizer.sanitize(workload, workload.cases[0], kernel, seconds=60)
    assert [found.tool for found in findings] == list(sanitizer.TOOLS) and all(f.clean for f in findings)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert ["--report-api-errors=no" in line for line in seen] == [True, False, False, False]


@no_gpu
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from sassafras.cli.app import app

    path = tmp_path / "empty.sqlite"
    Store.open(path).close()
    result = CliRunner().invoke(app, ["verify", "suite:rotary", "--store", str(path), "--json"])
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)
    assert found["complete"] is False
    assert found["failed"] is False
    assert [step["status"] for step in found["steps"]] == ["passed"] * 2 + ["not done"] * 3
