"""A program of `torch.compile`: RMS norm and SwiGLU of two numbers of rows, as a user writes them."""

import torch
import torch.nn.functional as F


def between(x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    norm = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * weight
    return F.silu(norm) * gate


def main() -> None:
    compiled = torch.compile(between)
    weight = torch.randn(4096, dtype=torch.float16, device="cuda")
    for rows, times in ((512, 6), (64, 3)):
        x, gate = (torch.randn(rows, 4096, dtype=torch.float16, device="cuda") for _ in range(2))
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(gate, 0)
        for _ in range(times):
            found = compiled(x, weight, gate)
        torch.testing.assert_close(found, between(x, weight, gate), rtol=1e-2, atol=1e-2)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
