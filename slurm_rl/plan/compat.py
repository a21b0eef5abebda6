"""Compare the versions in an image with those that the plan expects."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.versions import satisfies

Versions = Mapping[str, "str | None"]
"""Versions by name, from image_report; None if absent. Quoted for agents in an old Python."""

# Oldest driver for a major version of CUDA (NVIDIA, CUDA Compatibility, table 1).
_DRIVER_OF_CUDA = {13: 580, 12: 525, 11: 450}
_DRIVERS = {"nvidia driver", "amdgpu driver"}
_EXTERNAL_REMEDY = "use another image of that trainer, or correct external.needs"
_REBUILD = "build it again: python -m slurm_rl image build --force"
_INSTALL = "install slurm_rl with its trainer in that Python (docs/install.md), or set cluster.python"


@dataclass(frozen=True)
class Mismatch:
    """A version in the image that differs from the plan."""

    name: str
    seen: str | None
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} is {self.seen or 'not there'}, expected {self.expected}: {self.remedy}"


def check_versions(plan: JobPlan, versions: Versions) -> None:
    """Raise ConfigError if the image does not match the plan, with a line and remedy per mismatch."""
    is_external = plan.external is not None
    wrong = find_mismatches(versions, plan.expected, plan.container["runtime"], is_external=is_external)
    if wrong:
        raise ConfigError(
            f"the image must be as the plan expects ({plan.container['image'] or 'no container'})",
            seen="\n  " + "\n  ".join(map(str, wrong)),
        )


def find_differences(host: str, versions: Versions, other: str, others: Versions) -> list[str]:
    """Return the versions, except drivers, that differ between two hosts.

    >>> find_differences("n1", {"ray": "2.60.0"}, "n2", {"ray": "2.9.0", "amdgpu driver": "6"})
    ['ray must be the same on all nodes (n1 has 2.60.0, n2 has 2.9.0): give each node the same image']
    """
    return [
        f"{name} must be the same on all nodes ({host} has {versions.get(name)}, {other} has {others.get(name)}): "
        "give each node the same image"
        for name in sorted((versions.keys() | others.keys()) - _DRIVERS)
        if versions.get(name) != others.get(name)
    ]


def find_mismatches(
    versions: Versions, expected: Mapping[str, str], runtime: str, *, is_external: bool = False
) -> list[Mismatch]:
    """Return the mismatches between `expected` (see plan/versions.py) and `versions`, each with a remedy.

    >>> find_mismatches({"ray": "2.9.0"}, {"ray": "==2.60.0"}, "podman")[0].seen
    '2.9.0'
    """
    found = []
    for name, conditions in expected.items():
        seen = versions.get(name)
        if seen is None or not satisfies(seen, conditions):
            wanted = conditions.replace("==", "") or "any version"
            remedy = _EXTERNAL_REMEDY if is_external else _remedy(name, runtime)
            found.append(Mismatch(name, seen, wanted, remedy))
    cuda, driver = versions.get("cuda"), versions.get("nvidia driver")
    least = _DRIVER_OF_CUDA.get(int(cuda.partition(".")[0])) if cuda else None
    if "cuda" in expected and least and driver and not satisfies(driver, f">={least}"):
        remedy = "a newer driver on the node, or torch built for an older CUDA in the image"
        found.append(Mismatch("nvidia driver", driver, f">={least} for CUDA {cuda}", remedy))
    return found


def _remedy(name: str, runtime: str) -> str:
    install = _INSTALL if runtime == "none" else _REBUILD
    return {
        "python": "--base=<image with Python 3.11 to 3.13> to image build, or cluster.python=<its path in the image>",
        "cuda": "its torch is not built for NVIDIA; use containers/cuda",
        "hip": "its torch is not built for AMD; use containers/rocm",
        "nccl": "torch's wheels for CUDA bring it; " + install,
        "rccl": "vLLM's image for AMD brings it; " + install,
        "flash-attn": "model.attention=auto; or pip install hatchling wheel && "
        "pip install --no-build-isolation .[flash-attn]; or " + install,
        "nvidia driver": f"the container sees none; see {RUNTIMES[runtime].gpu_hook}, and nvidia-smi on the node",
        "amdgpu driver": "none is loaded on the node; see lsmod there",
    }.get(name, install)
