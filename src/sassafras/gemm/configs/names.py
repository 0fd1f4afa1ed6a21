"""Names of configurations: printed for people, read here and nowhere else. Files hold fields (`fields`).

A name is the kernel, its entry's name without the entry's own prefix, the choices at launch, and the mode:
``split_k_tn_64x128_s8q1/c2+ol``. Entries are compiled under prefixes of their own (`ENTRIES`). Names in files
of earlier versions have them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, lru_cache

from sassafras.core import SassafrasError

from ..problem.launch import SHARED_LIMIT
from . import registry
from .base import PLAIN, Mode
from .registry import Config, Instance

#: prefix of an entry's name -> its kernel (but for `_ENDINGS`)
ENTRIES = {
    "lean": "small",
    "staged": "fallback",
    "cs": "split_k",
    "ws": "persistent",
    "any": "unaligned",
    "st": "stream",
    "ce": "split_k_early",
}
#: (kernel, end of an entry's name) -> the kernel: two passes, folded, a pair
_ENDINGS = {
    ("split_k", "p"): "split_k_two_pass",
    ("split_k", "f"): "split_k_folded",
    ("persistent", "f"): "persistent_folded",
    ("persistent", "p"): "persistent_pair",
}
#: the end of a name -> the mode: ``o`` is PDL, ``l`` its late trigger, ``s`` one CTA per SM
MODES = {
    str(mode): mode
    for mode in (PLAIN, *(Mode(True, late, one) for late in (False, True) for one in (False, True)))
}
#: field of `Configuration.LAUNCH` -> what finds it in a name; others are numbers
_FIELDS = {
    "cluster": "c1",
    "band": r"(?:g(?P<band>[1-9]\d?))?",
    "group": r"(?:g(?=\d)|(?=v))(?P<group>v?[1-9]\d*)",
}
#: kernel -> what earlier names have before and behind the choices at launch
_EARLIER = {"persistent": ("", "(?:/k1)?"), "split_k_two_pass": ("(?:c1)?", "")}


@lru_cache(maxsize=1 << 16)
def parse(name: str) -> Config:
    """The configuration of a name, of this version or an earlier one. Raises SassafrasError."""
    stem, plus, letters = name.partition("+")
    if (mode := MODES.get(plus + letters)) is None:
        raise SassafrasError("modes are +o, +ol, +os, +ols (PDL, late trigger, one CTA per SM)", where=name)
    head, _, launch = stem.partition("/")
    if is_approximate(name):
        return replace(_with_blocks(head, launch, name), mode=mode)  # type: ignore[type-var]
    return replace(_found(head, launch, name), mode=mode)  # type: ignore[type-var]


@lru_cache(maxsize=1 << 16)
def known(name: str) -> Config | None:
    """`parse`, or None for what no kernel of this version has: files keep names of kernels that are gone."""
    try:
        return parse(name)
    except SassafrasError:
        return None


def is_approximate(name: str) -> bool:
    """Whether a name is of an earlier split-K kernel, whose start was slower: it does not say the blocks of a
    stage. It is read as today's kernel with the same tile."""
    return re.fullmatch(r"cs_\w+_s\d+/.*", name) is not None


def _with_blocks(head: str, launch: str, name: str) -> Config:
    """Today's kernel has fewer stages where the sums of a split k want room beside them."""
    stem, _, stages = head.rpartition("_s")
    for fewer in range(min(int(stages), 32), 3, -1):  # the most that a kernel has
        try:
            config = _found(f"{stem}_s{fewer}q1", launch, name)
        except SassafrasError:
            continue
        if config.shared_bytes <= SHARED_LIMIT:
            return config
    raise SassafrasError("no kernel has a configuration of this name", where=name)


def _found(head: str, launch: str, name: str) -> Config:
    prefix, _, rest = head.partition("_")
    if prefix in ENTRIES:
        kernel = ENTRIES[prefix]
        if (kernel, rest[-1:]) in _ENDINGS:
            kernel, rest = _ENDINGS[kernel, rest[-1]], rest[:-1]
        head = f"{kernel}_{rest}"
    if head not in _heads():
        raise SassafrasError(
            "no kernel has a configuration of this name",
            where=name,
            hint="sassafras gemm configs MxNxK lists them",
        )
    kernel, instance = _heads()[head]
    if (found := re.fullmatch(_choices(kernel), launch)) is None:
        raise SassafrasError(f"a {kernel} configuration has no such choices at launch", where=name)
    chosen = {key: int(value.replace("v", "-")) for key, value in found.groupdict().items() if value}
    return registry.KERNELS[kernel].configuration(instance, **chosen)  # type: ignore[no-any-return]


@cache
def _choices(kernel: str) -> str:
    """What finds a kernel's choices at launch, by field."""
    said = registry.KERNELS[kernel].configuration.LAUNCH.items()
    found = "".join(_FIELDS.get(field, rf"{before}(?P<{field}>[1-9]\d*)") for field, before in said)
    return found.join(_EARLIER.get(kernel, ("", "")))


@lru_cache(maxsize=1)
def _heads() -> dict[str, tuple[str, Instance]]:
    """What a name has before its first slash -> kernel, instance."""
    return {
        kernel.configuration(instance).stem.partition("/")[0]: (name, instance)
        for name, kernel in registry.KERNELS.items()
        for instance in kernel.instances
    }
