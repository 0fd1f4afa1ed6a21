"""Tunes the products that a program calls, in their context, within a budget; a journal resumes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sassafras.core import Budget, DeviceError, SassafrasError
from sassafras.core.files import write_whole
from sassafras.cuda.environment import available, environment

from .. import matmul as room
from ..configs.fields import read_list
from ..matmul.loading import tuned_path
from ..matmul.recorder import Recorder, recorded, to_json
from ..problem.shape import Product
from ..select.dataset import slug
from ..select.table import ProductRow, TunedTable
from .journal import Journal, alone, belongs, damaged, has_begun, read, records_of
from .options import Options
from .runs import provenance
from .worker import asked_here
from .worker_client import WorkerClient

#: default of `sassafras.tune`, and of the command
BUDGET, FOLDER = "120s", Path("sassafras-out/program")
#: GPU seconds of a product at most, and at least
_SECONDS = (0.02, 0.5)
#: seconds until a worker that compiles kernels counts as hanging
_STALL = 900.0
_JOURNAL, RECORD = "program.gpu0.jsonl", "program.json"


@dataclass(frozen=True)
class Tuned:
    """What a tuning found.

    Attributes:
        rows: products with their members and times, the most time first.
        products, calls: of the program, tuned or not.
        path: the table.
        modelled: nothing was measured.
    """

    rows: tuple[ProductRow, ...]
    products: int
    calls: int
    path: Path
    modelled: bool

    def seconds(self, of: str = "us") -> float:
        """Time of the calls of tuned products, by ``us``, ``before_us`` or ``torch_us``."""
        return sum(row.calls * getattr(row, of) for row in self.rows) * 1e-6

    def to_json(self) -> dict[str, Any]:
        """The summary."""
        times = {f"{of}_s": self.seconds(f"{of}_us") for of in ("before", "torch")}
        counts = {"products": self.products, "tuned": len(self.rows), "calls": self.calls}
        return {**counts, **times, "after_s": self.seconds(), "modelled": self.modelled}

    def __str__(self) -> str:
        before, after, torchs = (1e3 * self.seconds(of) for of in ("before_us", "us", "torch_us"))
        tuned = f"{len(self.rows)} of {self.products} products tuned{' (modelled)' * self.modelled}"
        gain = f"{after:.2f} ms, before {before:.2f} ms ({before / (after or 1.0):.3f}x)"
        return f"{tuned}: their calls, in context, take {gain}, with torch {torchs:.2f} ms"


@contextmanager
def record() -> Iterator[Recorder]:
    """Count the products of `matmul` and `linear` that this process calls in the block, for `tune`.

    Calls of accelerated layers, under torch.compile and in CUDA graphs that are captured in the block count;
    those of graphs captured before do not.
    """
    api = room.api
    if api._engine is None and api.torch.cuda.is_available():
        api._set_up()
    recorder = Recorder()
    before, _LAST[:] = api._recorder, [recorder]
    api.watch(recorder)
    try:
        yield recorder
    finally:
        api.watch(before)


_LAST: list[Recorder] = []


def tune(
    recorder: Recorder | None = None,
    *,
    budget: str | Budget = BUDGET,
    out: str | Path = FOLDER,
    fresh: bool = False,
) -> Tuned:
    """Tune what `record` counted on this GPU; this process and later ones use the result.

    Args:
        recorder: what `record` gave; the last one by default.
        budget: wall time (``120s``); products that it does not reach stay as they are.
        out: folder of the journal and the table, which can be shared (`SASSAFRAS_GEMM_TABLE`).
        fresh: start over instead of resuming.

    Raises:
        SassafrasError: nothing was recorded.
        DeviceError: there is no GPU.
    """
    api = room.api
    if recorder is None and not _LAST:
        raise SassafrasError("nothing was recorded", hint="with sassafras.record(): model(x)")
    calls = (recorder or _LAST[0]).calls
    found = tune_products(calls, Path(out), budget=budget, fresh=fresh)
    if api._engine is not None:
        api._engine.forget()
    return found


def record_of(
    folder: Path, command: list[str], run: Callable[[Path], Any], *, fresh: bool = False
) -> tuple[Mapping[Product, int], int]:
    """What a program calls, and its calls that are not told apart: as its record in the folder says, or as it
    is run now.

    Args:
        run: runs it, its processes' records in this folder.
        fresh: run it in any case.

    Raises:
        SassafrasError: a record is damaged, or the folder has another program's.
    """
    path, raw = folder / RECORD, folder / "recorded"
    if path.is_file() and not fresh:
        calls, more = recorded([path])
        if more.get("command") != command:
            what, hint = "this folder has what another program calls", "--fresh, or another --out"
            raise SassafrasError(what, where=str(path), hint=hint)
        return calls, more["others"]
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    run(raw)
    calls, more = recorded(sorted(raw.glob("*.json")))
    write_whole(path, json.dumps({**more, "command": command, "products": to_json(calls)}, indent=1))
    shutil.rmtree(raw)
    return calls, more["others"]


def tune_products(
    calls: Mapping[Product, int],
    folder: Path,
    *,
    budget: str | Budget = BUDGET,
    dry: bool = False,
    cache: Path | None = None,
    install: bool = True,
    fresh: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Tune products in order of their calls' time (estimated) within a budget; write the table.

    Args:
        calls: product -> calls.
        folder: of the journal (a product in it is not tuned again) and the table.
        dry: on the modelled clock.
        install: let `sassafras.matmul` on this machine use the table.

    Raises:
        SassafrasError: no product; a journal of other conditions; another process works in the folder.
        DeviceError: there is no GPU, or its worker dies again and again.
    """
    if (seconds := Budget.of(budget).seconds) is None:
        raise SassafrasError("a program's products are tuned for a time", where=str(budget), hint=BUDGET)
    deadline = time.monotonic() + seconds
    if not calls:
        raise SassafrasError("no product was recorded", hint="sassafras.accelerate(model)")
    if not dry and not (found := available())[0]:
        raise DeviceError(f"tuning needs a GPU: {found[1]}", hint="--dry-run rehearses without one")
    own = {"mode": "program", "cache": str(cache) if cache else None, "dry": dry}
    plan, path = {**own, "options": asdict(Options(seed=seed))}, folder / _JOURNAL
    with alone(folder):
        if fresh:
            path.unlink(missing_ok=True)
        done = _worked_off(calls, plan, path, deadline, progress, say)
    header = read(path)[0]["header"]
    table = TunedTable(_header(header), (), _rows(calls, done))
    gpu = str(header.get("gpu", "modelled"))
    written = folder / f"{slug(gpu)}.products.json"
    result = Tuned(tuple(table.products.values()), len(calls), sum(calls.values()), written, dry)
    table.header["summary"] = result.to_json()
    table.save(written)
    if install and not dry:
        installed(written)
    return result


