"""Behind sassafras.matmul: who serves a problem, with which kernel; fills the launchers' table.

Nothing here runs on a call that was seen before. A first call waits for no compiler: kernels come from the
package or the cache; a missing one is compiled in a thread while torch serves, and so is the compiled
launcher itself.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError, SassafrasError

from ..build import launcher as build
from ..build import schedules
from ..build.cubins import ARCH, NotKept, cached_path, cubin, stored
from ..configs import attention, joined, rows, turned
from ..configs.epilogue import NUMBERS
from ..configs.registry import Config, Instance
from ..problem.launch import SHARED_LIMIT
from ..select.dataset import DATA
from ..select.gpus import tables_of
from ..select.selector import Choice, Selector
from ..select.table import TunedTable
from . import attention_problem, turned_problem
from .attention_problem import ATTENTION
from .choice import chooser_of, member_of
from .cublaslt import LtMember
from .driver import Driver
from .joined_problem import JOINED, apart
from .launcher_python import KernelLauncher, PythonLauncher, Torch, compiled
from .loading import deciding_digest, load_table
from .plan import KernelPlan, first_legal, plan, plan_alone, plan_attention, plan_joined, why_illegal
from .problem import BETA, BIAS, CONSTANT, DTYPES, MatmulCall, Problem, read
from .turned_problem import TURNED

#: cubins that come with the package, named as in the cache; there may be none
SHIPPED = DATA / "cubins"
#: `Problem.transposed` -> what `status` calls it
_ROWS = {JOINED: "joined", ATTENTION: "attention", TURNED: "turned"}
_ROWS |= {rows.GATED: "gated", rows.RMS_NORM: "rms_norm", rows.LAYER_NORM: "layer_norm"}
#: the same -> what chooses a kernel, and what that is asked of a problem
_AROUND: dict[int, tuple[Callable[..., Any], Callable[[Problem], tuple[Any, ...]]]] = {
    ATTENTION: (lambda *asked: attention.chosen(*asked), attention_problem.asked_of),
    TURNED: (lambda *asked: turned.chosen(*asked), turned_problem.asked_of),
}


@dataclass(slots=True)
class PlannedGpu:
    """What is known of one device: the GPU whose tables serve, and whether a calibration corrected them;
    without a chooser, why torch serves; `deciding_digest`."""

    name: str
    chooser: Selector | None
    why_not: str
    tables_of: str | None = None
    calibrated: bool = False
    digest: str = ""


class Planner:
    """One a process. Slow paths take a lock; the table of plans is read under the GIL.

    Args:
        driver: the CUDA driver.
        torch: torch's functions.
        cache: folder of cubins and of the built launcher.
        background: build and compile in threads (False: at once, for tests and tools).
        lt: finds cuBLASLt, None without it.
        table: instead of `load_table`.
    """

    def __init__(
        self,
        driver: Driver,
        torch: Torch,
        *,
        cache: Path | None = None,
        background: bool = True,
        lt: Callable[[], LtMember | None] = lambda: None,
        table: TunedTable | None = None,
    ) -> None:
        self._on_launcher: Callable[[Any], None] = lambda launcher: None
        self.driver, self.torch, self.cache = driver, torch, cache
        self.launcher: Any = PythonLauncher(driver, torch)
        self.served: dict[Problem, Choice] = {}
        self.around: dict[Problem, str | None] = {}
        self.notes: list[str] = []
        self._table, self._background = table, background
        #: for tests: one of our kernels serves whatever any of them can run, however slowly
        self.everything = False
        self._find_lt, self._lt_known = lt, False
        self._lt: LtMember | None = None
        self._lock = threading.RLock()
        self._gpus: dict[int, PlannedGpu] = {}
        self._functions: dict[tuple[int, Instance], int] = {}
        self._scheduled: dict[tuple[int, Instance], schedules.Scheduled] = {}
        self._compiling: dict[Instance, list[Callable[[], Any]]] = {}
        self._uncompilable: dict[Instance, str] = {}
        self._not_kept: dict[Instance, bytes] = {}
        self._threads: list[threading.Thread] = []
        self._start(self._build_launcher)

    def attach(self, on_launcher: Callable[[Any], None]) -> None:
        """Tell this function of the launcher that serves, now and whenever another takes over."""
        with self._lock:
            self._on_launcher = on_launcher
            on_launcher(self.launcher)

    # -- devices and choices ------------------------------------------------------------------------------

    def gpu(self, ordinal: int) -> PlannedGpu:
        """The device, with its chooser or the reason why there is none."""
        with self._lock:
            if ordinal not in self._gpus:
                self._gpus[ordinal] = self._planned(ordinal)
            return self._gpus[ordinal]

    def _planned(self, ordinal: int) -> PlannedGpu:
        name, (major, minor) = self.driver.facts(ordinal)
        facts = self.driver.hardware(ordinal)
        digest = deciding_digest(name, facts)
        if (major, minor) != (9, 0):
            why = f"our kernels are for sm_90, {name} is sm_{major}{minor}"
            return PlannedGpu(name, None, why, digest=digest)
        version = lt.version if (lt := self._lt_member()) else None
        try:
            found = load_table(name, self.note, facts, version) if self._table is None else self._table
        except SassafrasError as error:  # the file that the environment names
            return PlannedGpu(name, None, str(error), digest=digest)
        if found is None:
            why = f"nothing was tuned for {name} (sassafras tune --products)"
            return PlannedGpu(name, None, why, digest=digest)
        near, calibrated = tables_of(name, facts), "correction" in found.header
        if near != name:
            how = "corrected by its calibration" if calibrated else "sassafras tune --calibrate"
            self.note(f"{name} was not tuned: the tables of {near} serve it ({how})")
        return PlannedGpu(name, chooser_of(name, found, version, facts), "", near, calibrated, digest)

    def choose(self, problem: Problem) -> Choice:
        """The portfolio's member for a problem."""
        if self.everything and (config := first_legal(problem)) is not None:
            return Choice("ours", config, None, 1.0, "every kernel of ours serves")
        gpu = self.gpu(problem.device)
        if gpu.chooser is None:
            return Choice("torch", None, None, 1.0, gpu.why_not)
        return member_of(gpu.chooser, problem)

    # -- plans ----------------------------------------------------------------------------------------------

    def serve(self, key: tuple[int, ...]) -> None:
        """Put a plan for this problem into the launcher, unless another thread has done so meanwhile.

        Raises nothing but bugs: in doubt torch serves.
        """
        problem = Problem(*key)
        with self._lock:
            if self.launcher.knows(problem):
                return
            try:
                served = self._serve(problem)
            except SassafrasError as error:
                self.launcher.add_torch(problem)
                served = Choice("torch", None, None, 1.0, str(error))
                self.note(f"{problem.shape}: {error}")
            self.served[problem] = served

    def serve_rows(self, key: tuple[int, ...]) -> bool:
        """The same for what stands between products (`read_rows`, `read_attention`), and for products that
        share their rows (`read_joined`); whether a kernel serves it."""
        problem = Problem(*key)
        with self._lock:
            if not self.launcher.knows(problem):  # other threads may be served
                self.launcher.add_torch(problem)  # until its kernel is there
            self.around[problem] = None
            try:
                if (found := self._for_rows(problem)) is None:
                    return False
                instance, made = found
                code, _ = self._code(instance, lambda: self.launcher.remove(problem))
                if code is None:
                    return False
                function = self._function(problem.device, instance, code)
                context = self.driver.context(problem.device)
            except SassafrasError as error:
                self.note(f"{problem.shape}: {error}")
                return False
            self.launcher.add_kernel(problem, context, (function,), made)
            self.around[problem] = instance.name
            return True

    def _for_rows(self, problem: Problem) -> tuple[Any, KernelPlan] | None:
        """(its one kernel, plan)."""
        if problem.transposed == JOINED:
            whole, cuts = apart(problem)
            config = joined.chosen(self.choose(whole).config, whole.shape, cuts)
            return None if config is None else (config.instance, plan_joined(config, problem))
        if self.gpu(problem.device).chooser is None:
            return None
        if problem.transposed in _AROUND:
            choose, asked_of = _AROUND[problem.transposed]
            found = choose(*asked_of(problem))
            return None if found is None else (found[0], plan_attention(*found))
        place = DTYPES[problem.dtype], problem.m, problem.n, problem.k, bool(problem.extra & CONSTANT)
        chosen = rows.chosen(problem.transposed, *place)
        return None if chosen is None else (chosen[0], plan_alone(*chosen))

    def _serve(self, problem: Problem) -> Choice:
        choice = self.choose(problem)
        if choice.member == "lt" and choice.row and choice.row.lt:
            lt = self._lt_member()
            if lt and lt.add(self.launcher, problem, choice.row.lt):
                return choice
            choice = Choice("torch", None, choice.row, 1.0, "this launcher cannot call cuBLASLt")
        self.launcher.add_torch(problem)  # until its kernels are there, perhaps within the next lines
        if (config := choice.config) is None:
            return choice
        # all that is missing is asked for at once
        found = [self._code(i, lambda: self.launcher.remove(problem)) for i in config.instances]
        if missing := [why for code, why in found if code is None]:
            return replace(choice, member="torch", why=missing[0])
        self.launcher.add_kernel(problem, *self._bound(problem, config, [code for code, _ in found if code]))
        return choice

    def _code(self, instance: Instance, built: Callable[[], Any]) -> tuple[bytes | None, str]:
        """(cubin, ""), or (None, why not). One that is missing is compiled; then `built` is called."""
        if instance in self._uncompilable:
            return None, self._uncompilable[instance]
        code = self._stored(instance)
        if code is None:
            self._compile_later(instance, built)
            if instance in self._uncompilable:
                return None, self._uncompilable[instance]
            code = self._stored(instance) if not self._background else None
        return code, "" if code is not None else "the kernel is being compiled"

    def _bound(
        self, problem: Problem, config: Config, codes: list[bytes]
    ) -> tuple[int, tuple[int, ...], KernelPlan]:
        """The context, the functions and the plan with which a launcher serves a problem."""
        made, ordinal = plan(config, problem), problem.device
        loaded = zip(config.instances, codes, strict=True)
        functions = tuple(self._function(ordinal, instance, code) for instance, code in loaded)
        return self.driver.context(ordinal), functions, made

    def bind(
        self,
        config: Config,
        a: Any,
        b: Any,
        out: Any = None,
        bias: Any = None,
        activation: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        addend: Any = None,
        norm: Any = None,
        eps: float = 0.0,
        constant: bool = False,
    ) -> Callable[[], Any]:
        """A call that runs this configuration on these tensors and returns C, whatever would be chosen.

        For measurements and tests; C is one tensor for all calls. Arguments are `MatmulCall`'s. Compiles what
        is missing.

        Raises:
            SassafrasError: the tensors are no problem of ours, or the configuration cannot run them.
        """
        more = alpha, beta, addend, norm, eps, constant
        asked = MatmulCall(a, b, out, bias, NUMBERS[activation], *more)
        plain = all(map(self.torch.plain, asked.tensors))
        found = read(asked, self.torch.device_type) if plain else None
        why = "no kernel takes such tensors" if found is None else why_illegal(config, found.problem)
        if found is None or why:
            raise SassafrasError(why or "", where=config.name)
        codes = [self._made(instance) for instance in config.instances]
        kernel = KernelLauncher(self.driver, *self._bound(found.problem, config, codes))
        c = a.new_empty((*found.leading, a.shape[-2], found.problem.ldc)) if out is None else out
        values, device = found.values(asked, c.data_ptr()), found.problem.device

        def call(kept: Any = asked) -> Any:  # whose memory is read as long as the call may be made
            if code := kernel.launch(self.torch, device, values, self.torch.stream(device)):
                raise DeviceError(f"CUDA error {code}", where=config.name)
            return c

        return call

    def _function(self, ordinal: int, instance: Instance, code: bytes) -> int:
        """The handle of an instance's entry on a device."""
        where = (ordinal, instance)
        with self._lock:
            if where not in self._functions:
                divided, name = instance.all_shared, instance.name
                found = schedules.scheduled(code, name, self.driver.facts(ordinal)[0])
                self._functions[where] = self.driver.load(ordinal, found.cubin, name, SHARED_LIMIT, divided)
                self._scheduled[where] = found
            return self._functions[where]

    def _stored(self, instance: Instance) -> bytes | None:
        for folder in (SHIPPED, self.cache):
            if (data := stored(cached_path(instance, folder))) is not None:
                return data
        return self._not_kept.get(instance)

    def _made(self, instance: Instance) -> bytes:
        """The cubin, compiled now if it is missing. Raises CompileError, ToolMissing."""
        try:
            return self._stored(instance) or cubin(instance, self.cache)
        except NotKept as error:  # each process compiles it
            new, self._not_kept[instance] = not self._not_kept, error.data
            self.note(str(error))
            if new:
                text = f"sassafras.matmul: {error}; this process keeps them in memory, others compile again"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return error.data

    def _compile_later(self, instance: Instance, built: Callable[[], Any]) -> None:
        waiting = self._compiling.setdefault(instance, [])
        waiting.append(built)
        if len(waiting) == 1:
            self._start(lambda: self._compile(instance))

    def _compile(self, instance: Instance) -> None:
        try:
            self._made(instance)
        except Exception as error:  # whatever the compiler does, torch goes on serving
            with self._lock:
                self._uncompilable[instance] = f"{instance.name} could not be compiled: {error}"
                self.note(self._uncompilable[instance])
        finally:
            with self._lock:
                for built in self._compiling.pop(instance, []):
                    built()  # the next call decides

    # -- the launcher ---------------------------------------------------------------------------------------

    def _build_launcher(self) -> None:
        try:
            module = build.made(self.cache)
            lt = self._lt_member()
            made = compiled(module, self.driver, self.torch, lt.matmul_address if lt else 0)
        except (SassafrasError, OSError, AttributeError, ValueError) as error:
            self.note(f"the Python launcher is used: {error}")
            return
        with self._lock:
            self.launcher = made  # it has no plans: they come with the calls
            self._on_launcher(made)

    def _lt_member(self) -> LtMember | None:
        with self._lock:
            if not self._lt_known:
                self._lt_known = True
                try:
                    self._lt = self._find_lt()
                except Exception as error:  # a missing or odd library: torch calls it anyway
                    self.note(f"cuBLASLt is not called directly: {error}")
            return self._lt

    # -- odds and ends --------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        if not self._background:
            work()
            return
        thread = threading.Thread(target=work, name="sassafras-build", daemon=True)
        with self._lock:
            self._threads.append(thread)
            thread.start()

    def settle(self, timeout: float = 300.0) -> None:
        """Wait for what is being built."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:  # without the lock, which they need
            thread.join(timeout)
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def forget(self) -> None:
        """Drop plans and choices, for example after tuning; tables are read again."""
        with self._lock:
            self._gpus.clear()
            self.served.clear()
            self.around.clear()
            self.launcher.forget()

    def note(self, text: str) -> None:
        """Keep a remark for `status`."""
        self.notes.append(text)
        if os.environ.get("SASSAFRAS_GEMM_VERBOSE"):
            print(f"sassafras.matmul: {text}", file=sys.stderr)

    def status(self) -> dict[str, Any]:
        """What serves what: for people who wonder (JSON-able)."""
        with self._lock:
            return {
                "launcher": "python" if isinstance(self.launcher, PythonLauncher) else "compiled",
                "counts": self.launcher.counts(),
                "arch": ARCH,
                "schedules": schedules.words(self._scheduled.values()),
                "gpus": {
                    str(o): {
                        "name": g.name,
                        "why_not": g.why_not,
                        "tables_of": g.tables_of,
                        "calibrated": g.calibrated,
                        "tuned_products": len(g.chooser.table.products) if g.chooser else 0,
                    }
                    for o, g in self._gpus.items()
                },
                "problems": [
                    {
                        "shape": str(p.shape),
                        "layout": p.layout,
                        "dtype": DTYPES[p.dtype],
                        "batch": p.matrices,
                        "bias": bool(p.extra & BIAS),
                        "activation": p.activation,
                        "beta": bool(p.extra & BETA),
                        "member": s.member,
                        "config": s.config.name if s.config else None,
                        "why": s.why,
                    }
                    for p, s in self.served.items()
                ],
                "rows": [
                    {"what": _ROWS[p.transposed], "kernel": name}
                    | {"shape": str(p.shape), "dtype": DTYPES[p.dtype]}
                    for p, name in self.around.items()
                ],
                "notes": list(self.notes),
            }
