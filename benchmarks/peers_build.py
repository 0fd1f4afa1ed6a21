"""Kernels of CUDA-L2 as shared objects: what a machine without network needs for that, and their compilation.

Nothing of theirs, or of CUTLASS's, is part of this repository: a pack is made of checkouts.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT

from sassafras.gemm.bench.journal import Journal
from sassafras.gemm.problem.shape import Shape, stratified

Record = dict[str, Any]
SOURCES = ROOT / "benchmarks" / "peer_sources"
#: where their H100 kernels lie, and what of CUTLASS these include
KERNELS = "kernels/h100_F32F16F16F32"
INCLUDES = ("include", "tools/util/include")
#: headers of torch that they include; each is the stand-in
TORCH = (
    "torch/extension.h", "torch/types.h", "torch/torch.h", "ATen/ATen.h", "ATen/cuda/CUDAContext.h",
    "c10/cuda/CUDAStream.h", "c10/core/TensorImpl.h",
)  # fmt: skip
#: their flags, of which those that neither code nor includes ask for are left out (-l, -D*_BIN, -Xptxas -v)
FLAGS = (
    "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a",
    "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "--expt-relaxed-constexpr", "--expt-extended-lambda",
    "--use_fast_math", "-diag-suppress", "177", "-Xcompiler", "-fPIC",
)  # fmt: skip
#: instructions of the tensor cores in PTX that sum in FP16, and in FP32
SUMS = {
    kind: rf"\bwmma\.mma\.[\w.]*\.{d}\.{d}\s|\bw?g?mma[\w.]*\.{d}\.f16\.f16(\.{d})?\s"
    for kind, d in (("fp16", "f16"), ("fp32", "f32"))
}


def chosen(shapes: Iterable[Shape], count: int, seed: int) -> list[Shape]:
    """Of these shapes, each band's share, in a drawn order: any first part of it is a sample, too."""
    drawn = stratified(sorted(shapes, key=lambda s: (s.flop, s.m, s.n, s.k)), count, seed)
    return [drawn[at] for at in np.random.default_rng(seed).permutation(len(drawn))]


def padded(text: str, shape: Shape) -> tuple[int, ...]:
    """Extents m, n, k that their harness hands to a kernel: rounded to BM, BN, BK where its text has all."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if match := re.search(r"(BM|BN|BK)=Int<(\d+)>", line.replace(" ", "")):
            found[match[1]] = int(match[2])  # the last one counts
    if len(found) < 3 or not all(found.values()):
        return shape.m, shape.n, shape.k
    by = found["BM"], found["BN"], found["BK"]
    return tuple(-(-size // tile) * tile for size, tile in zip((shape.m, shape.n, shape.k), by, strict=True))


def git(at: Path, *words: str) -> bytes:
    """What git says in a checkout, or in a git directory without one. Raises SystemExit."""
    run = subprocess.run(["git", "-C", str(at), *words], capture_output=True, check=False)
    if run.returncode:
        raise SystemExit(f"error: git {' '.join(words[:3])} in {at}: {run.stderr.decode()[-200:]}")
    return run.stdout


def tree(at: Path, ref: str, *folders: str) -> tuple[str, dict[str, bytes]]:
    """A commit's name, and its files below these folders by path."""
    with tarfile.open(fileobj=io.BytesIO(git(at, "archive", ref, *folders))) as archive:
        members = [(m.name, archive.extractfile(m)) for m in archive.getmembers() if m.isfile()]
        files = {name: held.read() for name, held in sorted(members, key=lambda m: m[0]) if held}
    return git(at, "rev-parse", f"{ref}^{{commit}}").decode().strip(), files


def pack(cuda_l2: Path, cutlass: Path, refs: Sequence[str], count: int, seed: int, out: Path) -> Record:
    """Write kernels of `count` shapes, CUTLASS's headers and an index as one archive; returns the index."""
    commit, files = tree(cuda_l2, refs[0], KERNELS)
    kernels = {Shape.parse(Path(p).stem.replace("_", "x")): files[p] for p in files if p.endswith(".cu")}
    theirs, headers = tree(cutlass, refs[1], *INCLUDES)
    order = chosen(kernels, count, seed)
    index: Record = {"cuda_l2": commit, "cutlass": theirs, "seed": seed, "of": len(kernels)}
    index["kernels"] = [
        {"shape": str(s), "padded": padded(kernels[s].decode(), s), "builder": b"CollectiveB" in kernels[s]}
        for s in order
    ]
    packed = {"index.json": json.dumps(index, indent=1).encode()}
    packed |= {f"kernels/{shape}.cu": kernels[shape] for shape in order}
    packed |= {f"cutlass/{path}": data for path, data in headers.items()}
    with tarfile.open(out, "w:xz", preset=9) as archive:
        for name, data in packed.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return index


def unpacked(archive: Path, folder: Path) -> str:
    """Unpack into a folder, unless it holds this pack; the pack's digest. Raises SystemExit."""
    try:
        digest, mark = hashlib.sha256(archive.read_bytes()).hexdigest()[:16], folder / "unpacked"
        if not mark.exists() or mark.read_text() != digest:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.unpack_archive(archive, folder, "xztar", filter="data")
            mark.write_text(digest)
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise SystemExit(f"error: {archive} cannot be unpacked into {folder}: {error}") from None
    return digest


