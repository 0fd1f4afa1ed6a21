"""Threads that share an engine: on the driver's stand-in, plainly and under gcc's sanitizers.

``SASSAFRAS_THREAD_ROUNDS=10000`` makes the long run (6 threads, so many products each).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.build import launcher as build  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from tests.gemm import stand_in, threads_program  # noqa: E402
from tests.shared import compiled  # noqa: E402

ROUNDS = int(os.environ.get("SASSAFRAS_THREAD_ROUNDS", "100"))
SECONDS = 200 + ROUNDS // 2
#: name -> its runtime, its options
SANITIZERS = {
    "address": ("libasan.so", "ASAN_OPTIONS", "detect_leaks=0:exitcode=66"),
    # the interpreter and torch are not built for it; what their locks order is seen all the same
    "thread": ("libtsan.so", "TSAN_OPTIONS", "ignore_noninstrumented_modules=1:exitcode=66:halt_on_error=1"),
}
_HELD = "            return at->second;\n"
_WORDS = "    uint64_t words[kMostParameters];\n"
_LAUNCH = "    return self->launch(&how, launch.function, pointers, nullptr);\n"
#: what is wrong with the launcher where this sanitizer has to say so, and what it says
PLANTED = {
    # does not hold its plan
    "address": ({_HELD: "            return Held(Held(), at->second.get());\n"}, "heap-use-after-free"),
    # shares its arguments and gives up the GIL
    "thread": (
        {
            _WORDS: f"    static {_WORDS.strip()}\n",
            _LAUNCH: "    int code;\n    Py_BEGIN_ALLOW_THREADS\n    code = " + _LAUNCH.strip()[7:]
            + "\n    Py_END_ALLOW_THREADS\n    return code;\n",
        },
        "data race",
    ),
}  # fmt: skip


def runtime(sanitizer: str) -> str:
    """The sanitizer's library; skips where gcc has none."""
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("needs g++")
    name = SANITIZERS[sanitizer][0]
    said = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    if not Path(said.stdout.strip()).is_file():
        pytest.skip(f"this g++ has no {name}")
    return said.stdout.strip()


def instrumented(shared: Path, sanitizer: str, changes: dict[str, str] | None = None) -> dict[str, str]:
    """The launcher and the stand-in, built for a sanitizer; the launcher's text may be changed."""
    files = {name: (build._HERE / name).read_text() for name in build.SOURCES}
    for before, after in (changes or {}).items():
        assert files["launcher.hpp"].count(before) == 1, f"the text has no {before!r}"
        files["launcher.hpp"] = files["launcher.hpp"].replace(before, after)
    include = sysconfig.get_paths()["include"]
    # -O0: these builds take most of the test, and nothing that is looked for is optimised away
    flags = f"-std=c++17 -O0 -fPIC -shared -fsanitize={sanitizer}".split()
    driver = {"driver_stand_in.cpp": (stand_in.HERE / "driver_stand_in.cpp").read_text()}
    made = {}
    for name, sources in (("launcher", files), ("driver", driver)):
        command = ["g++", *flags, f"-I{include}", next(iter(sources)), "-o", f"{name}.so"]
        made[name] = str(compiled(shared, sources, command) / f"{name}.so")
    return made


Run = tuple[int, str, str]


def run(runs: list[dict[str, Any]], environment: dict[str, str] | None = None) -> list[Run]:
    """The program's runs, without address space randomisation where that can be had: gcc's ThreadSanitizer
    does not work with that of some kernels."""
    command = [sys.executable, "-m", "tests.gemm.threads_program", json.dumps(runs)]
    if environment and shutil.which("setarch"):
        plain = ["setarch", "-R"]
        if subprocess.run([*plain, "true"], capture_output=True, check=False).returncode == 0:
            command = [*plain, *command]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=root,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address space is none that gcc's ThreadSanitizer knows")
    assert done.returncode == 0 and "Sanitizer" not in done.stderr, done.stderr[:6000]
    return json.loads(done.stdout)


