"""Records a process's launches in a file, continuously: a kill loses the counts of the last seconds."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sassafras.capture.contents import ContentsWriter
from sassafras.core.files import write_whole
from sassafras.frontend.captured import FORMAT, values

from . import timing
from .settings import CaptureSettings
from .timing import TimedShape, Timers

#: seconds between two writings of the counts
_EVERY_S = 2.0
#: different problems that are noted
_PROBLEMS = 50


@dataclass
class AutotunerConfig:
    """A configuration that the autotuner tries; `digests` collects what it compiled to."""

    config: str
    digests: set[str] = field(default_factory=set)


@dataclass
class RecordedLaunch:
    """What is known of a launch before it happens.

    Attributes:
        key: equal for launches that need not be looked at again: function, and `values.key_of` its arguments
            or the value of a float that is compiled in.
        fn, values: Triton's function and its arguments by name.
        bench: the configuration that the autotuner tries with it; None for the program's own launch.
        contents: what its integer tensors held; None for a known key.
        timer: the event recorded before it, or None.
    """

    key: tuple[Any, ...]
    fn: Any
    values: dict[str, Any]
    bench: AutotunerConfig | None
    contents: dict[str, dict[str, Any]] | None
    timer: Any = None


def ptxas_flags(metadata: Any) -> list[str]:
    """The flags that change code, of Triton's own ptxas call."""
    flags = [] if getattr(metadata, "enable_fp_fusion", True) else ["--fmad=false"]
    return [*flags, *(getattr(metadata, "ptx_options", None) or "").split()]


