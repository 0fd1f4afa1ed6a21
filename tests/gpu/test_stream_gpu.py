"""The stream kernel on a GPU: every instance, ragged extents, chains of launches that overlap."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.configs import stream  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.epilogue import ACTIVATIONS  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig  # noqa: E402
from sassafras.gemm.matmul import api  # noqa: E402
from tests.gpu.test_matmul_epilogue import exact, right  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def engine() -> Any:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    api.matmul(*(torch.ones(16, 16, device="cuda", dtype=torch.float16),) * 2)
    api.settle()
    return api._engine


def drawn(m: int, n: int, k: int, dtype: Any, seed: int, gap: int = 0) -> Any:
    made = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=made).to(dtype)
    w = torch.randn(n, k + gap, device="cuda", generator=made).to(dtype)[:, :k]
    return a, w


@pytest.mark.parametrize("instance", (*stream.INSTANCES, *stream.OTHER_INSTANCES), ids=lambda i: i.name)
def test_every_instance_is_right(engine: Any, instance: stream.StreamInstance) -> None:
    rng, dtype = np.random.default_rng(7), DTYPES[instance.dtype]
    for turn in range(48):
        m, n = int(rng.integers(1, 9)), int(rng.integers(1, 5000))
        k, gap = 8 * int(rng.integers(1, 1200)), 8 * int(rng.integers(0, 3))
        a, w = drawn(m, n, k, dtype, turn, gap)
        config = StreamConfig(instance, mode=Mode(pdl=bool(turn % 2)))
        call = engine.bind(config, a, w.t())
        got = call().clone()
        exact = a.double() @ w.double().t()
        error = (got.double() - exact).abs()
        unit = 2.0**-11 if instance.dtype == "fp16" else 2.0**-8
        allowed = exact.abs() * unit + 2e-6 * k**0.5 * 4
        assert bool((error <= allowed).all()), (config.name, m, n, k, gap, float(error.max()))
        assert torch.equal(call(), got), "two launches differ"


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("instance", stream.EPILOGUE_INSTANCES, ids=lambda i: i.name)
def test_every_instance_with_an_epilogue_is_right(
    engine: Any, instance: stream.StreamInstance, rows: int
) -> None:
    """Bias, activation and residual in every combination, n that no tile divides, gaps, PDL."""
    dtype = DTYPES[instance.dtype]
    extents = (4099, 2048, 0), (512, 4096, 8), (1021, 1032, 16), (7, 8, 0)
    for turn, (n, k, gap) in enumerate(extents):
        a, w = drawn(rows, n, k, dtype, turn, gap)
        bias, residual = drawn(1, 1, n, dtype, turn + 9)[0][0], drawn(rows, 1, n, dtype, turn + 5)[0]
        for activation, given, added in product(ACTIVATIONS, (None, bias), (None, residual)):
            beta, kept = float(added is not None), residual.clone()
            wanted = exact(a, w.t(), added, given, activation, 1.0, beta)
            for pdl in (False, True):
                config = StreamConfig(instance, mode=Mode(pdl=pdl))
                call = engine.bind(config, a, w.t(), None, given, activation, 1.0, beta, added)
                got = call().clone()
                what = (config.name, n, k, gap, activation, given is not None, added is not None)
                assert right(got, wanted, k), what
                assert torch.equal(call(), got) and torch.equal(residual, kept), what
            if added is not None:  # C itself is what is added to
                engine.bind(config, a, w.t(), kept, given, activation, 1.0, 1.0)()
                assert torch.equal(kept, got), what


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_overlapping_launches_in_a_chain_equal_plain_ones(engine: Any, dtype: str) -> None:
    """C of one launch is A of the next, an elementwise kernel of torch between some: bitwise as plain."""
    kind = DTYPES[dtype]
    a, w = drawn(4, 4096, 4096, kind, 1)
    w = w / 64
    instances = [i for i in (*stream.INSTANCES, *stream.OTHER_INSTANCES) if i.dtype == dtype]

    def chain(pdl: bool) -> Any:
        kept, x = [], a
        for turn in range(40):
            config = StreamConfig(instances[turn % len(instances)], mode=Mode(pdl=pdl))
            x = engine.bind(replace(config), x, w.t())()
            x = x * 1.0 if turn % 3 == 0 else x
            kept.append(x)
        return torch.stack(kept)

    plain, overlapping = chain(False), chain(True)
    assert bool(plain.isfinite().all()) and torch.equal(plain, overlapping)


def test_a_layer_that_decodes_is_served(engine: Any) -> None:
    import sassafras

    for dtype in DTYPES.values():
        x, w = drawn(2, 6144, 4096, dtype, 3)
        sassafras.linear(x, w)
        api.settle()
        got = sassafras.linear(x, w)
        served = [p for p in api.status()["problems"] if p["shape"] == "2x6144x4096"]
        assert served and all(str(p["config"]).startswith("stream_tn") for p in served)
        torch.testing.assert_close(got.float(), (x.float() @ w.float().t()), rtol=2e-2, atol=0.3)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_layer_with_a_bias_and_a_residual_is_served(engine: Any, dtype: str) -> None:
    import sassafras

    x, w = drawn(2, 6144, 4096, DTYPES[dtype], 3)
    bias, residual = drawn(1, 1, 6144, DTYPES[dtype], 4)[0][0], drawn(2, 1, 6144, DTYPES[dtype], 5)[0]
    for given in ({"bias": bias}, {"bias": bias, "residual": residual}, {"activation": "silu"}):
        sassafras.linear(x, w, **given)
        api.settle()
        got = sassafras.linear(x, w, **given)
        problem = api.status()["problems"][-1]
        assert str(problem["config"]).startswith("stream_tn"), problem
        old = given.get("residual")
        assert right(got, exact(x, w.t(), old, given.get("bias"), given.get("activation"), 1.0, 1.0), 4096)