def right(done: Run) -> None:
    status, out, errors = done
    assert status == 0 and "Sanitizer" not in errors, errors[:6000]
    said = json.loads(out)
    print(said)
    assert said["wrong"] == 0 and not said["faults"], said
    assert set(said["members"].values()) == {"ours"} and len(said["members"]) == 6, said
    assert said["launches"] > 0.7 * said["products"] and said["counts"]["refused"] > 0, said


def folders(tmp_path: Path, *names: str) -> Iterator[str]:
    """A cache for each run."""
    for name in names:
        (tmp_path / name).mkdir()
        yield str(tmp_path / name)


@pytest.mark.timeout(SECONDS + 60)
def test_six_threads(tmp_path: Path, shared: Path) -> None:
    driver = str(stand_in.build_driver(tmp_path, shared))
    made, python = folders(tmp_path, "compiled", "python")
    launcher = build.path(stand_in.launcher_into(Path(made), shared))
    runs = [{"cache": python, "launcher": ""}, {"cache": made, "launcher": str(launcher)}]
    built = launcher.is_file()
    for done in run([{**one, "driver": driver, "rounds": max(400, ROUNDS)} for one in runs[: 1 + built]]):
        right(done)
    if not built:
        pytest.skip("the compiled launcher cannot be built here; Python's is right")


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_six_threads_under_a_sanitizer(tmp_path: Path, shared: Path, sanitizer: str) -> None:
    """What is right is silent, and the same run finds a planted fault."""
    _, variable, options = SANITIZERS[sanitizer]
    environment = {"LD_PRELOAD": runtime(sanitizer), variable: options}
    changes, says = PLANTED[sanitizer]
    one, other = folders(tmp_path, "right", "planted")
    settings = [
        {**instrumented(shared, sanitizer), "cache": one, "rounds": ROUNDS},
        {**instrumented(shared, sanitizer, changes), "cache": other, "rounds": 30},
    ]
    found, planted = run(settings, environment)
    right(found)
    status, out, errors = planted
    assert status == 66 and says in errors, errors[:4000] + out


def at_once(work: Callable[[], Any], count: int = 6) -> list[Any]:
    """What so many threads get, which begin together."""
    begin, found = threading.Barrier(count), []

    def one() -> None:
        begin.wait()
        found.append(work())

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_a_problem_is_planned_once(
    tmp_path: Path, shared: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that first call it at once wait for one plan."""
    driver = stand_in.build_driver(tmp_path, shared)
    cache = stand_in.launcher_into(tmp_path, shared)
    if kind == "compiled" and not build.path(cache).is_file():
        pytest.skip("the compiled launcher cannot be built here")
    threads_program.prepare(cache)
    launcher = str(build.path(cache)) if kind == "compiled" else ""
    engine = threads_program.engine({"driver": str(driver), "cache": str(cache), "launcher": launcher})
    planned: list[Any] = []

    def slowly(real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*given: Any) -> Any:
            planned.append(given[0])
            time.sleep(0.05)
            return real(*given)

        return function

    monkeypatch.setattr(engine, "_serve", slowly(engine._serve))
    room.use(engine, device="cpu")
    try:
        for index in range(len(threads_program.PROBLEMS)):
            planned.clear()
            product = threads_program.Product(index, random.Random(index))
            results = at_once(lambda p=product: room.matmul(p.a, p.b, **p.more))
            assert len(planned) == 1, f"problem {index}"
            assert len(results) == 6 and all(torch.equal(c, product.wanted) for c in results)
    finally:
        room.use(None)


def test_the_engine_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make() -> None:
        time.sleep(0.05)
        made.append(object())
        room._engine = made[-1]

    monkeypatch.setattr(room, "_engine", None)
    monkeypatch.setattr(room, "_make_engine", make)
    at_once(room._set_up)
    assert len(made) == 1
