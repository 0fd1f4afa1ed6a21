"""sassafras.matmul in a linear layer: forward, backward, and who served each product.

    python examples/matmul.py

Without a supported GPU everything is torch's, and the first call says so.
"""

import torch

import sassafras
from sassafras.gemm.matmul.api import settle, status


class Linear(torch.nn.Linear):
    """A linear layer without bias whose products go through the portfolio."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sassafras.matmul(x, self.weight.t())  # the weight is read as it lies: no transpose


def main() -> None:
    """One step, twice: kernels that the first step missed are compiled meanwhile."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = Linear(1024, 256, bias=False, device=device, dtype=torch.float16)
    x = torch.randn(64, 1024, device=device, dtype=torch.float16)
    for _ in range(2):
        loss = layer(x).float().square().mean()
        layer.zero_grad()
        loss.backward()
        settle()
    expected = torch.nn.functional.linear(x, layer.weight).float().square().mean()
    assert torch.allclose(loss, expected, rtol=1e-3)
    print(f"loss {loss.item():.4f} on {device}")
    for problem in status()["problems"]:
        print(
            problem["shape"],
            problem["layout"],
            problem["member"],
            problem["config"] or "",
            "-",
            problem["why"],
        )


if __name__ == "__main__":
    main()
