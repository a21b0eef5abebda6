"""Writes and checks the locks: all that is installed from the package index, in one version, with its files' hashes.

    python -m tests.lock           `make lock` writes them anew
    python -m tests.lock check     `make check-locks`: with PyPI alone no requirement disagrees, nothing is missing or
                                   too much, and PyPI has every file

`LOCKS` says what is in which. Everything is taken from PyPI, whatever this machine's pip and uv are configured for, but
torch for CPU, which PyTorch's own index has: PIP_FIND_LINKS says where else it lies for who cannot reach that.
tests/vllm says what vLLM's image for AMD needs. A line a package, so that sed and grep can take them
apart; one that is built from its source says so.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_VLLM = Path(__file__).parent / "vllm"
_VLLM_INDEX = "https://pypi.org/simple/vllm/"


def read_requirements(build: str) -> list[str]:
    """Return the requirements of the build `cuda` or `rocm`, one per line."""
    return (_VLLM / f"{build}.txt").read_text(encoding="utf-8").splitlines()


def write_requirements(extra: Iterable[str]) -> None:
    """Write the requirements of the vLLM version that the extra names."""
    [version] = (one.partition("==")[2] for one in extra if one.startswith("vllm=="))
    with tarfile.open(fileobj=io.BytesIO(_fetch_source(version))) as archive:
        for build in ("cuda", "rocm"):
            lines = _read(archive, f"vllm-{version}/requirements", f"{build}.txt")
            _VLLM.mkdir(exist_ok=True)
            (_VLLM / f"{build}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _fetch_source(version: str) -> bytes:
    asked = urllib.request.Request(_VLLM_INDEX, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        files = {file["filename"]: file["url"] for file in json.load(answer)["files"]}
    with urllib.request.urlopen(files[f"vllm-{version}.tar.gz"], timeout=600) as answer:
        return bytes(answer.read())


def _read(archive: tarfile.TarFile, folder: str, name: str) -> list[str]:
    """Return the lines without comments, including those of included files."""
    member = archive.extractfile(f"{folder}/{name}")
    assert member is not None
    lines: list[str] = []
    for line in member.read().decode().splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text.startswith("-r "):
            lines += _read(archive, folder, text[3:].strip())
        elif text:
            lines.append(text)
    return lines


ROOT = Path(__file__).parents[1]
_PYPI = "https://pypi.org/simple"
_TORCH_FOR_CPU = "https://download.pytorch.org/whl/cpu/torch/"
# CUDA builds of vLLM's dependencies, which a CPU torch cannot load, and a large package for GPUs only.
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "triton"})
# Built for ROCm in vLLM's image for AMD; the PyPI builds are for CUDA.
OF_THE_IMAGE = frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton", "flash-attn", "vllm"})
_ALL = ("3.11", "3.12", "3.13")
# For pyproject.toml and for source packages: their builds download nothing.
_BUILD = ("hatchling", "editables", "wheel")
# Its metadata requires a build with torch; all its requirements are also requirements of vLLM.
_UNRESOLVED = "flash-attn"


@dataclass(frozen=True)
class Lock:
    """Definition of a lock."""

    path: str
    extras: tuple[str, ...]
    pythons: tuple[str, ...]
    """Python versions to resolve for."""
    wheels: tuple[str, ...] = ("3.11", "3.12")
    """Python versions whose wheels it lists."""
    also: tuple[str, ...] = ("wheel",)
    absent: frozenset[str] = frozenset()
    """Requirements that the lock omits."""
    beside: str | None = None
    """Name of a lock that is installed with this one and not repeated."""
    torch_for_cpu: bool = False
    """Whether torch comes from PyTorch's index."""
    image: bool = False
    """Whether it is installed over vLLM's image, whose requirements must also hold."""


