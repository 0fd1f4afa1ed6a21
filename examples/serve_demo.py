"""A small "server": several Triton kernels, one autotuned, one steered by an integer index tensor.

It knows nothing of Sassafras. Tune what it launches and time it before and after, then run it with that:

    sassafras tune --metric '"seconds": ([0-9.]+)' -- python examples/serve_demo.py
    sassafras run -- python examples/serve_demo.py

Needs an NVIDIA GPU (``--device cpu`` only walks through the launches, for tests with a driver that launches
nothing).
"""

import argparse
import json
import time

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(y_ptr, x_ptr, w_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, (x * scale * w).to(tl.float16), mask=mask)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 512}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=4)],
    key=["n"],
)
@triton.jit
def swiglu_kernel(y_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i, mask=i < n).to(tl.float32)
    b = tl.load(b_ptr + i, mask=i < n).to(tl.float32)
    tl.store(y_ptr + i, (a * tl.sigmoid(a) * b).to(tl.float16), mask=i < n)


@triton.jit
def gather_kernel(y_ptr, table_ptr, index_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(index_ptr + row).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    tl.store(y_ptr + row * n_cols + cols, tl.load(table_ptr + source * n_cols + cols, mask=mask), mask=mask)


class Model:
    """One layer, its weights and its buffers."""

    def __init__(self, device: str, width: int = 2048, vocabulary: int = 4096) -> None:
        torch.manual_seed(0)
        half = {"device": device, "dtype": torch.float16}
        self.width = width
        self.table = torch.randn(vocabulary, width, **half)
        self.weight = torch.randn(width, **half)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states, (tokens, width) in fp16."""
        rows, width = len(tokens), self.width
        x, y, z = (torch.empty(rows, width, dtype=torch.float16, device=tokens.device) for _ in range(3))
        block = triton.next_power_of_2(width)
        gather_kernel[(rows,)](x, self.table, tokens, width, BLOCK=block)
        rmsnorm_kernel[(rows,)](y, x, self.weight, width, 1e-5, BLOCK=block, num_warps=8)
        swiglu_kernel[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](z, y, x, y.numel())
        return z

    def reference(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same in fp32, by PyTorch."""
        x = self.table[tokens.long()].float()
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight.float()
        y = y.half().float()
        return y * torch.sigmoid(y) * x


def main() -> None:
    """Serve some requests; one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rows", type=int, default=16384, help="tokens; of every fourth request a quarter")
    parser.add_argument("--width", type=int, default=2048, help="an odd one selects scalar accesses")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    model, worst = Model(options.device, options.width), 0.0
    for rows in (options.rows, options.rows // 4):
        tokens = torch.randint(0, 4096, (rows,), dtype=torch.int32, device=options.device)
        if options.device == "cuda":
            found = model(tokens).float()
            worst = max(worst, ((found - model.reference(tokens)).abs() / (1 + found.abs())).max().item())
    begin = time.perf_counter()
    for step in range(options.steps):
        rows = options.rows // 4 if step % 4 == 3 else options.rows
        tokens = torch.randint(0, 4096, (rows,), dtype=torch.int32, device=options.device)
        model(tokens)
    if options.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print(json.dumps({"steps": options.steps, "seconds": round(seconds, 4), "worst_error": worst}))


if __name__ == "__main__":
    main()
