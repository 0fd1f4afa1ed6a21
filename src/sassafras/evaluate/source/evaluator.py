"""`SourceEvaluator`: builds a source, then judges the kernel like every other candidate."""

from __future__ import annotations

from collections import OrderedDict

from sassafras.core import Candidate, Case, Device, Evaluation, Kernel, Modelled, Outcome, Workload

from ..evaluator import KernelEvaluator
from ..roofline import impossible
from ..sandbox import Confinement
from .building import Built, build
from .text import Source

#: how many built sources an evaluator remembers
REMEMBERED = 4096


class SourceEvaluator:
    """Judges `Source` candidates on an open device; the same path as every other candidate after building.

    Args:
        device: open for `case` and `baseline`. A `CudaDevice` must have been made with ``bitwise=False``,
            unless candidates are to reproduce the baseline's bits.
        workload, case, baseline: what the candidates stand in for.
        confinement: of the builds.
    """

    def __init__(
        self,
        device: Device,
        workload: Workload,
        case: Case,
        baseline: Kernel,
        *,
        confinement: Confinement | None = None,
    ) -> None:
        self.workload, self.case, self.baseline = workload, case, baseline
        self.confinement = confinement or Confinement()
        self.fp32 = workload.meta.get("accumulate") == "fp32"
        self.inner = KernelEvaluator(
            device,
            None,
            baseline,
            implausible=lambda time_us: impossible(time_us, case, workload.meta),
        )
        self._built: OrderedDict[str, Built] = OrderedDict()

    def build(self, source: Source) -> Built:
        """`build` for this case and arch, remembered by the source's contents."""
        key = source.key
        if key not in self._built:
            self._built[key] = build(
                source,
                self.case,
                self.baseline.arch,
                confinement=self.confinement,
                fp32_accumulation=self.fp32,
            )
            while len(self._built) > REMEMBERED:
                self._built.popitem(last=False)
        return self._built[key]

    def candidate(self, source: Source) -> Candidate:
        """What is recorded: the built kernel, or (digest of) the text where there is none."""
        built = self.build(source)
        recipe = {**source.recipe, "source": source.describe()}
        if built.kernel is not None:
            return Candidate(built.kernel, recipe)
        stand_in = Kernel(source.key.encode(), source.entry or "", self.baseline.arch, source.threads)
        return Candidate(stand_in, {**recipe, "not_built": True})

    def evaluate(self, source: Source) -> Outcome:
        """Build and judge one source. Never raises for the source's fault: the verdict says it.

        Raises:
            DeviceError: the device failed.
            NotSafe: this machine cannot confine a compiler.
        """
        built, candidate = self.build(source), self.candidate(source)
        if built.kernel is not None:
            return self.inner.evaluate(candidate)
        assert built.verdict is not None
        kind = Modelled if self.inner.device.modelled else Evaluation
        outcome: Outcome = kind(
            candidate.digest,
            built.verdict,
            detail=built.detail,
            seconds=built.seconds,
            facts=dict(built.facts),
        )
        return self.inner.settle(candidate, outcome)
