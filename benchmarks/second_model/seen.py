"""Which distances the compiler leaves between pairs that nobody has measured: writes seen.json.

    python -m second_model.seen CORPUS...      # in benchmarks/; folders of cubins, sm_90 only

Read off unmodified kernels by the second model itself, within blocks only, where no path can be imagined that
does not exist.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sassafras.core import SassafrasError
from sassafras.sass.cubin import Cubin

from .kernel import Kernel
from .latency import _SEEN, Side, packed, pooled
from .reading import Unread, listing


def main(folders: list[str]) -> None:
    """Read every kernel for sm_90 in the folders; pool; write."""
    found: list[dict[tuple[str, Side, Side], int]] = []
    for path in sorted(p for folder in folders for p in Path(folder).rglob("*.cubin")):
        data = path.read_bytes()
        try:
            cubin = Cubin.parse(data)
            if cubin.sm != 90:
                continue
            found += [Kernel(listing(data, name)).seen() for name in cubin.entries]
        except (Unread, SassafrasError) as error:
            print(f"{path.name}: {error}")
    rows = packed(pooled(found))
    text = ",\n ".join(json.dumps(row) for row in rows)
    _SEEN.write_text(f'{{"kernels": {len(found)}, "rows": [\n {text}\n]}}\n')
    print(f"{len(rows)} pairs of {len(found)} kernels")


if __name__ == "__main__":
    main(sys.argv[1:])
