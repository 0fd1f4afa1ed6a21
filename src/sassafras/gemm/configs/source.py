"""The text of a kernel's entry: an instance's parameters, in order, passed to a template."""

from __future__ import annotations

from sassafras.core import SassafrasError

Parameters = tuple[tuple[str, str], ...]


def all_of(kind: str, *names: str) -> Parameters:
    """Parameters of one type, in order."""
    return tuple((name, kind) for name in names)


#: what instances with an epilogue take beside the others (`kernels/epilogue.cuh`, Epilogue)
EPILOGUE_PARAMETERS = (
    *all_of("*fp16", "bias", "addend"),
    *all_of("f32", "alpha", "beta"),
    *all_of("i32", "activation", "out_rows", "out_columns", "ld_addend", "tiles_each"),
    *all_of("i64", "batch_a", "batch_b", "batch_c", "batch_addend"),
)

_DECLARED = {
    "tensormap": "const __grid_constant__ sassafras::TensorMap {}",
    "*fp16": "sassafras::u16 *{}",
    "*bf16": "sassafras::u16 *{}",
    "*f32": "float *{}",
    "i32": "int {}",
    "i64": "long long {}",
    "f32": "float {}",
}


def entry(
    name: str,
    header: str,
    template: str,
    parameters: Parameters,
    threads: int,
    blocks: int = 0,
    *,
    epilogue: bool = False,
) -> str:
    """CUDA C++ of an entry that passes its parameters to ``template::run``, in order.

    Args:
        template: the kernel's type, for example ``SplitK<64, 64, ...>``.
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
    parameters: Parameters,
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
