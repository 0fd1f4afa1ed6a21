"""A case made ready on the GPU: its arena, pristine images, what the baseline left, and the checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sassafras.core import Buffer, Case, DeviceError, Kernel, Tolerance
from sassafras.core.tensor_map import TensorMap
from sassafras.core.workload import Fill, Reference, reference_values
from sassafras.cuda.driver import Gpu, KernelFunction
from sassafras.cuda.params import ParameterBlock, values
from sassafras.cuda.tensor_maps import encode

from .compare import Checker
from .guarded_buffers import BufferLayout, Segment, make_image, view
from .protocol import launch_key

#: baseline launches on the first image before it counts as bitwise reproducible
BASELINE_RUNS = 8
#: what a candidate's RMS error and its largest error may be of a library's (`Workload.peer`): both round the
#: same sums once, so honest ones differ by little
RMS_FACTOR, LARGEST_FACTOR = 1.1, 1.5


@dataclass(slots=True)
class Image:
    """One set of inputs: the arena before a launch, and as the baseline's launch left it.

    `after_block` is what a whole block of baseline launches leaves; the same tensor as `expected` where
    launching again changes nothing. `limits`: largest RMS and element error of each output.
    """

    label: str
    pristine: Any
    expected: Any = None
    after_block: Any = None
    reference: Mapping[str, Any] | None = None
    exact: bool = False
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """How one kernel is launched on one arena."""

    config: Any
    params: ParameterBlock
    keep: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed. `kind` is ``output``, ``input`` (modified) or ``guard`` (stray write)."""

    kind: str
    detail: str