LOCKS = {
    # As installed here. Other Python versions have the same requirements, but torch's wheel is for a single one.
    "cpu": Lock("constraints.txt", ("cpu",), ("3.11",), _ALL, _BUILD, LEFT_OUT, torch_for_cpu=True),
    "dev": Lock(
        *("constraints-dev.txt", ("cpu", "dev"), ("3.11",), _ALL, _BUILD, LEFT_OUT), torch_for_cpu=True, beside="cpu"
    ),
    "cuda": Lock("containers/cuda/constraints.txt", ("cuda", "flash-attn"), ("3.11", "3.12"), also=_BUILD),
    # A venv over the image's packages, which provide the ROCm builds. OpenTelemetry packages need equal versions: the
    # image stops at 1.40 (docker/Dockerfile.rocm), and wandb needs a newer one. So the lock has all of them.
    "rocm": Lock(
        *("containers/rocm/constraints.txt", ("rocm",), ("3.12",)),
        also=("wheel", "opentelemetry-exporter-otlp"),
        absent=OF_THE_IMAGE,
        image=True,
    ),
}


def needed(name: str, extras: set[str], seen: set[tuple[str, str]]) -> set[str]:
    """Return the names of all required distributions, from installed metadata."""
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
    """Return name -> version of all requirements of the extras and the build."""
    names = needed("slurm_rl", extras, set()) - {"slurm-rl"}
    for name in _BUILD:
        names |= {name} | needed(name, set(), set())
    return {name: metadata.version(name) for name in names}


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Return name -> version."""
    pairs = (line.split(" ")[0].strip().split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in pairs}


def read_lock(name: str) -> dict[str, str]:
    """Return name -> version."""
    return read_pins((ROOT / LOCKS[name].path).read_text(encoding="utf-8").splitlines())


def resolve(lock: Lock, python: str, pins: Mapping[str, str], *, hard: bool) -> dict[str, str]:
    """Return the versions that this Python would get from PyPI.

    Args:
        pins: name -> preferred version.
        hard: whether the pins are required.

    Raises:
        subprocess.CalledProcessError: requirements conflict; uv has printed the reason.
    """
    image = read_requirements("rocm") if lock.image else []
    found = _compile(lock, python, [*lock.also, *image], pins, hard=hard)
    if image:
        # Again without packages that only the image needs.
        found = _compile(lock, python, lock.also, found, hard=True)
    if _UNRESOLVED in lock.extras:
        [requirement] = _project()["optional-dependencies"][_UNRESOLVED]
        found |= read_pins([requirement])
    return found


def resolve_anew(name: str, preferred: Mapping[str, str]) -> dict[str, str]:
    """Return pins of a lock, keeping existing or preferred versions where they fit."""
    lock = LOCKS[name]
    pins = {**preferred, **(read_lock(name) if (ROOT / lock.path).exists() else {})}
    found: dict[str, str] = {}
    for python in lock.pythons:
        found |= resolve(lock, python, pins | found, hard=False)
    return found


def list_files(pins: Mapping[str, str], pythons: Iterable[str]) -> tuple[dict[str, set[str]], set[str]]:
    """Return hashes of each package's files (wheels of these versions, else the source), and source-only packages."""
    # torch's build for CPU is not on PyPI.
    files = {name: {_hash_here(f"{name}=={version}")} if "+" in version else set() for name, version in pins.items()}
    from_source = {name for name, hashes in files.items() if not hashes}
    text = "".join(f"{name}=={pins[name]}\n" for name in sorted(from_source))
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "pylock.toml")
            _uv(python, ["--format=pylock.toml", "--no-deps", f"--output-file={out}", "-"], text)
            packages: list[dict[str, Any]] = tomllib.loads(out.read_text(encoding="utf-8"))["packages"]
        for package in packages:
            wheels = package.get("wheels", [])
            from_source -= {package["name"]} if wheels else set()
            files[package["name"]] |= {file["hashes"]["sha256"] for file in wheels or [package["sdist"]]}
    return files, from_source


