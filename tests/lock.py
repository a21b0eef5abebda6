"""Writes the locks: whatever is installed from the package index, in one version, with the hashes of its files.

    python -m tests.lock <uv>        `make lock`; uv tells the hashes, and resolves what is not installed here

    constraints.txt                  slurm_rl[cpu] and what builds packages, as installed here
    constraints-dev.txt              what the tests need beside
    containers/cuda/constraints.txt  slurm_rl[cuda] as uv resolves it, and flash-attn

A line a package, so that sed and grep can take them apart; one that is built from its source says so.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {"cpu": "constraints.txt", "dev": "constraints-dev.txt", "cuda": "containers/cuda/constraints.txt"}
# CUDA builds that come with vLLM, which a CPU torch cannot load; and a gigabyte that computes on GPUs alone.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
# Of pyproject.toml and of the packages that come as source: nothing is fetched while they are built.
_BUILD = ("hatchling", "editables", "wheel")
_FLASH_ATTN = "flash-attn==2.8.3"
_PYTHONS = ("3.11", "3.12")
# Debian 12 and later, Ubuntu 24.04.
_PLATFORM = "x86_64-manylinux_2_36"


def needed(name: str, extras: set[str], seen: set[tuple[str, str]]) -> set[str]:
    """Names of all distributions that this one needs, by the metadata of what is installed."""
    found: set[str] = set()
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        dependency = canonicalize_name(requirement.name)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": one}) for one in extras | {""}):
            continue
        key = (dependency, ",".join(sorted(requirement.extras)))
        if dependency in LEFT_OUT or key in seen:
            continue
        seen.add(key)
        found |= {dependency} | needed(dependency, requirement.extras, seen)
    return found


def installed(extras: set[str]) -> dict[str, str]:
    """Name to version of all that the extras need, and that building needs."""
    names = needed("slurm_rl", extras, set()) - {"slurm-rl"}
    for name in _BUILD:
        names |= {name} | needed(name, set(), set())
    return {name: metadata.version(name) for name in names}


def read_lock(path: Path) -> dict[str, str]:
    """Name to version."""
    pairs = (line.split(" ")[0].split("==") for line in path.read_text(encoding="utf-8").splitlines())
    return {canonicalize_name(name): version for name, version in pairs}


def write_lock(uv: str, path: Path, pins: dict[str, str]) -> None:
    """Ask for the files of each package: the wheels for every Python, else the source."""
    # torch's build for CPU is not on the package index: pip's configuration says where it is.
    files = {name: {_hash_here(f"{name}=={version}")} if "+" in version else set() for name, version in pins.items()}
    from_source = {name for name, hashes in files.items() if not hashes}
    text = "".join(f"{name}=={pins[name]}\n" for name in sorted(from_source))
    for python in _PYTHONS:
        for package in _compile(uv, ["--no-deps", f"--python-version={python}", "-"], text):
            wheels = package.get("wheels", [])
            from_source -= {package["name"]} if wheels else set()
            files[package["name"]] |= {file["hashes"]["sha256"] for file in wheels or [package["sdist"]]}
    lines = [
        " ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(files[name]))])
        + ("  # from source" if name in from_source else "")
        for name, version in sorted(pins.items())
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _compile(uv: str, words: list[str], text: str = "") -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "pylock.toml")
        argv = [
            uv,
            "pip",
            "compile",
            "--quiet",
            "--format=pylock.toml",
            f"--output-file={out}",
            f"--python-platform={_PLATFORM}",
        ]
        subprocess.run([*argv, *words], input=text, text=True, check=True, cwd=ROOT)
        packages: list[dict[str, Any]] = tomllib.loads(out.read_text(encoding="utf-8"))["packages"]
        return packages


def _hash_here(requirement: str) -> str:
    """Of the file that pip takes here."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", requirement]
        subprocess.run(argv, check=True)
        [file] = Path(folder).iterdir()
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def main(uv: str) -> None:
    cpu = installed({"cpu"})
    write_lock(uv, ROOT / LOCKS["cpu"], cpu)
    write_lock(uv, ROOT / LOCKS["dev"], {n: v for n, v in installed({"cpu", "dev"}).items() if n not in cpu})
    words = ["pyproject.toml", "--extra=cuda", f"--python-version={_PYTHONS[0]}"]
    cuda = {str(package["name"]): str(package["version"]) for package in _compile(uv, words)}
    name, _, version = _FLASH_ATTN.partition("==")
    cuda |= {"wheel": cpu["wheel"], name: version}
    write_lock(uv, ROOT / LOCKS["cuda"], cuda)


if __name__ == "__main__":
    main(sys.argv[1])
