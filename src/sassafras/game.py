"""Where the assembly game meets kernels: the Gymnasium registration, and kernels to train the agent on.

import gymnasium, sassafras.game
game = gymnasium.make("sassafras/AssemblyGame-v0", workload="suite:softmax", device="model")

python -m sassafras.game pretrain --minutes 40 --out policy.npz
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sassafras.core import Case, Device, SassafrasError, SearchError, ToolMissing, Workload

GAME = "sassafras/AssemblyGame-v0"
#: families of suite kernels that the shipped policy was trained on; the others are held out, so that its
#: transfer can be measured on kernels that it has never seen
FAMILIES: dict[str, tuple[str, ...]] = {
    "norm": ("layernorm", "rmsnorm"),
    "loss": ("cross_entropy",),
    "gemm": ("gemm_leakyrelu", "batched_gemm", "feed_forward"),
    "rotary": ("rotary",),
    "swiglu": ("swiglu",),
    "gating": ("topk_gating",),
    "append": ("kv_append",),
}
HELD_OUT: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "attention_causal", "paged_decode"),
    "softmax": ("softmax",),
    "gemv": ("gemv_int8", "gemv_int4"),
    "quantise": ("quantise_fp8",),
}
#: kernels with more instructions are left out of training: thoughts about them take too long
MOST_ROWS = 700


def register() -> None:
    """Make the game known to Gymnasium. Called when this module is imported; safe to call twice."""
    try:
        import gymnasium
    except ImportError:
        return
    if GAME not in gymnasium.registry:
        gymnasium.register(id=GAME, entry_point="sassafras.game:assembly_game")


def assembly_game(
    workload: str | Path | Workload,
    *,
    case: str | None = None,
    device: str | Device = "auto",
    arch: str | None = None,
    moves: str = "memory",
    view: str = "all",
    horizon: int = 32,
    rows: int | None = None,
    noise: float | None = None,
    reward_noise: float = 0.0,
    render_mode: str | None = None,
) -> Any:
    """The assembly game of one kernel: what ``gymnasium.make("sassafras/AssemblyGame-v0", ...)`` calls.

    Args:
        workload: a workload, or what `sassafras.frontend.load` reads.
        case: name of one of its cases; None: the first.
        device: ``auto``, ``cuda``, ``model``, or an unopened `Device`.
        arch: compile for this; None: the device's own.
        moves: ``memory`` (CuAsmRL's: a memory instruction up or down by one) or ``all``.
        view: ``all`` columns of the features, or ``paper`` for CuAsmRL's.
        horizon, rows, noise, reward_noise: see `search.ppo.game.AssemblyGame`.

    Raises:
        SassafrasError: what is wrong with the workload, the device or the kernel.
        ToolMissing: gymnasium is not installed.
    """
    try:
        from sassafras.search.ppo.game import AssemblyGame
    except ImportError as error:
        raise ToolMissing("the assembly game needs gymnasium", hint="pip install 'sassafras[rl]'") from error
    from sassafras.wiring import DEFAULT_ARCH, load_workload, open_device

    found = load_workload(workload)
    chosen = found.case(case)
    opened = open_device(device, arch)
    try:
        space, evaluate = table(found, chosen, opened, arch or opened.arch or DEFAULT_ARCH, moves, view)
    except BaseException:
        opened.close()
        raise

    class _Played(AssemblyGame):
        def close(self) -> None:
            opened.close()

    return _Played(
        space, evaluate, horizon=horizon, rows=rows, noise=noise, reward_noise=reward_noise,
        render_mode=render_mode,
    )  # fmt: skip


def table(
    workload: Workload, case: Case, device: Device, arch: str, moves: str = "all", view: str = "all"
) -> tuple[Any, Callable[[Any], Any]]:
    """A kernel's schedule space, and what judges its states: validator first, then the device.

    Raises:
        SassafrasError: the kernel cannot be built, scheduled, validated or run.
    """
    from sassafras.evaluate import Evaluator
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    kernel = workload.build(case, arch)
    space: Any = ScheduleSpace(kernel, moves=moves, view=view, arch_by_name=True)  # type: ignore[arg-type]
    validator = Validator(kernel.cubin, kernel.name)
    if not (report := validator.check(kernel.cubin)).ok:
        raise SearchError(f"the validator refuses the unmodified kernel: {report}", where=workload.name)
    device.open(workload, case, kernel)
    judge = Evaluator(device, lambda _, cubin: validator.check(cubin), kernel)
    return space, lambda state: judge.evaluate(space.candidate(state))


def variants(workload: Workload) -> Iterator[tuple[str, Case]]:
    """Each case of a workload with its own number of warps and stages and some others."""
    for case in workload.cases:
        warps, stages = int(case.options.get("num_warps", 4)), case.options.get("num_stages")
        for w in sorted({warps, max(1, warps // 2), min(16, 2 * warps)}):
            for s in {stages} if stages is None else {int(stages), max(1, int(stages) - 1)}:
                options = dict(case.options) | {"num_warps": w} | ({} if s is None else {"num_stages": s})
                yield f"{case.name}/w{w}s{s or ''}", dataclasses.replace(case, options=options)


def boards(families: dict[str, tuple[str, ...]]) -> dict[str, list[Callable[[], Any]]]:
    """Makers of training kernels by family, on the timing model; those with equal code are kept once.

    Compiles everything once (cached by Triton), which takes some minutes the first time.
    """
    from sassafras.frontend import load
    from sassafras.wiring import DEFAULT_ARCH

    made: dict[str, list[Callable[[], Any]]] = {}
    for family, names in families.items():
        seen: set[str] = set()
        for name in names:
            workload = load(f"suite:{name}")
            for label, case in variants(workload):
                try:
                    kernel = workload.build(case, DEFAULT_ARCH)
                except SassafrasError:
                    continue  # that many warps or stages do not fit
                if kernel.digest in seen or _rows(kernel) > MOST_ROWS:
                    continue
                seen.add(kernel.digest)
                made.setdefault(family, []).append(_maker(f"{name}/{label}", family, workload, case))
    return made


def lonely(case: Case) -> Case:
    """The case with one CTA an SM at most.

    With many warps on an SM the timing model is chaotic: moves that mean nothing change its figure by some
    0.3 to 0.6 % of the runtime (seen on norms and softmax), more than a good move gains. With one CTA what a
    move changes is the schedule's own doing, and an evaluation takes a fraction of the time.
    """
    x, y, z = case.grid
    return dataclasses.replace(case, grid=(min(x * y * z, 132), 1, 1))


def _rows(kernel: Any) -> int:
    from sassafras.sass.cubin import Cubin

    try:
        sections = Cubin.parse(kernel.cubin).sections
        return int(next(s.size for s in sections if s.name == f".text.{kernel.name}") // 16)
    except (SassafrasError, StopIteration):
        return MOST_ROWS + 1


def _maker(name: str, family: str, workload: Workload, case: Case) -> Callable[[], Any]:
    def make() -> Any:
        from sassafras.device import ModelDevice
        from sassafras.search.ppo.pretrain import Board
        from sassafras.wiring import DEFAULT_ARCH

        space, evaluate = table(workload, lonely(case), ModelDevice(DEFAULT_ARCH), DEFAULT_ARCH)
        return Board(name, family, space, evaluate)

    return make


def main() -> None:
    """``python -m sassafras.game pretrain``: train the kernel-independent policy on the timing model."""
    parse = argparse.ArgumentParser(description=main.__doc__)
    parse.add_argument("what", choices=["pretrain"])
    parse.add_argument("--minutes", type=float, default=40.0, help="of this sitting")
    parse.add_argument(
        "--out", type=Path, default=Path("policy.npz"), help="the policy, without Adam's state"
    )
    parse.add_argument("--checkpoint", type=Path, help="to resume from [default: OUT.training.npz]")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--all-families", action="store_true", help="hold nothing out")
    given = parse.parse_args()
    from sassafras.search.ppo.pretrain import Trainer

    families = FAMILIES | HELD_OUT if given.all_families else FAMILIES
    held = {} if given.all_families else HELD_OUT
    drawn = boards(families)
    print({family: len(made) for family, made in drawn.items()}, flush=True)
    kept = given.checkpoint or given.out.with_suffix(".training.npz")
    trainer = Trainer(drawn, seed=given.seed, path=kept)
    trainer.train(seconds=60 * given.minutes, every=5, say=lambda line: print(line, flush=True))
    trainer.save(
        given.out, optimizer=False, held_out=sorted(n for names in held.values() for n in names),
        kernels={family: len(made) for family, made in drawn.items()}, device="timing model of sm_90",
    )  # fmt: skip
    print(f"{trainer.iteration} iterations, {trainer.evaluations} evaluations -> {given.out}")


register()

if __name__ == "__main__":
    main()
