"""One Python candidate beside the baseline: fresh inputs, comparisons, timing, what gives a cheat away.

A call's inputs come into a process's memory while it is stopped, and its clock runs as soon as it is not:
there is no moment in which they could be looked at, or worked on, for nothing. Inputs follow from a secret
number that is drawn for each candidate, so that they cannot be foreseen either.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sassafras.core import Buffer, DeviceError, Verdict, Workload
from sassafras.core.statistics import bootstrap_median, paired_ratios
from sassafras.core.workload import reference_values
from sassafras.evaluate.gpu.guarded_buffers import TORCH_DTYPES, Segment, fill, view

from .process import HostProcess, Lost

#: sets of inputs and outputs, each in a place of its own: the timed calls of a round
BATCH = 4
#: one more, for an untimed call ahead of a round: neither is timed on what the other left in the caches
WARM = -1
#: bytes of one set from which on a round has one timed call, and one former result is remembered
LARGE = 256 << 20
#: a candidate that profits this much from repeated inputs, beyond the baseline
SUSPICIOUS = 2.0
#: and by at least this many microseconds a call
SUSPICIOUS_US = 300.0
#: one that profits this much is looked at again
DOUBTFUL = 1.3
#: rounds of fresh inputs that an accusation rests on, in at least three looks
ACCUSED = 24
#: former results that a candidate's wrong ones are compared with
REMEMBERED = 8
#: microseconds a call of baseline and candidate, by round
Times = tuple[list[float], list[float]]
#: bytes between two tensors in shared memory, at least, and what they are aligned to
_PAGE = 4096


@dataclass(frozen=True)
class HostTask:
    """What baseline and candidate are asked to compute.

    Attributes:
        workload: with a reference; its tolerance applies.
        inputs, outputs: the case's buffers by name.
        scalars: the case's other arguments and its constants.
        slots: sets of inputs and outputs, `WARM` the last: their places in shared memory.
        bytes: of that memory.
        device: ``cpu`` or ``cuda``.
        rounds: interleaved rounds of fresh inputs that are timed.
        alone: raises `Lost` unless the candidate has left the GPU idle; None where there is none.
        draw: ``draw(seed)``: all inputs by name, as CPU tensors; None where each is made as its buffer says.
    """

    workload: Workload
    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    scalars: Mapping[str, Any]
    slots: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]
    bytes: int
    device: str
    rounds: int
    alone: Callable[[], None] | None = None
    draw: Callable[[int], Mapping[str, Any]] | None = None

    def inputs_of(self, seed: int, number: int) -> dict[str, Any]:
        """Inputs by name, as contiguous CPU tensors, of the `number`-th draw from `seed`.

        Raises:
            DeviceError: `draw` gave other shapes or types than the case says.
        """
        import torch

        def drawn(index: int) -> int:
            state = np.random.SeedSequence([seed, number, index]).generate_state(1, np.uint64)
            return int(state[0]) >> 1

        made: dict[str, Any] = {}
        together = self.draw(drawn(0)) if self.draw is not None else {}
        for index, (name, buffer) in enumerate(self.inputs.items()):
            if self.draw is None:
                generator = torch.Generator().manual_seed(drawn(index))
                tensor = fill(Segment(name, 0, buffer), generator, "cpu").view(buffer.shape)
            else:
                tensor = together[name]
                has = f"{tuple(tensor.shape)} {tensor.dtype}"
                due = f"{buffer.shape} torch.{TORCH_DTYPES[buffer.dtype]}"
                if has != due:
                    raise DeviceError(
                        f"input {name} is {has} in one draw and {due} in another",
                        where=self.workload.name,
                        hint="judge one shape at a time",
                    )
            made[name] = tensor.contiguous()
        return made


def lay_out(
    inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]
) -> tuple[list[dict[str, list[dict[str, Any]]]], int]:
    """Places of `BATCH` + 1 sets of tensors in shared memory, of `LARGE` ones two; its size in bytes."""
    at, slots = _PAGE, []
    once = sum(buffer.nbytes for buffers in (inputs, outputs) for buffer in buffers.values())
    for _ in range(2 if once >= LARGE else BATCH + 1):
        slot: dict[str, list[dict[str, Any]]] = {"inputs": [], "outputs": []}
        for kind, buffers in (("inputs", inputs), ("outputs", outputs)):
            for name, buffer in buffers.items():
                slot[kind].append(
                    {
                        "name": name,
                        "offset": at,
                        "bytes": buffer.nbytes,
                        "shape": list(buffer.shape),
                        "dtype": TORCH_DTYPES[buffer.dtype],
                    }
                )
                at = -(-(at + buffer.nbytes) // _PAGE) * _PAGE + _PAGE
        slots.append(slot)
    return slots, at


class HostSession:
    """One candidate beside the baseline: the inputs written last, what is expected, what came.

    Args:
        task: what both compute.
        baseline, candidate: their processes, ready for requests; they stay the caller's.
        control: another process of the baseline, timed in the same rounds; None for no A/A control.

    Attributes:
        samples: outputs of the candidate compared so far.
        worst: largest absolute and relative error of an element of them.
    """

    def __init__(
        self,
        task: HostTask,
        baseline: HostProcess,
        candidate: HostProcess,
        control: HostProcess | None = None,
    ) -> None:
        self.task = task
        self.samples = 0
        self.worst = [0.0, 0.0]
        self._control = control
        self._null: list[float] = []
        self._baseline, self._candidate = baseline, candidate
        self.seed = secrets.randbits(62)
        self._drawn = 0
        self._timed_slots = range(len(task.slots) - 1)
        self._written: list[dict[str, np.ndarray]] = [{} for _ in task.slots]
        self._expected: list[dict[str, np.ndarray]] = [{} for _ in task.slots]
        self._earlier: list[dict[str, np.ndarray]] = []

    # -- inputs ---------------------------------------------------------------------------------------------

    def _fresh(self, slots: Sequence[int]) -> None:
        """Draw new inputs for these slots, and find out what is expected."""
        for slot in slots:
            self._drawn += 1
            inputs = self.task.inputs_of(self.seed, self._drawn)
            if slot == WARM:
                self._written[slot] = {name: raw_bytes(made) for name, made in inputs.items()}
            else:
                self._expect(slot, inputs)

    def _expect(self, slot: int, inputs: Mapping[str, Any]) -> None:
        """These are a slot's inputs; find out what is expected of them."""
        import torch

        task = self.task
        assert task.workload.reference is not None
        self._written[slot] = {name: raw_bytes(made) for name, made in inputs.items()}
        tensors: dict[str, Any] = {**task.scalars, **inputs}
        for name, buffer in task.outputs.items():
            blank = torch.zeros(buffer.nbytes, dtype=torch.uint8)
            tensors[name] = view(blank, Segment(name, 0, buffer))
        if self._expected[slot]:
            remembered = REMEMBERED if len(self._timed_slots) > 1 else 1
            self._earlier = [*self._earlier, self._expected[slot]][-remembered:]
        wanted = reference_values(task.workload.reference, tensors)
        self._expected[slot] = {n: wanted[n].detach().cpu().to(torch.float64).numpy() for n in task.outputs}

    def _call(self, process: HostProcess, slot: int) -> float:
        """Seconds of one call; inputs written, outputs poisoned, while it is stopped. Raises Lost."""
        for row in self.task.slots[slot]["inputs"]:
            process.memory[_place(row)] = self._written[slot][row["name"]].data
        for row in self.task.slots[slot]["outputs"]:
            process.memory[_place(row)] = b"\xff" * row["bytes"]
        return process.ask(slot)

    def _call_baseline(self, process: HostProcess, slot: int) -> float:
        """What befalls the baseline is no fault of the candidate's: DeviceError."""
        try:
            return self._call(process, slot)
        except Lost as error:
            raise DeviceError(f"the baseline was lost: {error}", where=self.task.workload.name) from error

    # -- results --------------------------------------------------------------------------------------------

    def _compare(self, slot: int, when: str) -> None:
        """Raise Lost unless the candidate's outputs are right and its inputs untouched."""
        memory = self._candidate.memory
        self.samples += 1
        for row in self.task.slots[slot]["inputs"]:
            raw = np.frombuffer(memory, np.uint8, row["bytes"], row["offset"])
            if not np.array_equal(raw, self._written[slot][row["name"]]):
                what = f"{when}: it modified its input {row['name']}"
                raise Lost(Verdict.WRONG_RESULT, what, failed="input", error=self.worst)
        for row in self.task.slots[slot]["outputs"]:
            problem = self._distance(row, memory, self._expected[slot][row["name"]], self.worst)
            if problem is None:
                continue
            if any(self._distance(row, memory, old[row["name"]]) is None for old in self._others(slot)):
                raise Lost(Verdict.CHEATED, f"{when}: {row['name']} is the result of earlier inputs")
            raise Lost(Verdict.WRONG_RESULT, f"{when}: {problem}", failed="values", error=self.worst)

    def _others(self, slot: int) -> list[dict[str, np.ndarray]]:
        """Results that were right for other inputs: of earlier rounds, and of the other slots."""
        return self._earlier + [e for index, e in enumerate(self._expected) if index != slot and e]

    def _distance(
        self, row: Mapping[str, Any], memory: mmap.mmap, wanted: np.ndarray, worst: list[float] | None = None
    ) -> str | None:
        """How an output differs from what is wanted; None where it is within the tolerance.

        Args:
            worst: largest absolute and relative error so far, raised if need be.
        """
        import torch

        raw = torch.from_numpy(np.frombuffer(memory, np.uint8, row["bytes"], row["offset"]).copy())
        got = raw.view(getattr(torch, row["dtype"])).view(row["shape"]).to(torch.float64).numpy()
        with np.errstate(invalid="ignore"):
            close = self.task.workload.tolerance.close(got, wanted)
            if worst is not None:
                error = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, abs(got - wanted))
                ratio = np.where(error == 0.0, 0.0, error / (abs(wanted) + 1e-8))
                found = float(error.max()), float(ratio.max())
                # of numbers that are none the first stays; NumPy's maximum keeps them, Python's does not
                worst[:] = [float(np.maximum(old, new)) for old, new in zip(worst, found, strict=True)]
        if close.all():
            return None
        return f"{int((~close).sum())} of {close.size} elements of {row['name']} differ"

    # -- judging --------------------------------------------------------------------------------------------

    def check_first(self, inputs: Mapping[str, Any]) -> None:
        """Compare the call that the candidate's process made while it loaded, on these inputs. Raises
        Lost."""
        self._expect(WARM, inputs)
        self._compare(WARM, "on its very first call")

    def check(self) -> None:
        """Fresh inputs in every slot, several times over the same memory. Raises Lost."""
        every = self._timed_slots
        for number in range(3):
            self._fresh(every)
            for slot in every:
                self._call(self._candidate, slot)
                self._compare(slot, "on its first calls" if number == 0 else "on later calls")

    def measure(self) -> dict[str, Any]:
        """Time calls on fresh inputs, in turns with the baseline; on repeated inputs beside them, to compare.

        Returns:
            What an `Evaluation` says of the time: ``time_us``, ``baseline_us``, ``speedup``, ``interval``,
            ``null``, ``null_interval``, ``samples``, ``facts``.

        Raises:
            Lost: a wrong result, or gains that only a cheat has.
        """
        (base, mine), again = self._unless_remembered()
        ratios = paired_ratios(base, mine)
        null = paired_ratios(base, self._null) if self._null else None
        return {
            "null": None if null is None else float(np.median(null)),
            "null_interval": None if null is None else bootstrap_median(null),
            "time_us": float(np.median(mine)),
            "baseline_us": float(np.median(base)),
            "speedup": float(np.median(ratios)),
            "interval": bootstrap_median(ratios),
            "samples": self.samples,
            "facts": {
                "wall_time": True,
                "device": self.task.device,
                "seed": self.seed,
                "error": self.worst,
                "repeated_inputs_us": [float(np.median(times)) for times in again],
                "threads": [self._baseline.threads, self._candidate.threads],
                "not_fenced": dict(self._candidate.process.missing),
            },
        }

    def _unless_remembered(self) -> tuple[Times, Times]:
        """Times of the first look: on fresh inputs, and on one call's, again and again.

        Raises Lost when repeated inputs favour the candidate far more than the baseline, which is timed in
        turns with it: what else the machine does falls on both. Where it profits, further looks decide:
        with six rounds on a busy machine, one honest judgement in 40 looked like a cheat's.
        """
        enough = max(3, -(-ACCUSED // self.task.rounds))
        looks: list[tuple[Times, Times]] = []
        while True:
            fresh = self._timed(self.task.rounds, control=not looks)
            looks.append((fresh, self._timed(max(4, self.task.rounds // 2), slot=0)))
            first, again = (
                float(np.median(np.concatenate([paired_ratios(*look[kind]) for look in looks])))
                for kind in (0, 1)
            )
            gain = again / first
            saved = min(min(look[0][1]) for look in looks) - min(min(look[1][1]) for look in looks)
            if gain <= (SUSPICIOUS if len(looks) == enough else DOUBTFUL) or saved <= SUSPICIOUS_US:
                return looks[0]
            if len(looks) == enough:
                text = f"beside the baseline it is {gain:.1f} times faster with repeated inputs"
                raise Lost(Verdict.CHEATED, text)

    def _timed(self, rounds: int, slot: int | None = None, control: bool = False) -> Times:
        """Microseconds a call of baseline and candidate, forward and backward in turn.

        Every call of the candidate is compared.

        Args:
            slot: whose inputs all calls get, as they are; None for fresh inputs.
            control: time the control too, before or behind both in turn.
        """
        third = self._control if control else None
        base: list[float] = []
        mine: list[float] = []
        every = self._timed_slots
        slots, warm = (list(every), WARM) if slot is None else ([slot] * len(every), slot)
        for number in range(rounds):
            if slot is None:
                self._fresh([*slots, WARM])
            turns = [(self._baseline, base), (self._candidate, mine)]
            if third is not None:
                turns.append((third, self._null))
            # each is first, second and third equally often, forward and backward
            turns = turns[number // 2 % len(turns) :] + turns[: number // 2 % len(turns)]
            for process, times in turns if number % 2 == 0 else reversed(turns):
                if process is not self._candidate and self.task.alone is not None:
                    self.task.alone()
                times.append(1e6 * self._turn(process, slots, warm))
        return base, mine

    def _turn(self, process: HostProcess, slots: Sequence[int], warm: int) -> float:
        """Mean seconds of calls of a process on these slots, after an untimed one on `warm`.

        The baseline's outputs are looked at too: what we do between calls must not favour either.
        """
        candidate = process is self._candidate
        call = partial(self._call if candidate else self._call_baseline, process)
        call(warm)
        seconds = 0.0
        for slot in slots:
            seconds += call(slot)
            if candidate:
                self._compare(slot, "during timing")
                continue
            for row in self.task.slots[slot]["outputs"]:
                self._distance(row, process.memory, self._expected[slot][row["name"]], [0.0, 0.0])
        return seconds / len(slots)


def raw_bytes(tensor: Any) -> np.ndarray:
    """A copy of the bytes of a contiguous CPU tensor."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().copy()  # type: ignore[no-any-return]


def _place(row: Mapping[str, Any]) -> slice:
    return slice(row["offset"], row["offset"] + row["bytes"])