def index_of(folder: Path) -> Record:
    """The index of a folder that holds a pack. Raises SystemExit."""
    try:
        return dict(json.loads((folder / "index.json").read_text()))
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {folder} holds no pack: {error}") from None


class Compiler:
    """nvcc with their flags, in a pack's folder. Raises SystemExit: the entry does not compile."""

    def __init__(self, nvcc: Path, folder: Path, limit_s: float = 150.0) -> None:
        self.nvcc, self.folder, self.limit_s = nvcc, folder, limit_s
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = said.strip().splitlines()[-1]
        for name in TORCH:
            path = folder / "stand_in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#include "torch_stand_in.hpp"\n')
        for name in ("objects", "lib"):
            (folder / name).mkdir(exist_ok=True)
        includes = [folder / "stand_in", SOURCES, *(folder / "cutlass" / path for path in INCLUDES)]
        self._flags = [*FLAGS, *(f"-I{path}" for path in includes)]
        self._entry = folder / "entry.o"
        how = ["-c", "-O2", "-std=c++17", "-Xcompiler", "-fPIC", "-o", self._entry]
        code, words = self._run([nvcc, *how, SOURCES / "entry.cpp"])
        if code:
            raise SystemExit(f"error: entry.cpp does not compile: {words}")
        text = (SOURCES / "entry.cpp").read_text()
        self._wraps = [f"-Wl,--wrap={name}" for name in sorted(set(re.findall(r"\b__wrap_(\w+)\(", text)))]

    def build(self, shape: str) -> Record:
        """Compile a kernel to ``SHAPE.so``: seconds, or ``error`` with the compiler's first words."""
        begin = time.monotonic()
        source, held = self.folder / "kernels" / f"{shape}.cu", self.folder / "objects" / f"{shape}.o"
        made = self.folder / "lib" / f"{shape}.so"
        code, words = 0, ""
        if not held.exists():  # else it only has to be linked to another entry
            with tempfile.TemporaryDirectory(dir=self.folder) as kept:
                half, keep = Path(kept) / f"{shape}.o", [f"--keep-dir={kept}", "--keep"]
                code, words = self._run([self.nvcc, "-c", *self._flags, *keep, source, "-o", half])
                if code == 0:
                    text = (Path(kept) / f"{shape}.ptx").read_text()
                    found = [kind for kind, summing in SUMS.items() if re.search(summing, text)]
                    held.with_suffix(".json").write_text(json.dumps(found))
                    half.rename(held)
        if code == 0:  # without CUDA's runtime: torch's is the one
            link = ["g++", "-shared", "-s", "-Wl,-Bsymbolic", *self._wraps, held, self._entry]
            code, words = self._run([*link, "-o", made])
        took = {"seconds": round(time.monotonic() - begin, 1), "nvcc": self.version}
        end = {"error": words} if code else {"sums": json.loads(held.with_suffix(".json").read_text())}
        return {"shape": shape, **took, **end}

    def _run(self, words: Sequence[Any]) -> tuple[int, str]:
        """(exit status, first errors); everything that it started is killed at the time limit."""
        with_errors = partial(subprocess.Popen, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        process = with_errors([str(word) for word in words], start_new_session=True)
        try:
            said = process.communicate(timeout=self.limit_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 124, f"not compiled within {self.limit_s:g} s"
        return process.returncode, first_errors(said) if process.returncode else ""


def first_errors(said: str) -> str:
    """The first lines of a compiler's output that name an error, without folders."""
    lines = [line for line in said.splitlines() if re.search(r"error|fatal|undefined", line, re.IGNORECASE)]
    return re.sub(r"(/[\w.+-]+)+/", "", " | ".join(lines[:3] or said.splitlines()[-1:]))[:400]


def build(archive: Path, folder: Path, compiler: Compiler, jobs: int, limit_s: float) -> list[Record]:
    """Compile what is not compiled yet; a record a kernel. None is started after `limit_s` seconds."""
    journal = Journal(folder / "build.jsonl", {"pack": unpacked(archive, folder), "flags": FLAGS})
    done = journal.done()
    left = [k["shape"] for k in index_of(folder)["kernels"] if k["shape"] not in done][::-1]
    begin, running = time.monotonic(), set[Future[Record]]()
    with ThreadPoolExecutor(jobs) as pool:
        while left or running:
            while left and len(running) < jobs and time.monotonic() - begin < limit_s:
                running.add(pool.submit(compiler.build, left.pop()))
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                record = one.result()
                journal.add(record)
                done[record["shape"]] = record
                print(f"{time.monotonic() - begin:6.1f} s", *record.values(), flush=True)
    return list(done.values())


def nvcc(given: Path | None) -> Path:
    """The compiler: as given, of the path, or of CUDA's usual place. Raises SystemExit."""
    for found in (given, shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if found and Path(found).exists():
            return Path(found)
    raise SystemExit("error: no nvcc; name one with --nvcc")
