"""Files of KernelBench and flashinfer-bench are read unchanged, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from sassafras.core import Buffer, Evaluation, Verdict, WorkloadError
from sassafras.formats import Problem, flashinfer, load, read_solution

from . import problems


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return problems.write(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def definition(here: Path) -> Problem:
    return load(here / "definition.json", here / "workloads.jsonl")


def test_a_kernelbench_problem_is_a_workload(here: Path) -> None:
    problem = load(here / "7_chain.py")
    (case,) = problem.workload.cases
    assert case.args == {
        "in0": Buffer("fp32", (64, 128)),
        "in1": Buffer("fp32", (64, 128)),
        "out": Buffer("fp32", (64, 128), "out"),
    }
    assert problem.workload.meta["reference"] == "fp64"
    assert problem.workload.tolerance.rtol == 1e-4
    draw = problem.draws["inputs"]
    first, same, other = draw(3), draw(3), draw(4)
    assert torch.equal(first["in0"], same["in0"]) and not torch.equal(first["in0"], other["in0"])
    wanted = problem.workload.reference(first)["out"]  # type: ignore[misc]
    assert wanted.dtype == torch.float64
    source = read_solution(problem, here / "honest.py")
    assert source.init == (128, 2.0) and source.seed == problem.baseline.seed


def test_drawing_leaves_the_programs_random_numbers_alone(here: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load(here / "7_chain.py").draws["inputs"](9)
    assert torch.equal(torch.rand(3), wanted)


def test_a_definition_is_a_workload_with_a_case_for_each_of_its_lines(definition: Problem) -> None:
    small, large = definition.workload.cases
    assert (small.name, large.name) == ("small", "large")
    assert large.args == {
        "x": Buffer("fp32", (96, 128)),
        "y": Buffer("fp32", (96, 128)),
        "scale": 2.0,
        "z": Buffer("fp32", (96, 128), "out"),
    }
    # softmax over 128: zeros lie within 1e-2, but not within 1e-2 of what such outputs measure
    assert definition.workload.tolerance.atol < 1e-3


@pytest.mark.parametrize("given", [("7_chain.py",), ("definition.json", "workloads.jsonl")])
def test_a_tolerance_of_zero_is_one(here: Path, given: tuple[str, ...]) -> None:
    assert load(*(here / name for name in given), tolerance=0.0).workload.tolerance.rtol == 0


def test_only_a_line_feed_ends_a_workload(here: Path, tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps(problems.workload(4, "a\u2028b"), ensure_ascii=False))
    assert list(load(here / "definition.json", tmp_path / "w.jsonl").draws) == ["a\u2028b"]


def test_every_type_is_drawn(tmp_path: Path) -> None:
    kinds = ["float16", "bfloat16", "float8_e4m3fn", "int64", "int8", "bool"]
    described = {
        "name": "all", "op_type": "sum", "axes": {"n": {"type": "const", "value": 32}},
        "inputs": {kind: {"shape": ["n"], "dtype": kind} for kind in kinds},
        "outputs": {"s": {"shape": None, "dtype": "float32"}},
        "reference": "def run(*given):\n    return sum(g.float().square().sum() for g in given)\n",
    }  # fmt: skip
    (tmp_path / "all.json").write_text(json.dumps(described))
    (case,) = load(tmp_path / "all.json").workload.cases
    assert [b.dtype for b in case.args.values()] == ["fp16", "bf16", "fp8e4nv", "i64", "i8", "i1", "fp32"]  # type: ignore[union-attr]
    assert case.args["s"] == Buffer("fp32", (), "out")


def test_tensors_of_a_workload_come_from_its_file(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "d.json").write_text(json.dumps(problems.DEFINITION))
    kept = torch.rand(4, 128)
    save_file({"k": kept}, tmp_path / "blob.safetensors")
    line = problems.workload(4, "u")
    line["workload"]["inputs"] = {
        **problems.INPUTS,
        "y": {"type": "safetensors", "path": "blob.safetensors", "tensor_key": "k"},
    }
    (tmp_path / "w.jsonl").write_text(json.dumps(line))
    problem = load(tmp_path / "definitions" / "d.json", tmp_path / "w.jsonl")
    one, two = (problem.draws["u"](seed) for seed in (1, 2))
    assert torch.equal(one["y"], kept) and torch.equal(two["y"], kept) and not torch.equal(one["x"], two["x"])


P = problems.PROBLEM
U: dict[str, Any] = {"inputs": {}, "uuid": "u"}
DEFINITION, ONE = problems.DEFINITION, [problems.workload(4, "u")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (P.replace("class Model(", "class Other("), r"p\.py: it defines no class 'Model' \(a Kernel"),
        (P.replace("def get_inputs", "def inputs"), "defines no function 'get_inputs'"),
        (P[: P.index("return [torch.rand") + 15], r"p\.py:\d+: syntax error"),
        (P.replace("[128, 2.0]", "[128, object()]"), "returns a object as argument 1"),
        (P.replace("[128, 2.0]", "[128, 1 / 0]"), r"p\.py:\d+: it raised ZeroDivisionError"),
        (P.replace("nn.Parameter", "nn.Parameters"), r"p\.py:8: it raised AttributeError"),
        (P.replace("torch.randn(64, 128)]", "'text']"), r"argument 'in1' is 'text'"),
        (P.replace("torch.rand(64, 128)", "torch.rand(64, 128) * 1j"), "in0 is complex64, which"),
        (P.replace("[torch.rand(64, 128), torch.randn(64, 128)]", "3"), "returns no list of tensors"),
        (P.replace("torch.rand(", "torch.ones(").replace("torch.randn(64", "torch.ones(64"), "same for"),
        (P + "get_inputs = lambda n=[]: n.append(1) or [torch.rand(2)] * len(n)", "other arguments each"),
        (P.replace("return work(x", "return work(torch.rand(128) + x"), "other results each time"),
        (P.replace("return work(", "return None and work("), r"p\.py: it returned None, not a tensor"),
        (P.replace("return work(", "return 0 * work("), "a constant would be a solution"),
        ("raise SystemExit(3)\n", r"p\.py:1: it raised SystemExit: 3"),
    ],
)  # fmt: skip
def test_a_problem_that_cannot_be_judged_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(WorkloadError, match=words) as caught:
        load(tmp_path / "p.py")
    assert "\n" not in str(caught.value)


def _changed(**fields: Any) -> dict[str, Any]:
    return {**problems.DEFINITION, **fields}


@pytest.mark.parametrize(
    ("definition", "lines", "words"),
    [
        (json.dumps(problems.DEFINITION)[:-40], None, r"d\.json: it is no JSON: .* \(is it truncated\?\)"),
        ("[]", None, "'file' must be of type dict"),
        ("{}", None, "'name' is missing"),
        (DEFINITION, None, r"axis 'rows' has no value \(give a file of workloads"),
        (_changed(inputs={"x": {"shape": ["rows"], "dtype": "float4_e2m1"}}), None, "'float4_e2m1' is not"),
        (_changed(inputs={"x": {"shape": ["k"], "dtype": "int8"}}), None, "axis 'k' is not defined"),
        (_changed(outputs={}), None, "needs inputs and outputs"),
        (_changed(reference="def go(): pass"), None, "no function 'run'"),
        (_changed(reference="def run(x, y, scale):\n    return x[0]"), ONE, "returns z as"),
        (_changed(reference="def run(x, y, scale):\n    return x, y"), ONE, "2 outputs, not 1"),
        (_changed(reference="def run(x):\n    pass"), ONE, "raised TypeError"),
        (DEFINITION, ["{\"definition\": \"soft"], r"w\.jsonl:1: it is no JSON"),
        (DEFINITION, [{**problems.workload(4, "u"), "definition": "other"}], "holds no workload of"),
        (DEFINITION, [problems.workload(0, "u")], "axis 'rows' is 0"),
        (DEFINITION, [{"axes": {}, **U}], "axis 'rows' has no value"),
        (DEFINITION, [{"axes": {"rows": 4}, **U}], "'scale' is of type 'random'"),
        (DEFINITION, [{"axes": {"rows": "4"}, **U}], "'rows' must be of type int"),
        (_changed(inputs={"x": {"shape": [["rows"]], "dtype": "int8"}}), None, r"axis \['rows'\] is not"),
        (_changed(reference="def run(): '\ud800'"), None, r"d\.json: it holds '\\ud800', which is no ch"),
        (DEFINITION, [problems.workload(4, "u"), problems.workload(8, "u")], r"w\.jsonl:2: another workl"),
    ],
)  # fmt: skip
def test_a_definition_that_cannot_be_judged_is_refused(
    tmp_path: Path, definition: Any, lines: list[Any] | None, words: str
) -> None:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    (tmp_path / "d.json").write_text(text)
    if lines is not None:
        rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / "w.jsonl").write_text("\n".join(rows))
    with pytest.raises(WorkloadError, match=words) as caught:
        load(tmp_path / "d.json", None if lines is None else tmp_path / "w.jsonl")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({**problems.solution(""), "definition": "other"}, "solves 'other', not 'softmax_chain'"),
        (problems.solution("", language="fortran"), "unknown language 'fortran'"),
        (problems.solution("", entry_point="other.py::run"), "names none of its sources"),
        (problems.solution("", entry_point="main.py"), "FILE::FUNCTION"),
        (problems.solution("", language="cuda"), "'main.py' with the binding 'tvm-ffi' is no source in cuda"),
        (problems.solution("", binding="pybind"), "the binding 'pybind'"),
        (
            {**problems.solution(""), "sources": [{"path": "../main.py", "content": ""}]},
            "path is '../main.py'",
        ),
        ({**problems.solution(""), "sources": [{"path": "/main.py", "content": ""}]}, "relative, once each"),
        ({**problems.solution(""), "sources": [{"path": "main.py"}]}, "'content' is missing"),
        ({**problems.solution(""), "sources": ["main.py"]}, "must be of type dict"),
        ({**problems.solution(""), "sources": [{"path": 3, "content": ""}]}, "'path' must be of type str"),
    ],
)
def test_a_solution_that_is_none_is_refused(
    tmp_path: Path, definition: Problem, made: Any, words: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(made))
    with pytest.raises(WorkloadError, match=words):
        read_solution(definition, tmp_path / "s.json")


def test_nothing_of_a_solution_is_executed_by_reading_it(here: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w').close()\n" + problems.HONEST
    (tmp_path / "s.py").write_text(text)
    assert read_solution(load(here / "7_chain.py"), tmp_path / "s.py").text == text
    assert not mark.exists()


def test_traces_are_what_flashinfer_bench_reads(definition: Problem) -> None:
    data = pytest.importorskip("flashinfer_bench.data")
    right = Evaluation("d", Verdict.CORRECT, 10.0, 20.0, 2.0, facts={"error": [1e-6, 2e-6]})
    nan = float("nan")
    for outcome, status in (
        (right, "PASSED"),
        (Evaluation("d", Verdict.WRONG_RESULT, facts={"failed": "shape"}), "INCORRECT_SHAPE"),
        (Evaluation("d", Verdict.WRONG_RESULT, facts={"failed": "dtype"}), "INCORRECT_DTYPE"),
        (
            Evaluation("d", Verdict.WRONG_RESULT, facts={"failed": "values", "error": [nan, nan]}),
            "INCORRECT_NUMERICAL",
        ),
        (Evaluation("d", Verdict.COMPILE_ERROR), "COMPILE_ERROR"),
        (Evaluation("d", Verdict.TIMED_OUT), "TIMEOUT"),
        (Evaluation("d", Verdict.CHEATED, detail="why"), "RUNTIME_ERROR"),
        (Evaluation("d", Verdict.OUT_OF_RESOURCES), "RUNTIME_ERROR"),
    ):
        machine = {"hardware": "CPU", "libs": {"torch": "2"}}
        (row,) = flashinfer.traces(definition, "mine", {"small": outcome}, {"small": {}}, machine)
        trace = data.Trace.model_validate_json(json.dumps(row))
        assert trace.evaluation.status.value == status
        assert trace.workload.axes == {"rows": 64}
        assert str(outcome.verdict) in trace.evaluation.log
    for made in problems.SOLUTIONS.values():
        data.Solution.model_validate(made)
    data.Definition.model_validate(problems.DEFINITION)