class CaseOnGpu:
    """See the module. All launches go to the one live arena, so that addresses are the same for everyone.

    Args:
        gpu: the GPU.
        checker: compare and scrub kernels.
        case: shape, grid and arguments.
        reference, tolerance, peer: of the workload.
        bitwise: False where candidates may differ from the baseline within the tolerance.

    Attributes:
        errors: of the last outputs that were judged by the reference, relative to its RMS: (RMS, largest);
            the worst output's.
        exact: outputs are compared bitwise; False when the baseline differs from itself.
        idempotent: launching again without restoring leaves the arena as it is.
    """

    def __init__(
        self,
        gpu: Gpu,
        checker: Checker,
        case: Case,
        reference: Reference | None,
        tolerance: Tolerance,
        *,
        bitwise: bool = True,
        peer: Reference | None = None,
    ) -> None:
        import torch

        self.gpu, self.checker, self.case = gpu, checker, case
        self.reference, self.tolerance, self.peer = reference, tolerance, peer
        self.errors: tuple[float, float] | None = None
        self.layout = BufferLayout.of(case)
        if not self.layout.segments:
            raise DeviceError("the case has no buffers, so nothing can be compared", where=case.name)
        free, _ = gpu.free_memory()
        if 6 * self.layout.nbytes > free:
            raise DeviceError(
                f"the case's buffers take {self.layout.nbytes >> 20} MiB, and their copies for checking do "
                f"not fit in the GPU's {free >> 20} MiB free",
                where=case.name,
                hint="use smaller shapes",
            )
        self.live = torch.empty(self.layout.nbytes, dtype=torch.uint8, device="cuda")
        self.images: list[Image] = []
        self.exact = bitwise
        self.idempotent = True
        # state that no reference describes: where the baseline leaves the same bytes, everyone has to
        self._states = [s for s in self.layout.segments if s.buffer.role == "inout"]
        self._snapshots: list[tuple[str, Image, Any]] = []
        self._plans: dict[tuple[Any, ...], Plan] = {}

    # -- launching ----------------------------------------------------------------------------------------

    def plan(
        self, kernel: Kernel, function: KernelFunction, arena: Any = None, *, shared: Collection[str] = ()
    ) -> Plan:
        """Bind a kernel to an arena (the live one by default), but for `shared` buffers to the live one.

        Raises:
            DeviceError: the kernel's parameters do not fit the case.
        """
        own = arena is None
        arena = self.live if own else arena
        # kernels of other names that are launched alike share a plan, and its scratch memory
        key = (launch_key(replace(kernel, name="")), function.sizes)
        if own and key in self._plans:
            return self._plans[key]
        base = int(arena.data_ptr())
        live = int(self.live.data_ptr())
        addresses = {s.name: (live if s.name in shared else base) + s.offset for s in self.layout.segments}
        keep = []
        scratch = 0
        grid = tuple(kernel.meta.get("grid") or self.case.grid)
        case = replace(self.case, args={**self.case.args, **kernel.meta.get("scalars", {})})
        if kernel.scratch_bytes and kernel.hidden_args:
            import torch

            x, y, z = grid
            block = torch.zeros(kernel.scratch_bytes * x * y * z, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            keep.append(block)
            scratch = int(block.data_ptr())
        maps = {
            name: encode(self.gpu.driver, described, addresses[described.operand])
            for name, described in (
                (name, TensorMap.from_json(facts))
                for name, facts in (kernel.meta.get("tensor_maps") or {}).items()
            )
        }
        params = ParameterBlock(
            values(kernel, case, addresses, scratch, maps),
            function.sizes,
            where=f"{kernel.name}, case {self.case.name}",
        )
        config = self.gpu.config(
            grid,
            kernel.threads,
            kernel.shared_bytes,
            kernel.cluster,
            overlap=bool(kernel.meta.get("overlap")),
        )
        plan = Plan(config, params, keep)
        if own:
            self._plans[key] = plan
        return plan

    def launch(self, plan: Plan, function: KernelFunction) -> None:
        """Enqueue one launch."""
        self.gpu.launch(plan.config, function, plan.params.address)

    def restore(self, image: Image) -> None:
        """Enqueue: inputs, poisoned outputs and guards as they were before any launch."""
        self.gpu.copy(int(self.live.data_ptr()), int(image.pristine.data_ptr()), self.layout.nbytes)

    def graph(self, plan: Plan, function: KernelFunction, launches: int) -> Any:
        """An executable graph of that many launches, one after the other."""

        def enqueue() -> None:
            for _ in range(launches):
                self.launch(plan, function)

        return self.gpu.capture(enqueue)

    # -- preparing ----------------------------------------------------------------------------------------

    def add_image(
        self,
        kernel: Kernel,
        function: KernelFunction,
        *,
        seed: int,
        poison: int,
        special: bool = False,
        fills: Mapping[str, Fill] | None = None,
    ) -> Image:
        """Make inputs and run the baseline on them; the first image also decides `exact` and `idempotent`.

        Args:
            fills: of some inputs, instead of their own; the results are exact (`Workload.exact`).

        Raises:
            DeviceError: the baseline differs from the reference by more than the tolerance, modifies an
                input, or writes outside its buffers.
        """
        label = (
            f"seed {seed}" + (", special values" if special else "") + (", exact products" if fills else "")
        )
        layout = self.layout.filled(fills) if fills else self.layout
        pristine = make_image(layout, seed=seed, poison=poison, special=special)
        image = Image(label, pristine, exact=fills is not None)
        self._run_baseline(image, kernel, function, first=not self.images)
        if self.reference is not None and not special:
            self._check_reference(image)
        self.images.append(image)
        return image

    def _run_baseline(self, image: Image, kernel: Kernel, function: KernelFunction, *, first: bool) -> None:
        import torch

        torch.cuda.synchronize()
        plan = self.plan(kernel, function)
        left: Any = None
        for _ in range(BASELINE_RUNS if first else 2):
            self.restore(image)
            self.checker.scrub()
            self.launch(plan, function)
            self.gpu.sync()
            if left is None:
                left = self.live.clone()
                torch.cuda.synchronize()
                continue
            self.exact = self.exact and bool(torch.equal(left, self.live))
            self._states = [s for s in self._states if self._unmoved(s, left)]
        image.expected = image.after_block = left
        for begin, end in self.layout.unchanged_ranges():
            different = (left[begin:end] != image.pristine[begin:end]).nonzero()
            if different.numel():
                kind, place = self.layout.where(begin + int(different[0]))
                raise DeviceError(
                    f"the baseline itself writes where it must not: {place}"
                    + (" (declared as an input)" if kind == "in" else ""),
                    where=f"case {self.case.name}",
                    hint="declare that buffer as out or inout, or correct its shape",
                )
        if first:
            self.launch(plan, function)
            self.gpu.sync()
            if self.exact:
                self.idempotent = bool(torch.equal(self.live, left))
            else:
                self.idempotent = self._distance(self.live, self._outputs(left)) is None
                self.idempotent &= all(self._unmoved(s, left) for s in self._states)

    def _unmoved(self, segment: Segment, left: Any) -> bool:
        """Whether a buffer's live bytes are those of `left`."""
        import torch

        begin, end = segment.offset, segment.end
        return bool(torch.equal(left[begin:end], self.live[begin:end]))

    def prepare_block(self, plan: Plan, function: KernelFunction, launches: int) -> None:
        """Where launching again changes the outputs: record what a whole block of the baseline leaves."""
        if self.idempotent or not self.exact:
            return
        import torch

        image = self.images[0]
        self.restore(image)
        for _ in range(launches):
            self.launch(plan, function)
        self.gpu.sync()
        image.after_block = self.live.clone()
        torch.cuda.synchronize()

    # -- checking -----------------------------------------------------------------------------------------

    def check_launch(self, image: Image, plan: Plan, function: KernelFunction, label: str) -> None:
        """Enqueue: restore, scrub registers, launch once, compare. `Checker.failures` gives the outcome."""
        self.restore(image)
        self.checker.scrub()
        self.launch(plan, function)
        self.compare(image, label)

    def compare(self, image: Image, label: str, *, block: bool = False) -> None:
        """Enqueue a comparison of the live arena with what the baseline left (after a block: `block`)."""
        where = f"case {self.case.name}, {image.label}, {label}"
        live = int(self.live.data_ptr())
        if self.exact:
            expected = image.after_block if block else image.expected
            self.checker.compare(live, int(expected.data_ptr()), self.layout.nbytes, where, self.layout, 0)
            return
        pristine = int(image.pristine.data_ptr())
        for begin, end in self.layout.unchanged_ranges():
            if end > begin:
                self.checker.compare(live + begin, pristine + begin, end - begin, where, self.layout, begin)
        if block and not self.idempotent:
            return  # the outputs of a whole block cannot be known where the baseline differs from itself
        expected = int(image.expected.data_ptr())
        for s in self._states:
            if s.name not in (image.reference or {}):
                begin, nbytes = s.offset, -(-s.buffer.nbytes // 16) * 16
                self.checker.compare(live + begin, expected + begin, nbytes, where, self.layout, begin)
        import torch

        copy = torch.empty_like(self.live)
        self.gpu.copy(int(copy.data_ptr()), live, self.layout.nbytes)
        self._snapshots.append((where, image, copy))

    def tolerance_failures(self) -> list[Failure]:
        """Judge outputs within the tolerance, where bitwise comparison is impossible. Call after a sync."""
        failures = []
        for where, image, copy in self._snapshots:
            if image.reference is None:
                if self.idempotent:
                    problem = self._distance(copy, self._outputs(image.expected))
                else:
                    problem = None
            else:
                problem = self._distance(copy, image.reference, exact=image.exact)
                problem = problem or self._excess(copy, image)
            if problem:
                failures.append(Failure("output", f"{where}: {problem}"))
        self._snapshots.clear()
        return failures

    def forget(self) -> None:
        """Drop pending judgements (after an error)."""
        self._snapshots.clear()

    def _outputs(self, arena: Any) -> dict[str, Any]:
        return {s.name: view(arena, s) for s in self.layout.segments if s.buffer.role != "in"}

    def _errors(self, arena: Any, wanted: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        outputs = self._outputs(arena)
        return {name: relative_errors(outputs[name], target) for name, target in wanted.items()}

    def _excess(self, arena: Any, image: Image) -> str | None:
        """Why the errors are larger than a library's allow; notes `errors`."""
        if image.exact or image.reference is None or (self.errors and not image.limits):
            return None
        errors = self._errors(arena, image.reference)
        self.errors = max(errors.values(), default=None)
        for name, (rms, largest) in errors.items():
            most_rms, most = image.limits.get(name, (float("inf"), float("inf")))
            if rms > most_rms:
                return f"the RMS error of {name} is {rms:.3g}, above {RMS_FACTOR} times a library's"
            if largest > most:
                factor = LARGEST_FACTOR
                return f"the largest error of {name} is {largest:.3g}, above {factor} times a library's"
        return None

    def _distance(self, arena: Any, wanted: Mapping[str, Any], *, exact: bool = False) -> str | None:
        """None when every output is within the tolerance; else which is not, and by how much."""
        import torch

        tolerance = Tolerance(0.0, 0.0) if exact else self.tolerance
        for name, output in self._outputs(arena).items():
            if name not in wanted:
                continue
            target = wanted[name]
            if tuple(target.shape) != tuple(output.shape):
                raise DeviceError(
                    f"the reference gives shape {tuple(target.shape)} for {name}, the buffer has "
                    f"{tuple(output.shape)}",
                    where=f"case {self.case.name}",
                )
            got = output.to(torch.float64)
            want = target.to(device=got.device, dtype=torch.float64)
            bad = ~tolerance.close(got, want)
            if bool(bad.any()):
                worst = (got - want).abs()[bad].nan_to_num(nan=float("inf")).max()
                count = f"{int(bad.sum())} of {bad.numel()}"
                return f"{count} elements of {name} differ, by up to {float(worst):.3g}"
        return None

    def _check_reference(self, image: Image) -> None:
        import torch

        assert self.reference is not None
        tensors: dict[str, Any] = {}
        for segment in self.layout.segments:
            tensors[segment.name] = view(image.pristine, segment).clone()
        for name, argument in self.case.args.items():
            if not isinstance(argument, Buffer):
                tensors[name] = argument
        for name, constant in self.case.constants.items():
            tensors.setdefault(name, constant)
        image.reference = reference_values(self.reference, tensors)
        torch.cuda.synchronize()
        unknown = set(image.reference) - set(self._outputs(image.expected))
        if unknown:
            raise DeviceError(
                f"the reference returns {', '.join(sorted(unknown))}, which is no out or inout buffer",
                where=f"case {self.case.name}",
            )
        problem = self._distance(image.expected, image.reference, exact=image.exact)
        if problem:
            raise DeviceError(
                f"the unmodified kernel differs from the reference: {problem}",
                where=f"case {self.case.name}, {image.label}",
                hint=f"tolerance is rtol {self.tolerance.rtol:g}, atol {self.tolerance.atol:g}",
            )
        if self.peer is not None and not image.exact:
            trusted = self.live.clone()
            for name, value in self.peer(tensors).items():
                self._outputs(trusted)[name].copy_(value)
            for name, (rms, largest) in self._errors(trusted, image.reference).items():
                image.limits = {**image.limits, name: (RMS_FACTOR * rms, LARGEST_FACTOR * largest)}
        if self.exact:
            image.reference = None  # from here on the comparison is bitwise; free the memory


def relative_errors(got: Any, wanted: Any) -> tuple[float, float]:
    """(RMS, largest) difference of two tensors of one shape, relative to the RMS of what is wanted."""
    import torch

    want = wanted.to(device=got.device, dtype=torch.float64)
    off = (got.to(torch.float64) - want).nan_to_num_(nan=0.0).abs_()  # (`to` may be `got` itself)
    scale = float(want.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()) or 1.0
    return float(off.square().mean().sqrt()) / scale, float(off.max()) / scale
