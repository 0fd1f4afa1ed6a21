"""Chains of overlapping launches with kernels of other authors before and behind ours, on a GPU.

Each chain is: a foreign kernel that lets its successor start at once and works for a while; ours, in every
mode, once or twice; a foreign kernel that reads and writes, before its own wait, what ours does not write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

from sassafras.gemm.build.arguments import packed  # noqa: E402
from sassafras.gemm.configs import epilogue, registry  # noqa: E402
from sassafras.gemm.configs.persistent_pair import PairConfig  # noqa: E402
from sassafras.gemm.problem.launch import Launch  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402

#: what the first kernel works for before it writes
MICROSECONDS = 150
SHAPES = (
    Shape(136, 264, 1032), Shape(256, 512, 4096), Shape(67, 129, 333), Shape(8, 264, 1032),
    Shape(1032, 2056, 1032),
)  # fmt: skip
#: configurations of an instance that are tried, spread over all it has
EACH = 3
_LINK = (
    ("before_from", "*u32"), ("before_to", "*u32"), ("after_from", "*u32"), ("after_to", "*u32"),
    ("times", "*u32"), ("before_words", "i32"), ("after_words", "i32"), ("microseconds", "i32"),
    ("first", "i32"),
)  # fmt: skip
_LINK_CTAS, _LINK_THREADS = 4, 256


def every_instance() -> dict[Any, list[Any]]:
    """Instance -> its configurations, plain mode.

    (Those that normalise rows: test_layer_gpu.py; SwiGLU's pairs: test_persistent_pair_gpu.py.)
    """
    found: dict[Any, list[Any]] = {}
    for config in (
        *registry.configurations(), *registry.other_configurations(), *registry.epilogue_configurations(),
    ):  # fmt: skip
        if not (getattr(config.instance, "norm", False) or isinstance(config, PairConfig)):
            found.setdefault(config.instance, []).append(config)
    return found


def rejects(config: Any, shape: Shape) -> str | None:
    has_epilogue = bool(getattr(config.instance, "epilogue", False))
    return epilogue.why_illegal(config, shape) if has_epilogue else config.why_illegal(shape)


def cases(configs: list[Any]) -> list[tuple[Any, Shape]]:
    """Some configurations of an instance, each with the first shape it can run; one with the largest, too."""
    legal = [(c, shapes[0]) for c in configs if (shapes := [s for s in SHAPES if rejects(c, s) is None])]
    some = legal[:: max(1, -(-len(legal) // EACH))]
    large = next(((c, SHAPES[-1]) for c in configs if rejects(c, SHAPES[-1]) is None), None)
    return some + ([large] if large and large not in some else [])


def words(tensor: Any) -> int:
    """32-bit words that a tensor fills; the last of an odd number of elements is left out."""
    return int(tensor.numel() * tensor.element_size() // 4)


class Chain:
    """A GPU, the foreign kernel, and ours; everything on one stream, which is torch's too."""

    def __init__(self) -> None:
        from sassafras.cuda.compile import compile_cuda
        from sassafras.cuda.driver import Gpu

        self.gpu = Gpu()
        torch.cuda.set_device(0)
        self._stream = torch.cuda.ExternalStream(int(self.gpu.stream))
        torch.cuda.set_stream(self._stream)
        text = Path(__file__).with_name("chains.cu").read_text()
        self._link = self.gpu.load(compile_cuda(text, "sm_90a", name="chains.cu"), "chain_link")
        self._functions: dict[Any, Any] = {}

    def times(self) -> Any:
        """When a link begins and when it ends."""
        return torch.tensor([2**62, 0], dtype=torch.int64, device="cuda")

    def link(
        self, times: Any, before: tuple[Any, Any] | None = None, after: tuple[Any, Any] | None = None, *,
        us: int = 0, first: bool = False, overlap: bool = True,
    ) -> Callable[[], None]:  # fmt: skip
        """A foreign launch that copies (from, to) before its own wait and behind it."""
        pairs = {"before": before or (times, times), "after": after or (times, times)}
        addresses = {
            f"{when}_{way}": int(tensor.data_ptr())
            for when, pair in pairs.items()
            for way, tensor in zip(("from", "to"), pair, strict=True)
        }
        scalars = {
            "before_words": words(before[0]) if before else 0, "after_words": words(after[0]) if after else 0,
            "microseconds": us, "first": int(first),
        }  # fmt: skip
        launch = Launch((_LINK_CTAS, 1, 1), _LINK_THREADS, 0, (1, 1, 1), scalars, overlap=overlap)
        return self._bound(self._link, _LINK, launch, {**addresses, "times": int(times.data_ptr())})

    def ours(self, config: Any, shape: Shape, a: Any, b: Any, c: Any) -> Callable[[], None]:
        """A call of ours: one launch, or two."""
        has_epilogue = bool(getattr(config.instance, "epilogue", False))
        launch = epilogue.launch(config, shape) if has_epilogue else config.launch(shape)
        workspace = torch.full((launch.workspace_bytes // 4 + 4,), float("nan"), device="cuda")
        first, second = (b, a) if config.swap_ab else (a, b)
        kept = (a, b, c, workspace)
        addresses = {
            **{name: int(t.data_ptr()) for name, t in zip("abc", (first, second, c), strict=True)},
            "workspace": int(workspace.data_ptr()), "bias": 0, "addend": 0,
        }  # fmt: skip
        calls = [self._bound(self._function(config.instance), config.instance.parameters, launch, addresses)]
        if launch.then is not None:
            then = launch.then
            function = self._function(then.instance)
            calls.append(self._bound(function, then.instance.parameters, then.launch, addresses))

        def both(kept: Any = kept) -> None:
            for call in calls:
                call()

        return both

    def run(self, links: list[Callable[[], None]]) -> None:
        """All of them, one right behind the other."""
        self.gpu.sync()
        for enqueue in links:
            enqueue()
        assert self.gpu.wait(20.0), "the chain does not end"

    def _function(self, instance: Any) -> Any:
        from sassafras.cuda.driver import call
        from sassafras.gemm.build.cubins import cubin
        from sassafras.gemm.problem.launch import SHARED_LIMIT

        if instance not in self._functions:
            function = self.gpu.load(cubin(instance), instance.name)
            which = self.gpu.driver.CUfunction_attribute
            limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(self.gpu.driver.cuFuncSetAttribute, function.handle, limit, SHARED_LIMIT)
            self._functions[instance] = function
        return self._functions[instance]

    def _bound(
        self, function: Any, parameters: Any, launch: Launch, addresses: dict[str, int]
    ) -> Callable[[], None]:
        block = packed(parameters, launch, addresses, self.gpu.driver)
        where = self.gpu.config(
            launch.grid, launch.threads, launch.shared_bytes, launch.cluster, overlap=launch.overlap
        )
        return lambda: self.gpu.launch(where, function, block.address)


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    if not (torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)):
        pytest.skip("needs a Hopper GPU")
    before = torch.cuda.current_stream()
    yield Chain()
    torch.cuda.synchronize()
    torch.cuda.set_stream(before)


def noise(count: int, seed: int) -> Any:
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    return torch.randint(0, 2**31, (count,), generator=generator, device="cuda", dtype=torch.int32)


@pytest.mark.alone
@pytest.mark.parametrize("first", [False, True], ids=["behind the wait", "at once"])
def test_what_a_successor_may_rely_on(chain: Chain, first: bool) -> None:
    """What the other tests stand on: with a trigger at once in the middle, the third kernel runs beside the
    first one and reads what is not there yet; with a trigger behind the wait it does not. Behind its own wait
    it always reads what the first one wrote."""
    source, target, early, late = (noise(5000, seed) for seed in range(4))
    beside = 0
    for _ in range(20):
        target.zero_()
        times = [chain.times() for _ in range(3)]
        chain.run([
            chain.link(times[0], after=(source, target), us=MICROSECONDS, first=True, overlap=False),
            chain.link(times[1], first=first),
            chain.link(times[2], before=(target, early), after=(target, late)),
        ])  # fmt: skip
        assert torch.equal(late, source)
        begin, end = int(times[2][0]), int(times[0][1])
        beside += begin < end
        assert torch.equal(early, source) == (begin >= end)
    print(f"the third kernel began before the first one ended in {beside} of 20 chains")
    assert beside > 10 if first else beside == 0


def matrices(config: Any, shape: Shape) -> tuple[Any, Any, Any]:
    """A and B as they lie, of small integers, so that every order of summation gives the same bits; A B."""
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float16
    generator = torch.Generator(device="cuda")
    generator.manual_seed(shape.m + 3 * shape.n + 7 * shape.k)

    def small(*extents: int) -> Any:
        return torch.randint(-2, 3, extents, generator=generator, device="cuda").to(dtype)

    a, b = small(shape.m, shape.k), small(shape.k, shape.n)
    wanted = (a.float() @ b.float()).to(dtype)
    a = a.t().contiguous() if config.layout[1] == "t" else a
    return a, b.t().contiguous() if config.layout[0] == "t" else b, wanted


def faults(chain: Chain, config: Any, shape: Shape) -> list[str]:
    """What went wrong in three chains around a configuration."""
    a, b, wanted = matrices(config, shape)
    made, again = torch.empty_like(wanted), torch.empty_like(wanted)
    first, second = (chain.ours(config, shape, a, b, c) for c in (made, again))
    source, early, late = a.clone(), torch.empty_like(a), torch.empty_like(wanted)
    early_c = torch.empty_like(wanted)
    old, new, seen = noise(5000, 1), noise(5000, 2), noise(5000, 3)
    held, found = old.clone(), []

    def poison(*, zero: bool) -> tuple[Any, Any]:
        for tensor in (made, again, early, late, early_c):
            tensor.fill_(float("nan"))
        if zero:  # but for an odd element, which the foreign kernel does not copy
            a.view(-1)[:-1].zero_()
        return chain.times(), chain.times()

    def same(x: Any, y: Any) -> bool:
        count = 2 * words(x)
        return torch.equal(x.view(torch.int16).flatten()[:count], y.view(torch.int16).flatten()[:count])

    def check(kind: str, times: tuple[Any, Any], *pairs: tuple[Any, Any]) -> None:
        found.extend(f"{kind}: pair {number}" for number, pair in enumerate(pairs) if not same(*pair))
        if int(times[1][0]) < int(times[0][1]):
            found.append(f"{kind}: the last kernel began before the first one ended")

    # A is written by the kernel before ours and read, before its wait, by the one behind it
    times = poison(zero=True)
    chain.run([
        chain.link(times[0], after=(source, a), us=MICROSECONDS, first=True, overlap=False), first,
        chain.link(times[1], before=(a, early), after=(made, late)),
    ])  # fmt: skip
    check("read", times, (early, source), (made, wanted), (late, wanted))
    # ours twice: the last kernel reads C of the first before its wait
    times = poison(zero=True)
    chain.run([
        chain.link(times[0], after=(source, a), us=MICROSECONDS, first=True, overlap=False), first, second,
        chain.link(times[1], before=(made, early_c), after=(again, late)),
    ])  # fmt: skip
    check("twice", times, (early_c, wanted), (again, wanted), (late, wanted))
    # what the first kernel still reads is overwritten by the last one before its wait
    times = poison(zero=False)
    chain.run([
        chain.link(times[0], after=(held, seen), us=MICROSECONDS, first=True, overlap=False), first,
        chain.link(times[1], before=(new, held), after=(made, late)),
    ])  # fmt: skip
    check("write", times, (seen, old), (held, new), (late, wanted))
    return [f"{config.name} {shape}: {why}" for why in found]


KINDS = sorted(
    {type(i).__name__ + "+epilogue" * bool(getattr(i, "epilogue", False)) for i in every_instance()}
)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_around_every_instance_in_every_mode(chain: Chain, kind: str) -> None:
    from sassafras.gemm.build.cubins import build

    mine = {
        i: configs
        for i, configs in every_instance().items()
        if type(i).__name__ + "+epilogue" * bool(getattr(i, "epilogue", False)) == kind
    }
    build(mine)
    wrong, ran = [], 0
    for instance, configs in mine.items():
        tried = cases(configs)
        assert tried, f"no shape suits {instance.name}"
        for config, shape in tried:
            for mode in config.in_modes():
                wrong += faults(chain, mode, shape)
                ran += 1
    print(f"{kind}: {len(mine)} instances, {ran} configurations in their modes, 3 chains each")
    assert not wrong, wrong[:10]