def _worked_off(
    calls: Mapping[Product, int],
    plan: dict[str, Any],
    path: Path,
    deadline: float,
    progress: Callable[[str], None],
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """A product's record by its name: of the journal, which gets those of further ones until the deadline."""
    done: dict[str, dict[str, Any]] = {}
    if has_begun(path):
        belongs(path, asked_here(plan))
        done = records_of(path)
    weights = {product: count * _guess_us(product) for product, count in calls.items()}
    left = [p for p in sorted(calls, key=lambda p: -weights[p]) if str(p) not in done]
    client = WorkerClient(plan, stall=_STALL)
    try:
        if left:
            say(f"{len(calls)} products, {len(done)} tuned before; compiling kernels for {len(left)}")
        _ask(client, next(iter(calls)), products=[p.to_json() for p in left])
        journal, begun = Journal(path, client.header), time.monotonic()  # of this GPU, if none is left, too
        for number, product in enumerate(left):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                say(f"time is up: {len(left) - number} products are left, the same command goes on")
                break
            share = remaining / (len(left) - number) / 2
            fields = {"product": product.to_json(), "seconds": max(_SECONDS[0], min(_SECONDS[1], share))}
            journal.add(record := {**_ask(client, product, **fields), "shape": str(product)})
            done[str(product)] = record
            if "error" in record:
                say(f"{product} stays as it is: {record['error']}")
            each = (time.monotonic() - begun) / (number + 1)
            about = int(max(0.0, min(deadline - time.monotonic(), each * (len(left) - number - 1))))
            so_far = f"{len(done)} of {len(calls)} products | about {about // 60}:{about % 60:02d} left"
            progress(f"{so_far} | {product} {record.get('before_us', 1) / record.get('us', 1):.3f}x")
    finally:
        client.close()
    return done


def installed(path: Path) -> None:
    """Let `sassafras.matmul` on this machine use a table of products that `tune_products` wrote."""
    table = TunedTable.load(path)
    table.install(tuned_path(str(table.header.get("gpu", "modelled"))))


def _ask(client: WorkerClient, of: Product, **question: Any) -> dict[str, Any]:
    """A worker's record; once more where the worker was lost."""
    for _ in range(2):
        record = client.ask({"shape": str(of.shape), **question})
        if not record.pop("lost", False):
            break
    if "products" in question and "error" in record:
        raise DeviceError(f"tuning cannot begin: {record['error']}")
    return record


def _guess_us(product: Product) -> float:
    """Of a call, roughly."""
    return 2.0 + max(product.shape.flop / 7e8, product.shape.nbytes / 4e6)


def _rows(calls: Mapping[Product, int], done: Mapping[str, dict[str, Any]]) -> list[ProductRow]:
    """Of the program's products that were tuned, the most time first."""
    found = []
    for product, count in calls.items():
        if "us" not in (record := done.get(str(product), {})):
            continue
        try:
            listed = read_list([given for given, _ in record["ours"]])
            ours = [[at, us] for at, (_, us) in enumerate(record["ours"])]
            times = {name: float(record[name]) for name in ("us", "torch_us", "before_us")}
            own = {**record, **times, **product.to_json(), "calls": count, "ours": ours}
            found.append(ProductRow.from_json(own, listed))
        except (SassafrasError, LookupError, TypeError, ValueError) as error:
            raise damaged(str(product), error) from error
    return sorted(found, key=lambda row: -row.calls * row.before_us)


def _header(conditions: dict[str, Any]) -> dict[str, Any]:
    """What the table says of its GPU, libraries and origin."""
    kept = ("gpu", "sms", "kernels", "cublaslt", "torch", "modelled")
    here = environment()
    machine = {"driver": here["driver"], "cuda": here["cuda"], "cublas": here["cublas"]}
    found = {key: conditions[key] for key in kept if conditions.get(key)}
    return {**found, **machine, **provenance(here["commit"])}