class LaunchRecorder:
    """Collects launches. Whatever goes wrong in here is noted and never reaches the program.

    Args:
        settings: where to write, and how much to keep.

    Attributes:
        on: False once the recording has stopped.
        variants: compiled kernels by sha256 of their cubin, as they are written.
        shapes: what each was launched with, by digest and a name made of grid and arguments.
        uncounted: launches by digest whose shape was one too many to keep.
        problems: what went wrong in here, and how often.
        first, last: when the first and the last launch were, by `time.monotonic`; 0 before there is one.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        folder = settings.folder.absolute()  # the program may change its own
        self.settings, self.on = replace(settings, folder=folder), True
        self.variants: dict[str, dict[str, Any]] = {}
        self.shapes: dict[tuple[str, str], TimedShape] = {}
        self.uncounted: dict[str, int] = {}
        self.problems: dict[str, int] = {}
        self.first = self.last = 0.0
        self._known: dict[tuple[Any, ...], TimedShape] = {}
        #: functions, kept so that no other gets the id in a known key, and their `tl.constexpr` parameters
        self._functions: dict[int, tuple[Any, frozenset[str]]] = {}
        self._contents, self._timers = ContentsWriter(self.settings), Timers()
        self._written = 0.0
        self._lock = threading.RLock()
        self._path = self._new_path()

    def _new_path(self) -> Path:
        name = f"part-{os.uname().nodename}-{os.getpid()}-{time.time_ns():x}.json"
        return self.settings.folder / name

    # -- what Triton's wraps call ---------------------------------------------------------------------------

    def bench(self, config: Any) -> AutotunerConfig:
        """The autotuner begins to try a configuration."""
        return AutotunerConfig(str(config))

    def benched(self, bench: AutotunerConfig, timings: Any) -> None:
        """It has: the median, in milliseconds."""
        try:
            median = float(timings[0] if isinstance(timings, list | tuple) else timings)
            for digest in bench.digests:
                self.variants[digest]["config"] = bench.config
                if median == median and median < 1e6:
                    self.variants[digest]["bench_us"] = 1e3 * median
        except Exception as error:
            self._problem(error)

    def before(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bench: AutotunerConfig | None
    ) -> RecordedLaunch | None:
        """Just before a launch: integer contents are copied now, as the kernel may change them."""
        try:
            given = dict(zip(fn.arg_names, args, strict=False)) | kwargs
            fixed = self._constexprs(fn)
            key = (
                id(fn),
                *(
                    (name, value if name in fixed and isinstance(value, float) else values.key_of(value))
                    for name, value in given.items()
                ),
            )
            known = self._known.get(key)
            contents = None
            if known is None:
                contents = {} if timing.capturing() else self._contents.copy(given)
            launch = RecordedLaunch(key, fn, given, bench, contents)
            if bench is None:
                launch.timer = self._timers.begin(known)
            return launch
        except Exception as error:
            self._problem(error)
            return None

    def after(self, launch: RecordedLaunch | None, compiled: Any, grid: Any) -> None:
        """Just after it."""
        if launch is None or compiled is None:
            return
        try:
            with self._lock:
                self._note(launch, compiled, grid)
        except Exception as error:
            self._problem(error)

    def _note(self, launch: RecordedLaunch, compiled: Any, grid: Any) -> None:
        shape = self._known.get(launch.key)
        blocks = [int(n) for n in grid] + [1] * (3 - len(grid))
        if min(blocks) < 1:  # nothing is launched
            return
        if shape is None or launch.bench is not None or shape.facts["grid"] != blocks:
            digest = self._variant(launch, compiled)
            if launch.bench is not None:
                launch.bench.digests.add(digest)
            shape = self._shape(digest, launch, blocks)
            if shape is None:
                if launch.bench is None:
                    self.uncounted[digest] = self.uncounted.get(digest, 0) + 1
                return
            self._known[launch.key] = shape
        if launch.bench is None:
            now = time.monotonic()
            self.first, self.last = self.first or now, now
            shape.count += 1
            if launch.timer is not None:
                self._timers.end(shape, launch.timer)
            if now - self._written > _EVERY_S:
                self.write()

    def _constexprs(self, fn: Any) -> frozenset[str]:
        """Parameters whose values are compiled in, so that another float is another kernel."""
        if id(fn) not in self._functions:
            given = getattr(fn, "params", ())  # a kernel of Inductor's has none, and one set of constants
            names = frozenset(p.name for p in given if getattr(p, "is_constexpr", False))
            self._functions[id(fn)] = fn, names
        return self._functions[id(fn)][1]

    # -- what is kept ---------------------------------------------------------------------------------------

    def _variant(self, launch: RecordedLaunch, compiled: Any) -> str:
        """Keep a compiled kernel, once; returns the sha256 of its cubin."""
        cubin = compiled.asm["cubin"]
        digest = hashlib.sha256(cubin).hexdigest()
        data, fn = compiled.metadata, launch.fn
        together = any(getattr(data, k, False) for k in ("launch_cooperative_grid", "launch_pdl"))
        if (known := self.variants.get(digest)) is not None:
            known["cooperative"] |= together
            return digest
        signature = {str(k): values.plain(v) for k, v in compiled.src.signature.items()}
        passed = {k for k, kind in signature.items() if kind != "constexpr"}
        self._keep(f"{digest}.cubin", cubin)
        for kind in ("ttir", "ptx"):
            if isinstance(text := compiled.asm.get(kind), str):
                self._keep(f"{digest}.{kind}", text.encode())
        self.variants[digest] = {
            "digest": digest,
            "name": data.name,
            "function": f"{fn.__module__}.{fn.__qualname__}",
            "source_hash": fn.cache_key,
            "arch": int(data.target.arch),
            "threads": 32 * data.num_warps,
            "shared_bytes": data.shared,
            "ctas": getattr(data, "num_ctas", 1),
            "scratch_bytes": getattr(data, "global_scratch_size", 0) or 0,
            "signature": signature,
            "constants": {k: values.plain(v) for k, v in launch.values.items() if k not in passed},
            "cooperative": together,
            "ptxas_flags": ptxas_flags(data),
            "config": "",
            "bench_us": None,
        }
        return digest

    def _keep(self, name: str, data: bytes) -> None:
        path = self.settings.folder / name
        if not path.exists():
            write_whole(path, data)

    def _shape(self, digest: str, launch: RecordedLaunch, grid: list[int]) -> TimedShape | None:
        """What it was launched with, once; None where the variant has as many shapes as are kept."""
        args = self._arguments(self.variants[digest]["signature"], launch)
        # floats change from launch to launch without another shape, contents belong to the first
        ident = {
            k: v if not isinstance(v, dict) else {n: v[n] for n in ("dtype", "shape", "strides") if n in v}
            for k, v in args.items()
            if not isinstance(v, float)
        }
        name = hashlib.sha256(json.dumps([grid, ident], sort_keys=True).encode()).hexdigest()[:16]
        found = self.shapes.get((digest, name))
        if found is None:
            if sum(d == digest for d, _ in self.shapes) >= self.settings.cases:
                return None
            facts: dict[str, Any] = {"grid": grid, "args": args}
            if same := _same_memory(launch.values, args):
                facts["same_memory"] = same
            found = self.shapes[digest, name] = TimedShape(facts)
        return found

    def _arguments(self, signature: dict[str, Any], launch: RecordedLaunch) -> dict[str, Any]:
        """The arguments of a launch by name, as they are written."""
        args: dict[str, Any] = {}
        for name, kind in signature.items():
            if kind == "constexpr":
                continue
            value = launch.values[name] if name in launch.values else values.default(launch.fn, name)
            if isinstance(value, bool | int | float):
                args[name] = value
            elif values.is_tensor(value):
                args[name] = values.tensor_facts(value, kind) | (launch.contents or {}).get(name, {})
            else:
                args[name] = {"unsupported": type(value).__name__}
        return args

    # -- writing --------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write everything known. Never raises."""
        try:
            with self._lock:
                self._timers.collect()
                self._written = time.monotonic()
                if not self.variants:
                    return
                text = json.dumps(self.to_json())
            write_whole(self._path, text)
        except Exception as error:
            self._problem(error)

    def to_json(self) -> dict[str, Any]:
        """The part that this process contributes."""
        shapes: dict[str, list[dict[str, Any]]] = {}
        for (digest, name), shape in self.shapes.items():
            shapes.setdefault(digest, []).append(
                {
                    **shape.facts,
                    "id": name,
                    "count": shape.count,
                    "in_graph": shape.in_graph,
                    "timed": shape.timed,
                    "gpu_us": shape.gpu_us,
                }
            )
        return {
            "format": FORMAT,
            "triton": str(getattr(sys.modules.get("triton"), "__version__", "")),
            "program": Path(sys.argv[0]).name if getattr(sys, "argv", None) else "",
            "pid": os.getpid(),
            "first": self.first,
            "last": self.last,
            "gpu": timing.gpu_name(),
            "problems": self.problems,
            "variants": [
                {**v, "shapes": shapes.get(d, []), "uncounted": self.uncounted.get(d, 0)}
                for d, v in self.variants.items()
            ],
        }

    def _problem(self, error: BaseException) -> None:
        self.note(f"{type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        """Keep a problem, or count it."""
        text = text[:200]
        if len(self.problems) < _PROBLEMS or text in self.problems:
            self.problems[text] = self.problems.get(text, 0) + 1

    def after_fork(self) -> None:
        """A child writes a file of its own and begins at zero."""
        self._lock = threading.RLock()
        self._path, self._timers = self._new_path(), Timers()
        self.first = self.last = 0.0
        self.uncounted = {}
        for shape in self.shapes.values():
            shape.forget()


def _same_memory(given: dict[str, Any], args: dict[str, Any]) -> list[list[str]]:
    """Pairs of arguments that begin at the same address."""
    pairs, addresses = [], dict[int, str]()
    for name, value in given.items():
        if values.is_tensor(value):
            first = addresses.setdefault(int(value.data_ptr()), name)
            if first != name and name in args:
                pairs.append([first, name])
    return pairs
