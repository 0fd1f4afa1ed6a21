"""What a process launches, written to its own file as it goes: a kill loses the last seconds' counts."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .settings import Settings

#: raised when the files change
FORMAT = 1
#: seconds between two writings of the counts
_EVERY_S = 2.0
#: data types whose contents may steer what a kernel does
_INTEGERS = ("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64")


@dataclass
class Bench:
    """A configuration that the autotuner tries; `digests` collects what it compiled to."""

    config: str
    digests: set[str] = field(default_factory=set)


@dataclass
class Launch:
    """What is known of a launch before it happens."""

    key: tuple[Any, ...]
    fn: Any
    values: dict[str, Any]
    bench: Bench | None
    contents: dict[str, dict[str, Any]] | None
    timer: Any = None


@dataclass
class Shape:
    """One case of one compiled kernel: what it was launched with, and how often."""

    facts: dict[str, Any]
    count: int = 0
    in_graph: int = 0
    timed: int = 0
    gpu_us: float = 0.0


class Recorder:
    """Collects launches. Whatever goes wrong in here is noted and never reaches the program."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.on = settings, True
        self.variants: dict[str, dict[str, Any]] = {}
        self.shapes: dict[tuple[str, str], Shape] = {}
        self.uncounted: dict[str, int] = {}
        self.problems: dict[str, int] = {}
        self.first = self.last = 0.0
        self._known: dict[tuple[Any, ...], Shape] = {}
        self._kept: dict[str, dict[str, Any]] = {}
        self._bytes, self._written = 0, 0.0
        self._pending: list[tuple[Shape, Any, Any]] = []
        self._lock = threading.RLock()
        self._path = self._new_path()

    def _new_path(self) -> Path:
        name = f"part-{os.uname().nodename}-{os.getpid()}-{time.time_ns():x}.json"
        return self.settings.folder / name

    def bench(self, config: Any) -> Bench:
        """The autotuner begins to try a configuration."""
        return Bench(str(config))

    def benched(self, bench: Bench, timings: Any) -> None:
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
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bench: Bench | None
    ) -> Launch | None:
        """Just before a launch: integer contents are copied now, as the kernel may change them."""
        try:
            values = dict(zip(fn.arg_names, args, strict=False))
            values.update(kwargs)
            key = (id(fn), *((name, _describe(value)) for name, value in values.items()))
            known = key in self._known
            contents = None if known else self._contents(values)
            launch = Launch(key, fn, values, bench, contents)
            if bench is None:
                launch.timer = self._timer(self._known.get(key))
            return launch
        except Exception as error:
            self._problem(error)
            return None

    def after(self, launch: Launch | None, compiled: Any, grid: Any) -> None:
        """Just after it."""
        if launch is None or compiled is None:
            return
        try:
            with self._lock:
                self._note(launch, compiled, grid)
        except Exception as error:
            self._problem(error)

    def _note(self, launch: Launch, compiled: Any, grid: Any) -> None:
        shape = self._known.get(launch.key)
        blocks = [int(n) for n in grid] + [1] * (3 - len(grid))
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
            now = time.time()
            self.first, self.last = self.first or now, now
            shape.count += 1
            if launch.timer is not None:
                self._stop_timer(shape, launch.timer)
            if now - self._written > _EVERY_S:
                self.write()

    def _variant(self, launch: Launch, compiled: Any) -> str:
        """Keep a compiled kernel, once; returns the sha256 of its cubin."""
        cubin = compiled.asm["cubin"]
        digest = hashlib.sha256(cubin).hexdigest()
        if digest in self.variants:
            return digest
        data, fn = compiled.metadata, launch.fn
        signature = {str(k): _plain(v) for k, v in compiled.src.signature.items()}
        passed = {k for k, kind in signature.items() if kind != "constexpr"}
        self._keep(f"{digest}.cubin", cubin)
        ttir = compiled.asm.get("ttir")
        if isinstance(ttir, str):
            self._keep(f"{digest}.ttir", ttir.encode())
        self.variants[digest] = {
            "digest": digest, "name": data.name, "function": f"{fn.__module__}.{fn.__qualname__}",
            "source_hash": fn.cache_key, "arch": int(data.target.arch), "threads": 32 * data.num_warps,
            "shared_bytes": data.shared, "ctas": getattr(data, "num_ctas", 1),
            "scratch_bytes": getattr(data, "global_scratch_size", 0) or 0, "signature": signature,
            "constants": {k: _plain(v) for k, v in launch.values.items() if k not in passed},
            "cooperative": any(getattr(data, k, False) for k in ("launch_cooperative_grid", "launch_pdl")),
            "config": "", "bench_us": None,
        }  # fmt: skip
        return digest

    def _shape(self, digest: str, launch: Launch, grid: list[int]) -> Shape | None:
        variant = self.variants[digest]
        args: dict[str, Any] = {}
        for name, kind in variant["signature"].items():
            if kind == "constexpr":
                continue
            value = launch.values[name] if name in launch.values else _default(launch.fn, name)
            if isinstance(value, bool | int | float):
                args[name] = value
            elif hasattr(value, "data_ptr"):
                args[name] = _buffer(value, kind) | (launch.contents or {}).get(name, {})
            else:
                args[name] = {"unsupported": type(value).__name__}
        facts = {"grid": grid, "args": args}
        # floats change from launch to launch without another shape, contents belong to the first
        ident = {
            k: v if not isinstance(v, dict) else {n: v[n] for n in ("dtype", "shape", "strides") if n in v}
            for k, v in args.items() if not isinstance(v, float)
        }  # fmt: skip
        name = hashlib.sha256(json.dumps([grid, ident], sort_keys=True).encode()).hexdigest()[:16]
        found = self.shapes.get((digest, name))
        if found is None:
            if sum(d == digest for d, _ in self.shapes) >= self.settings.cases:
                return None
            addresses: dict[int, str] = {}
            for k, v in launch.values.items():
                if (
                    hasattr(v, "data_ptr")
                    and (first := addresses.setdefault(int(v.data_ptr()), k)) != k
                    and k in args
                ):
                    facts.setdefault("same_memory", []).append([first, k])  # type: ignore[attr-defined]
            found = self.shapes[digest, name] = Shape(facts)
        return found

    def _contents(self, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Small integer tensors, copied to the host; of larger ones the range."""
        found: dict[str, dict[str, Any]] = {}
        if _capturing():
            return found
        for name, value in values.items():
            if not hasattr(value, "data_ptr") or not hasattr(value, "cpu"):
                continue
            kind = str(value.dtype).removeprefix("torch.")
            if kind in ("bool", "uint8") or kind.startswith(("int", "uint")):
                found[name] = self._integers(value)
        return found

    def _integers(self, value: Any) -> dict[str, Any]:
        import numpy as np

        flat = value.detach()
        if flat.numel() == 0:
            return {}
        small = flat.numel() * flat.element_size() <= self.settings.tensor_bytes
        if small and self._bytes < self.settings.all_bytes:
            array = np.ascontiguousarray(flat.cpu().numpy())
            digest = hashlib.sha256(
                array.tobytes() + str((array.dtype.str, array.shape)).encode()
            ).hexdigest()
            if digest not in self._kept:
                self._bytes += array.nbytes
                self.settings.folder.mkdir(parents=True, exist_ok=True)
                part = self.settings.folder / f"{digest}.{os.getpid()}.part"
                with part.open("wb") as file:
                    np.savez_compressed(file, data=array)
                part.replace(self.settings.folder / f"{digest}.npz")
                self._kept[digest] = {"low": int(array.min()), "high": int(array.max())}
            return {"data": digest, **self._kept[digest]}
        return {"low": int(flat.min().item()), "high": int(flat.max().item())}

    def _timer(self, shape: Shape | None) -> Any:
        """A CUDA event just before some of the launches; the first of a shape loads code and is left out."""
        torch = sys.modules.get("torch")
        if shape is None or torch is None or not torch.cuda.is_initialized():
            return None
        if _capturing():
            shape.in_graph += 1
            return None
        if shape.count > 20 and shape.count % 64:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stop_timer(self, shape: Shape, begin: Any) -> None:
        end = sys.modules["torch"].cuda.Event(enable_timing=True)
        end.record()
        self._pending.append((shape, begin, end))
        if len(self._pending) > 512:
            self._collect()

    def _collect(self) -> None:
        """Times of those launches that are done."""
        left = []
        for shape, begin, end in self._pending:
            if end.query():
                shape.timed += 1
                shape.gpu_us += 1e3 * begin.elapsed_time(end)
            else:
                left.append((shape, begin, end))
        self._pending = left

    def _keep(self, name: str, data: bytes) -> None:
        path = self.settings.folder / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)

    def write(self) -> None:
        """Write everything known. Never raises."""
        try:
            with self._lock:
                self._collect()
                self._written = time.time()
                if not self.variants:
                    return
                text = json.dumps(self.to_json())
            self._keep_latest(text)
        except Exception as error:
            self._problem(error)

    def _keep_latest(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(text)
        part.replace(self._path)

    def to_json(self) -> dict[str, Any]:
        """The part that this process contributes."""
        shapes: dict[str, list[dict[str, Any]]] = {}
        for (digest, name), shape in self.shapes.items():
            shapes.setdefault(digest, []).append(
                {
                    **shape.facts, "id": name, "count": shape.count, "in_graph": shape.in_graph,
                    "timed": shape.timed, "gpu_us": shape.gpu_us,
                }
            )  # fmt: skip
        return {
            "format": FORMAT, "triton": str(getattr(sys.modules.get("triton"), "__version__", "")),
            "program": Path(sys.argv[0]).name if getattr(sys, "argv", None) else "", "pid": os.getpid(),
            "first": self.first, "last": self.last, "gpu": _gpu(), "problems": self.problems,
            "variants": [
                {**v, "shapes": shapes.get(d, []), "uncounted": self.uncounted.get(d, 0)}
                for d, v in self.variants.items()
            ],
        }  # fmt: skip

    def _problem(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        if len(self.problems) < 50 or text in self.problems:
            self.problems[text] = self.problems.get(text, 0) + 1

    def after_fork(self) -> None:
        """A child writes a file of its own and begins at zero."""
        self._lock = threading.RLock()
        self._path, self._pending = self._new_path(), []
        self.first = self.last = 0.0
        self.uncounted = {}
        for shape in self.shapes.values():
            shape.count = shape.in_graph = shape.timed = 0
            shape.gpu_us = 0.0


def _describe(value: Any) -> Any:
    """What distinguishes an argument from another, cheaply; floats all look alike."""
    if hasattr(value, "data_ptr"):
        shape = getattr(value, "shape", None)
        return (
            str(value.dtype),
            None if shape is None else tuple(shape),
            _strides(value),
            int(value.data_ptr()) % 16,
        )
    if isinstance(value, float):
        return float
    return value if isinstance(value, bool | int | str | type(None)) else str(value)


def _strides(value: Any) -> tuple[int, ...] | None:
    stride = getattr(value, "stride", None)
    return tuple(int(n) for n in stride()) if callable(stride) else None


def _buffer(value: Any, kind: str) -> dict[str, Any]:
    shape = getattr(value, "shape", None)
    return {
        "dtype": kind.lstrip("*k") if kind.startswith("*") else kind,
        "shape": [1] if shape is None else [int(n) for n in shape],
        "strides": None if (strides := _strides(value)) is None else list(strides),
        "aligned": int(value.data_ptr()) % 16 == 0,
    }  # fmt: skip


def _default(fn: Any, name: str) -> Any:
    return fn.signature.parameters[name].default


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _capturing() -> bool:
    torch = sys.modules.get("torch")
    return bool(
        torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )


def _gpu() -> str:
    torch = sys.modules.get("torch")
    try:
        return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_initialized() else ""
    except Exception:
        return ""


_recorder: Recorder | None = None


def start(settings: Settings | str | Path) -> str:
    """Begin to record this process's Triton launches.

    Args:
        settings: how, or only the folder to write to.

    Returns:
        ``""``, or why this Triton cannot be recorded. Never raises.
    """
    global _recorder
    from . import hook

    made = Recorder(settings if isinstance(settings, Settings) else Settings(Path(settings)))
    if problem := hook.attach(made):
        return problem
    _recorder = made
    atexit.register(made.write)
    os.register_at_fork(after_in_child=made.after_fork)
    return ""


def stop() -> None:
    """Write what is known and put Triton's methods back."""
    global _recorder
    from . import hook

    if _recorder is not None:
        _recorder.on = False
        _recorder.write()
        atexit.unregister(_recorder.write)
        hook.detach()
        _recorder = None


def start_when_triton_comes() -> None:
    """`start` once the program has imported Triton, if the environment asks for it."""
    settings = Settings.read()
    if settings is None:
        return
    from sassafras.deploy.lazy import after_import

    def then(module: object) -> None:
        start(settings)

    after_import("triton.runtime.autotuner", then)
