"""What is known of a GPU: per shape and layout our best configurations, torch's and cuBLASLt's times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors
from sassafras.core.files import locked, write_whole

from ..configs.fields import ConfigurationList, known, read_list
from ..configs.registry import Config
from ..problem.shape import Product, Shape
from .dataset import DATA, Dataset, stem

#: earlier files (1) have names of configurations instead of fields
FORMAT = 2
#: configurations kept of a shape and layout: later ones serve where the first cannot (alignment, gaps)
KEEP = 4
#: a configuration this much slower than the best is not kept
SLOWEST = 1.15


@dataclass(frozen=True, slots=True)
class TableRow:
    """A tuned shape in one layout.

    Attributes:
        shape, layout: the problem.
        ours: (configuration, microseconds), fastest first; empty when none of ours ran.
        torch_us: `torch.matmul`, None when not timed.
        lt_us: cuBLASLt's best algorithm, None when not timed.
        lt: that algorithm (`cublas.LtAlgorithm.to_json`), None when unknown.
    """

    shape: Shape
    layout: str
    ours: tuple[tuple[Config, float], ...]
    torch_us: float | None = None
    lt_us: float | None = None
    lt: dict[str, Any] | None = None

    @property
    def speedup(self) -> float | None:
        """torch's time over ours, None when either is unknown."""
        return self.torch_us / self.ours[0][1] if self.ours and self.torch_us else None


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A product of a program, timed as programs have it: B from memory, elementwise kernels around it.

    Times are microseconds of an elementwise kernel, the product, and an elementwise kernel.

    Attributes:
        calls: of the recorded program.
        member: what serves it: ``ours``, ``torch``, ``lt`` (cuBLASLt's algorithm).
        ours: (configuration, microseconds), fastest first; empty for another member.
        us, torch_us, before_us: of the member, of torch, and of what served when it was tuned.
        lt, cublaslt: that algorithm, and the version of the library.
    """

    product: Product
    calls: int
    member: str
    ours: tuple[tuple[Config, float], ...]
    us: float
    torch_us: float
    before_us: float
    lt: dict[str, Any] | None = None
    cublaslt: int | None = None

    def to_json(self, place: Callable[[Config], Any]) -> dict[str, Any]:
        """For a file, where `place` tells what stands for a configuration."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "product"}
        return {**self.product.to_json(), **found, "ours": [[place(c), us] for c, us in self.ours]}

    @classmethod
    def from_json(cls, given: dict[str, Any], listed: Sequence[Config | None]) -> ProductRow:
        """The reverse, without configurations that no kernel of this version has.

        Raises:
            SassafrasError, LookupError, TypeError, ValueError: it is damaged.
        """
        ours = tuple((c, timed(us)) for at, us in given["ours"] if (c := listed[at]) is not None)
        more = {name: given[name] for name in cls.__slots__ if name not in ("product", "ours")}
        more |= {name: timed(given[name]) for name in ("us", "torch_us", "before_us")}
        if given["member"] not in ("ours", "torch", "lt"):
            raise ValueError(f"no member {given['member']}")
        return cls(Product.from_json(given), ours=ours, **more)


def timed(us: Any) -> float:
    """Microseconds of a file. Raises ValueError, TypeError: they are none."""
    if not 0 < (found := float(us)) < 1e9:
        raise ValueError(f"{us} is no time")
    return found


class TunedTable:
    """Rows by (shape, layout), and `products` of programs, which come before them."""

    def __init__(
        self, header: dict[str, Any], rows: Iterable[TableRow], products: Iterable[ProductRow] = ()
    ) -> None:
        self.header = {"sassafras_hgemm_table": FORMAT, **header}
        self.rows = {(row.shape, row.layout): row for row in rows}
        self.products = {row.product: row for row in products}

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, shape: Shape, layout: str) -> TableRow | None:
        """The row of a tuned shape, None for any other."""
        return self.rows.get((shape, layout))

    def without(self, shapes: Iterable[Shape]) -> TunedTable:
        """The table with shapes held out."""
        gone = set(shapes)
        products = (row for row in self.products.values() if row.product.shape not in gone)
        return TunedTable(self.header, (row for row in self.rows.values() if row.shape not in gone), products)

    def merged(self, other: TunedTable) -> TunedTable:
        """This table with the other's rows added; the other's win.

        cuBLASLt's algorithms stay only where they are of the version that the header names: the other's, or
        this table's where the other has products of programs alone.
        """
        products = (self.products | other.products).values()
        if other.products and not other.rows:
            return TunedTable({**other.header, **self.header}, self.rows.values(), products)
        header = {**self.header, **other.header}
        rows: dict[tuple[Shape, str], TableRow] = {}
        for table in (self, other):
            fits = table.header.get("cublaslt") == header.get("cublaslt")
            rows |= {at: row if fits else replace(row, lt=None) for at, row in table.rows.items()}
        return TunedTable(header, rows.values(), products)

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> TunedTable:
        """The winners of a dataset.

        Raises:
            SassafrasError: it was not measured (a dry run).
        """
        if dataset.modelled:
            raise SassafrasError("this dataset was modelled, not measured: dispatch does not use it")
        rows = []
        for entry in dataset:
            for layout in ("nn", "tn", "nt", "tt"):
                ranked = [(config, us) for config, us in entry.ranked(layout) if entry.ours[config][1] >= 0]
                kept = [(config, us) for config, us in ranked[:KEEP] if us <= SLOWEST * ranked[0][1]]
                torch_us = entry.baseline_us("torch", layout)
                if not kept and torch_us is None:
                    continue
                lt_us = entry.baseline_us("lt_autotune", layout)
                rows.append(TableRow(entry.shape, layout, tuple(kept), torch_us, lt_us, entry.lt.get(layout)))
        keys = ("gpu", "kernels", "cublaslt", "torch", "commit", "date")
        return cls({key: dataset.header[key] for key in keys if dataset.header.get(key)}, rows)

    def save(self, path: Path) -> None:
        """Write it; equal contents give equal bytes."""
        ordered = sorted(self.rows.values(), key=lambda row: (row.shape.flop, row.shape, row.layout))
        programs = sorted(self.products.values(), key=lambda row: str(row.product))
        every = [row.ours for row in ordered] + [row.ours for row in programs]
        listed = ConfigurationList(config for ours in every for config, _ in ours)
        lines = [
            json.dumps(
                [
                    row.shape.m,
                    row.shape.n,
                    row.shape.k,
                    row.layout,
                    [[listed.place(config), round(us, 3)] for config, us in row.ours],
                    row.torch_us,
                    row.lt_us,
                    row.lt,
                ],
                separators=(",", ":"),
            )
            for row in ordered
        ]
        header = {**self.header, "sassafras_hgemm_table": FORMAT}
        configurations = ",\n".join(json.dumps(fields) for fields in listed.to_json())
        body = ",\n".join(lines)
        products = ",\n".join(json.dumps(row.to_json(listed.place)) for row in programs)
        behind = f',\n"products": [\n{products}\n]' if products else ""
        write_whole(
            path,
            f'{{"header": {json.dumps(header, sort_keys=True)},\n"configurations": [\n{configurations}\n],\n'
            f'"rows": [\n{body}\n]{behind}}}\n',
        )

    def install(self, path: Path) -> None:
        """Save it, merged over what is there; of several processes that do so at a time none is lost.

        Raises:
            SassafrasError: the folder does not take it, or what is there is no table, and stays.
        """
        hint = "SASSAFRAS_GEMM_TABLE names the table that is to be used, SASSAFRAS_GEMM_CACHE the folder"
        with os_errors("a tuned table cannot be kept there", path, hint=hint):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f"{path.name}.lock")):
                try:
                    before = TunedTable.load(path) if path.is_file() else None
                except SassafrasError as error:
                    hint = "remove it: the same command goes on"
                    raise SassafrasError(error.what, where=str(path), hint=hint) from error
                (self if before is None else before.merged(self)).save(path)

    @classmethod
    def load(cls, path: Path) -> TunedTable:
        """Read it, without configurations that no kernel of this version has.

        Raises:
            SassafrasError: it is missing, foreign or damaged.
        """
        try:
            found = json.loads(path.read_text())
            if (version := found["header"].get("sassafras_hgemm_table")) not in (1, FORMAT):
                raise ValueError("another format")
            listed = read_list(found["configurations"]) if version == FORMAT else []
            rows = [
                TableRow(
                    Shape(m, n, k),
                    layout,
                    tuple(
                        (config, timed(us))
                        for which, us in ours
                        if (config := known(which) if isinstance(which, str) else listed[which]) is not None
                    ),
                    None if torch_us is None else timed(torch_us),
                    None if lt_us is None else timed(lt_us),
                    lt,
                )
                for m, n, k, layout, ours, torch_us, lt_us, lt in found["rows"]
            ]
            products = [ProductRow.from_json(one, listed) for one in found.get("products", ())]
        except (
            SassafrasError,
            OSError,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
        ) as error:
            raise SassafrasError(f"not a table of tuned shapes: {error}", where=path.name) from error
        return cls(found["header"], rows, products)

    def of_gpu(self, gpu: str) -> TunedTable:
        """The table, without products that were timed on another GPU, or modelled."""
        if self.header.get("gpu") == gpu and not self.header.get("modelled"):
            return self
        return TunedTable(self.header, self.rows.values())


def shipped_path(gpu: str, part: str = "") -> Path:
    """Where the package keeps a GPU's table; of nt and tt with `backward.PART`."""
    return DATA / f"{stem(gpu, part)}.table.json"