def write_lock(name: str, pins: Mapping[str, str]) -> None:
    files, from_source = list_files(pins, LOCKS[name].wheels)
    lines = [
        " ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(files[name]))])
        + ("  # from source" if name in from_source else "")
        for name, version in sorted(pins.items())
    ]
    (ROOT / LOCKS[name].path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_lock(name: str) -> list[str]:
    """Return the differences between the lock and PyPI. Raises as `resolve` does."""
    lock, pins = LOCKS[name], read_lock(name)
    wanted = pins | (read_lock(lock.beside) if lock.beside else {})
    wrong = []
    for python in lock.pythons:
        found = resolve(lock, python, wanted, hard=True)
        wrong += [f"Python {python} needs {one}=={found[one]}" for one in sorted(found.keys() - wanted.keys())]
        wrong += [f"Python {python} does not need {one}" for one in sorted(wanted.keys() - found.keys())]
        wrong += [
            f"{one} is {wanted[one]}, not {found[one]}" for one in wanted if found.get(one, wanted[one]) != wanted[one]
        ]
    files, _ = list_files(pins, lock.wheels)
    for line in (ROOT / lock.path).read_text(encoding="utf-8").splitlines():
        package = line.split("==")[0]
        gone = {word.partition(":")[2] for word in line.split() if word.startswith("--hash")} - files[package]
        wrong += [f"no file of {package} has {one}" for one in sorted(gone)]
    return wrong


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def _compile(lock: Lock, python: str, also: Iterable[str], pins: Mapping[str, str], *, hard: bool) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out, override, more, bounds = (Path(folder, name) for name in ("out.txt", "absent.txt", "more.in", "pins.txt"))
        # A marker that is never true removes the requirement.
        override.write_text("".join(f"{name} ; python_version < '3'\n" for name in sorted(lock.absent)))
        more.write_text("\n".join(also))
        # uv prefers versions in an existing output file.
        (bounds if hard else out).write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        words = ["pyproject.toml", str(more), *(f"--extra={name}" for name in lock.extras if name != _UNRESOLVED)]
        words += [f"--override={override}", f"--output-file={out}", "--no-annotate", "--no-header"]
        if hard:
            words.append(f"--constraint={bounds}")
        if lock.torch_for_cpu:
            words.append(_torch_links())
        _uv(python, words)
        return read_pins(out.read_text().splitlines())


def _uv(python: str, words: list[str], text: str = "") -> None:
    # Ubuntu 22.04, the base of the image for AMD; Debian 12 and the others are newer.
    where = [f"--python-version={python}", "--python-platform=x86_64-manylinux_2_35"]
    argv = [_find_uv(), "pip", "compile", "--quiet", "--no-config", f"--default-index={_PYPI}", *where, *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    subprocess.run(argv, input=text, text=True, check=True, cwd=ROOT, env=env)


def _torch_links() -> str:
    return f"--find-links={os.environ.get('PIP_FIND_LINKS', _TORCH_FOR_CPU)}"


@cache
def _find_uv() -> str:
    """Return uv from PATH, else download it."""
    found = shutil.which("uv")
    if found is None:
        folder = tempfile.mkdtemp(prefix="uv-")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", "uv==0.13.9"]
        subprocess.run(argv, check=True)
        found = f"{folder}/bin/uv"
    return found


def _hash_here(requirement: str) -> str:
    """Return the hash of the file that pip selects here."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", requirement]
        subprocess.run([*argv, _torch_links()], check=True)
        [file] = Path(folder).iterdir()
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def main(words: list[str]) -> None:
    if words[:1] == ["check"]:
        wrong = [f"{LOCKS[name].path}: {one}" for name in words[1:] or LOCKS for one in check_lock(name)]
        sys.exit("\n".join([*wrong, "Next: make lock"]) if wrong else 0)
    write_requirements(_project()["optional-dependencies"]["cuda"])
    cpu = installed({"cpu"})
    write_lock("cpu", cpu)
    write_lock("dev", {n: v for n, v in installed({"cpu", "dev"}).items() if n not in cpu})
    for name in ("cuda", "rocm"):
        write_lock(name, resolve_anew(name, cpu))


if __name__ == "__main__":
    main(sys.argv[1:])
