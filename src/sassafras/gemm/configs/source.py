"""The text of a kernel's entry: an instance's parameters, in order, passed to a template."""

from __future__ import annotations

from collections.abc import Sequence

from sassafras.core import SassafrasError

#: what instances with an epilogue take beside the others (`kernels/epilogue.cuh`, Epilogue)
EPILOGUE_PARAMETERS = (
    ("bias", "*fp16"),
    ("addend", "*fp16"),
    ("alpha", "f32"),
    ("beta", "f32"),
    ("activation", "i32"),
    ("out_rows", "i32"),
    ("out_columns", "i32"),
    ("ld_addend", "i32"),
    ("tiles_each", "i32"),
    ("batch_a", "i64"),
    ("batch_b", "i64"),
    ("batch_c", "i64"),
    ("batch_addend", "i64"),
)

_DECLARED = {
    "tensormap": "const __grid_constant__ sassafras::TensorMap {}",
    "*fp16": "sassafras::u16 *{}",
    "*bf16": "sassafras::u16 *{}",
    "*f32": "float *{}",
    "*u32": "sassafras::u32 *{}",
    "i32": "int {}",
    "i64": "long long {}",
    "f32": "float {}",
}


def entry(
    name: str,
    header: str,
    template: str,
    parameters: Sequence[tuple[str, str]],
    threads: int,
    blocks: int = 0,
    *,
    epilogue: bool = False,
) -> str:
    """CUDA C++ of an entry that passes its parameters to ``template::run``, in order.

    Args:
        template: the kernel's type, for example ``ClusterSplit<64, 64, ...>``.
        blocks: CTAs a multiprocessor that the compiler plans for, 0 for none.
        epilogue: to ``run_batched`` instead.
    """
    try:
        declared = ", ".join(_DECLARED[kind].format(parameter) for parameter, kind in parameters)
    except KeyError as error:
        raise SassafrasError("no parameter has this type", where=f"{name}, {error}") from error
    passed = ", ".join(f"&{p}" if kind == "tensormap" else p for p, kind in parameters)
    bounds = f"{threads}, {blocks}" if blocks else f"{threads}"
    run = "run_batched" if epilogue else "run"
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({declared}) {{\n'
        f"    sassafras::{template}::{run}({{{passed}}});\n}}\n"
    )


def plain_entry(
    name: str,
    header: str,
    template: str,
    parameters: Sequence[tuple[str, str]],
    threads: int,
    epilogue: bool,
) -> str:
    """The same for kernels that read operands by address.

    Args:
        template: as for `entry`, without namespace and closing bracket.
    """
    pointer = {**_DECLARED, "*fp16": "const sassafras::u16 *{}"}
    declared = ", ".join(
        "sassafras::u16 *c" if parameter == "c" else pointer[kind].format(parameter)
        for parameter, kind in parameters
    )
    passed = ", ".join(parameter for parameter, _ in parameters)
    return (
        f'#include "{header}"\n'
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}({declared}) {{\n'
        f"    {template}{', true' * epilogue}>::{'run_batched' if epilogue else 'run'}({{{passed}}});\n}}\n"
    )
