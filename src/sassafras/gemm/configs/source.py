"""The text of a kernel's entry: an instance's parameters, in order, passed to a template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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
    "*i64": "long long *{}",
    "i32": "int {}",
    "i64": "long long {}",
    "f32": "float {}",
}


class KernelInstance:
    """Base of instances: the text of an entry that passes its parameters to the template, in order.

    An instance has `name`, `threads`, `arguments`, `epilogue`, and `PARAMETERS` or `parameters`.
    """

    __slots__ = ()
    #: the file and the template in it
    HEADER: ClassVar[str]
    TEMPLATE: ClassVar[str]
    #: names and types of the kernel's parameters, in order
    PARAMETERS: ClassVar[Parameters]
    #: whether pointers but C's are declared as read alone: kernels that read operands by address
    READ_ONLY: ClassVar[bool] = False
    #: whether a multiprocessor's memory is divided for it as for the launches around it, so that CTAs of both
    #: fit on it
    all_shared: ClassVar[bool] = False
    #: second kernels that its sums may need
    companions: Any = ()

    # of instances without these fields
    dtype: str = "fp16"
    swap_ab: bool = False
    epilogue: bool = False
    norm: bool = False

    if TYPE_CHECKING:
        name: Any
        threads: Any
        arguments: Any

    @property
    def _kind(self) -> str:
        """What names say of the layout and the type."""
        return getattr(self, "layout", "") + "_swapped" * self.swap_ab + "_bf16" * self._bf16

    @property
    def _bf16(self) -> bool:
        return self.dtype == "bf16"

    @property
    def _last_arguments(self) -> tuple[bool, ...]:
        """EPILOGUE and BF16 of templates where both come last and are false by default."""
        return (self.epilogue, True) if self._bf16 else (True,) * self.epilogue

    @property
    def bounds(self) -> str:
        """``__launch_bounds__``."""
        return str(self.threads)

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        of_type = {"*fp16": "*bf16"} if self._bf16 else {}
        own = tuple((name, of_type.get(kind, kind)) for name, kind in self.PARAMETERS)
        return own + EPILOGUE_PARAMETERS * self.epilogue

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        told = (str(a).lower() if isinstance(a, bool) else str(a) for a in self.arguments)
        return f"{self.TEMPLATE}<{', '.join(told)}>"

    def _declared(self, name: str, kind: str) -> str:
        if kind not in _DECLARED:
            raise SassafrasError("no parameter has this type", where=f"{self.name}, {kind}")
        constant = "const " * (self.READ_ONLY and kind in ("*fp16", "*bf16") and name != "c")
        return constant + _DECLARED[kind].format(name)

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        declared = ", ".join(self._declared(*parameter) for parameter in self.parameters)
        passed = ", ".join(f"&{p}" if kind == "tensormap" else p for p, kind in self.parameters)
        run = "run_batched" if self.epilogue else "run"
        return (
            f'#include "{self.HEADER}"\n'
            f'extern "C" __global__ void __launch_bounds__({self.bounds}) {self.name}({declared}) {{\n'
            f"    sassafras::{self.template}::{run}({{{passed}}});\n}}\n"
        )
