"""Generated kernels full of operations that complete in order: shared and matrix copies, atomics and others.

A kernel is a random mixture of 20 to 60 steps on 4 to 12 values in registers, in a loop or not.
"""

from __future__ import annotations

import random

#: step -> how many times it may be in the draw
_CHANCES = {
    "shfl": (0, 1, 2), "stg": (0, 1, 2), "fadd": (1, 3), "ldg": (0, 1, 2), "lds": (0, 1, 2), "sts": (0, 1, 2),
    "ldsm": (0, 1, 3), "cp": (0, 1, 3), "atoms": (0, 0, 1, 2), "redg": (0, 0, 0, 1), "popc": (0, 0, 1),
    "movm": (0, 0, 1), "redux": (0, 0, 0, 1),
}  # fmt: skip
#: registers that nvcc may use, by seed
LIMITS: tuple[tuple[str, ...], ...] = ((), ("-maxrregcount=32",), ("-maxrregcount=24",))


def kernels(seed: int, hopper: bool, count: int = 25) -> list[str]:
    """CUDA source of a seed's kernels ``k0``, ``k1``, ...; stmatrix only where `hopper`."""
    rng = random.Random(seed)
    return [_Kernel(n, rng, hopper).text for n in range(count)]


class _Kernel:
    def __init__(self, number: int, rng: random.Random, hopper: bool) -> None:
        self.rng = rng
        self.count = rng.choice([4, 6, 8, 12])
        chances = _CHANCES | ({"stsm": (0, 1, 3)} if hopper else {})
        steps = [n for n, c in chances.items() for _ in range(rng.choice(c))] or ["fadd"]
        self.guarded, loop = rng.choice([0, 1, 0.5]), rng.random() < 0.4
        values = range(self.count)
        lines = [
            f'extern "C" __global__ void k{number}(const float* __restrict__ in, float* __restrict__ out,'
            " int n, int ld) {",
            "int t = threadIdx.x + blockIdx.x * blockDim.x, l = threadIdx.x;",
            "__shared__ __align__(16) float s[4096];",
            "unsigned sb = (unsigned)__cvta_generic_to_shared(s);",
        ]
        lines += [f"float v{i} = in[t + {i} * ld];" for i in values]
        lines += [*(f"s[l + {256 * i}] = v{i};" for i in values), "__syncthreads();"]
        lines += ["#pragma unroll 1", "for (int it = 0; it < n; it++) {", "t += ld;"] if loop else []
        lines += [self._step(rng.choice(steps)) for _ in range(rng.choice([20, 40, 60]))]
        lines += ["}"] if loop else []
        ends = [f"if (t < n) out[t + {i} * ld] = v{i} + s[(l * {i + 1}) & 4095];" for i in values]
        self.text = "\n".join([*lines, "__syncthreads();", *ends, "}"])

    def _value(self) -> str:
        return f"v{self.rng.randrange(self.count)}"

    def _bits(self) -> str:
        return f"__float_as_uint({self._value()})"

    def _address(self) -> str:
        """A shared address, a multiple of 16, in a register of its own."""
        return self.rng.choice(
            [
                f"sb + ((l ^ {self.rng.randrange(256)}) & 255) * 16",
                f"sb + ((l + {self._bits()}) & 255) * 16",
                f"sb + (l & 255) * 16 + {16 * self.rng.randrange(16)}",
            ]
        )

    def _step(self, what: str) -> str:
        rng, value, bits = self.rng, self._value, self._bits
        guard = f"if (t + {rng.randrange(99)} < ld) " if rng.random() < self.guarded else ""
        if what == "shfl":
            return f"{value()} = __shfl_xor_sync(-1, {value()}, {rng.choice([1, 2, 4, 8, 16])});"
        if what == "fadd":
            return f"{value()} += {value()} * {value()};"
        if what == "ldg":
            return f"{value()} = in[t + {rng.randrange(64)} * ld];"
        if what == "lds":
            return f"{value()} = s[((l ^ {rng.randrange(16)}) + ({bits()} & 63)) & 4095];"
        if what == "sts":
            return f"s[(l + {rng.randrange(16)} * 128) & 4095] = {value()};"
        if what == "stg":
            return f"{guard}out[t + (long)ld * {rng.randrange(99)}] = {value()};"
        if what == "redg":
            return f"{guard}atomicAdd(out + t + (long)ld * {rng.randrange(99)}, {value()});"
        if what == "atoms":
            add = "atomicAdd((unsigned*)s + (({}) & 4095), {})"
            forms = [f"{guard}{add.format(bits(), '1u')};", f"{guard}{add.format(bits(), bits())};"]
            return rng.choice([*forms, f"{value()} = __uint_as_float({add.format(bits(), '3u')});"])
        if what == "popc":
            return f"{value()} = (float)__popc({bits()});"
        if what == "redux":
            return f"{value()} = __uint_as_float(__reduce_or_sync(-1, {bits()}));"
        if what == "movm":
            move = "movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
            taken = f'asm volatile("{move}" : "=r"(r) : "r"({bits()}));'
            return f"{{unsigned r; {taken} {value()} = __uint_as_float(r);}}"
        return self._copy(guard) if what == "cp" else self._matrix(what)

    def _copy(self, guard: str) -> str:
        rng = self.rng
        size = rng.choice([4, 16])
        kind = "ca" if size == 4 else rng.choice(["ca", "cg"])
        behind = rng.choice(["", ' asm volatile("cp.async.commit_group;");'])
        text = f'asm volatile("cp.async.{kind}.shared.global [%0], [%1], {size};"'
        source = f'"l"(in + (t & ~3) + (long){rng.randrange(64)} * 4 * ld)'
        return f'{guard}{text} :: "r"({self._address()}), {source});{behind}'

    def _matrix(self, what: str) -> str:
        rng = self.rng
        count = rng.choice([1, 2, 4])
        chosen = rng.sample(range(self.count), count)
        if what == "stsm":
            names = ", ".join(f"%{n + 1}" for n in range(count))
            data = ", ".join(f'"r"(__float_as_uint(v{v}))' for v in chosen)
            text = f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16 [%0], {{{names}}};"
            return f'asm volatile("{text}" :: "r"({self._address()}), {data});'
        names = ", ".join(f"%{n}" for n in range(count))
        turned = rng.choice(["", ".trans"])
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {{{names}}}, [%{count}];"
        results = ", ".join(f'"=r"(q[{n}])' for n in range(count))
        taken = " ".join(f"v{v} = __uint_as_float(q[{n}]);" for n, v in enumerate(chosen))
        return (
            f'{{unsigned q[{count}]; asm volatile("{text}" : {results} : "r"({self._address()})); {taken}}}'
        )
