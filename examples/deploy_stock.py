"""A stock Triton program: `triton.jit`, `triton.autotune`, PyTorch. All that it knows of us is ``--install``.

Needs an NVIDIA GPU. ``examples/deploy_demo.py`` tunes its kernel and runs it in every way.
"""

import argparse
import hashlib
import json

import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=["n_cols"])
@triton.jit
def softmax_kernel(y_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis of `x`, (rows, cols) in fp32, into `y`."""
    rows, cols = x.shape
    softmax_kernel[(rows,)](y, x, cols, BLOCK=triton.next_power_of_2(cols))
    return y


def microseconds(work, times: int = 200) -> float:
    """GPU time a call, roughly: no benchmark, only to see that nothing is slow."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(20):
        work()
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / times


def digest_of(config: triton.Config, x: torch.Tensor) -> str:
    """Hash of one configuration's result: they sum in different orders, and which one wins varies by run."""
    y = torch.full_like(x, float("nan"))
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    softmax_kernel.fn[(rows,)](y, x, cols, BLOCK=block, **config.all_kwargs())
    return hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest()


def main() -> None:
    """Compute in eager mode and in a CUDA graph; one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    if options.install:
        import sassafras

        sassafras.install()

    torch.manual_seed(0)
    x = torch.randn(512, 2047, device="cuda")
    y = torch.full_like(x, float("nan"))
    eager = softmax(x, y).clone()
    y.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax(x, y)
    graph.replay()
    torch.cuda.synchronize()
    outputs = {config.num_warps: digest_of(config, x) for config in softmax_kernel.configs}
    print(
        json.dumps(
            {
                "error": (eager - torch.softmax(x.double(), -1)).abs().max().item(),
                "graph_equals_eager": torch.equal(eager, y),
                "outputs": outputs,
                "chosen": softmax_kernel.best_config.num_warps,
                "eager_us": round(microseconds(lambda: softmax(x, y)), 2),
                "graph_us": round(microseconds(graph.replay), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
