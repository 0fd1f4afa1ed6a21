"""Build a corpus of distinct cubins: what the parser, the validator and the latency mining are tried on.

    python benchmarks/corpus/build.py DIRECTORY [--limit N] [--only triton|cuda|cutlass] [--jobs 2]

Writes ``DIRECTORY/<arch>/<name>.cubin`` (architectures that are only parsed under
``DIRECTORY/parse-only/``) and one line a cubin in ``DIRECTORY/index.jsonl``: path, name, arch, compiler with
version, flags, sha256, launch facts where known. Cubins with the same bytes are kept once. A job that
is done already, or failed already (``failed.jsonl``), is skipped: the same command resumes. Needs no GPU.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Lines, command_line
from jobs_cuda import cuda_jobs, cutlass_jobs, run_nvcc
from jobs_triton import run_triton, triton_jobs

#: parsed, never scheduled
PARSE_ONLY = ("sm_100a", "sm_120a")


def main() -> int:
    """Build what is missing; the exit status is 1 when nothing at all could be built."""
    parser = command_line(__doc__, out=None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="stop when the corpus holds so many cubins")
    parser.add_argument("--only", choices=("triton", "cuda", "cutlass"), default=None)
    parser.add_argument(
        "--arch", action="append", default=None, help="only this architecture; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parser.parse_args()
    out: Path = options.directory
    index, failed = Lines(out / "index.jsonl"), Lines(out / "failed.jsonl")
    done = {row["name"] for row in (*index.rows, *failed.rows)}
    seen = {row["sha256"] for row in index.rows}
    jobs = (
        job
        for job in _all_jobs(options.only, out)
        if job["name"] not in done and (options.arch is None or job["arch"] in options.arch)
    )
    with Pool(options.jobs) as pool:
        for result in pool.imap_unordered(_run, jobs):
            if why := _record(out, index, result, seen):
                failed.add({"name": result["name"], **why})
            if options.limit is not None and len(seen) >= options.limit:
                break
    print(f"{len(seen)} distinct cubins in {out}")
    return 0 if seen else 1


def _all_jobs(only: str | None, out: Path) -> Iterator[dict[str, Any]]:
    if only in (None, "triton"):
        yield from triton_jobs()
    if only in (None, "cuda"):
        yield from cuda_jobs()
    if only in (None, "cutlass"):
        yield from cutlass_jobs(out / ".cutlass")


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """One job in a worker process: the index line, with the cubin's bytes or an error."""
    runner = run_triton if job["kind"] == "triton" else run_nvcc
    try:
        return {**job, **runner(job)}
    except Exception as error:
        # the reason goes to failed.jsonl: a job that an architecture cannot do is no fault of the corpus
        return {**job, "error": f"{type(error).__name__}: {error}"[:2000]}


def _record(out: Path, index: Lines, result: dict[str, Any], seen: set[str]) -> dict[str, str]:
    """Write the cubin, then its index line: a kill in between costs one rebuild. Why there is none, or {}."""
    if "error" in result:
        print(f"failed: {result['name']}: {result['error'].splitlines()[0][:160]}", flush=True)
        return {"error": result["error"]}
    cubin: bytes = result.pop("cubin")
    digest = hashlib.sha256(cubin).hexdigest()
    if digest in seen:
        return {"error": "same bytes as another", "sha256": digest}
    seen.add(digest)
    arch = result["arch"]
    folder = out / "parse-only" / arch if arch in PARSE_ONLY else out / arch
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}.cubin"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(cubin)
    partial.replace(path)
    line = {k: v for k, v in result.items() if k not in ("source", "include", "overrides")}
    index.add({"path": str(path.relative_to(out)), "sha256": digest, **line})
    return {}


if __name__ == "__main__":
    sys.exit(main())
