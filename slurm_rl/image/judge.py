"""What is in an image, held against what the plan expects: each mismatch with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_rl.plan.expected import satisfies
from slurm_rl.plan.job import JobPlan

# Newest first: the oldest driver that runs a major version of CUDA (NVIDIA, CUDA Compatibility, table 1).
_DRIVER_OF_CUDA = {13: 580, 12: 525, 11: 450}
_OF_THE_NODE = {"nvidia driver", "amdgpu driver"}
_REBUILD = "build it again: python -m slurm_rl image build --force"
_HOOK = {
    "pyxis": "enroot's hook 98-nvidia.sh and NVIDIA_VISIBLE_DEVICES",
    "apptainer": "the --nv of apptainer, which the plan passes",
    "podman": "nvidia-container-toolkit's CDI file (nvidia-ctk cdi generate)",
    "docker": "nvidia-container-toolkit",
    "none": "the node's driver",
}


@dataclass(frozen=True)
class Mismatch:
    """One thing in the image that is not as the plan expects."""

    name: str
    seen: str | None
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} is {self.seen or 'not there'}, expected {self.expected}: {self.remedy}"


def judge_reports(plan: JobPlan, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong, by the line: what all hosts share once, the rest with its host, and where hosts differ."""
    versions = {host: report["versions"] for host, report in reports.items()}
    hosts_of: dict[str, list[str]] = {}
    for host, found in versions.items():
        for mismatch in find_mismatches(found, plan.expected, plan.container["runtime"]):
            hosts_of.setdefault(str(mismatch), []).append(host)
    lines = [text if len(on) == len(reports) else f"{', '.join(on)}: {text}" for text, on in hosts_of.items()]
    for name in sorted({name for found in versions.values() for name in found} - _OF_THE_NODE):
        if len({found.get(name) for found in versions.values()}) > 1:
            held = ", ".join(f"{host} has {found.get(name)}" for host, found in versions.items())
            lines.append(f"{name} must be the same on all nodes ({held}): give each node the same image")
    return lines


def find_mismatches(versions: Mapping[str, str | None], expected: Mapping[str, str], runtime: str) -> list[Mismatch]:
    """What of `expected` (see plan/expected.py) is not in `versions`, and what to do about each.

    >>> find_mismatches({"ray": "2.9.0"}, {"ray": "==2.60.0"}, "podman")[0].seen
    '2.9.0'
    """
    found = []
    for name, conditions in expected.items():
        seen = versions.get(name)
        if seen is None or not satisfies(seen, conditions):
            wanted = conditions.replace("==", "") or "any version"
            found.append(Mismatch(name, seen, wanted, _remedy(name, runtime)))
    cuda, driver = versions.get("cuda"), versions.get("nvidia driver")
    least = _DRIVER_OF_CUDA.get(int(cuda.partition(".")[0])) if cuda else None
    if "cuda" in expected and least and driver and not satisfies(driver, f">={least}"):
        remedy = "a newer driver on the node, or torch built for an older CUDA in the image"
        found.append(Mismatch("nvidia driver", driver, f">={least} for CUDA {cuda}", remedy))
    return found


def _remedy(name: str, runtime: str) -> str:
    return {
        "python": "--base=<image with Python 3.11 or 3.12> to image build, or cluster.python=<its path in the image>",
        "cuda": "its torch is not built for NVIDIA; use containers/cuda",
        "hip": "its torch is not built for AMD; use containers/rocm on an image of AMD's",
        "nccl": "torch's wheels for CUDA bring it; " + _REBUILD,
        "rccl": "AMD's image brings it; --base=<that image> to image build",
        "flash-attn": "model.attention=sdpa, or " + _REBUILD,
        "nvidia driver": f"the container sees none; see {_HOOK[runtime]}, and nvidia-smi on the node",
        "amdgpu driver": "the node has none loaded; see lsmod on the node",
    }.get(name, _REBUILD)


def render_versions(versions: Mapping[str, str | None], expected: Mapping[str, str]) -> str:
    """A line for each thing that is there or expected."""
    names = [*expected, *(name for name in versions if name not in expected and versions[name])]
    return "\n".join(
        f"  {name:<14} {versions.get(name) or '-':<16} {expected.get(name, '')}".rstrip() for name in names
    )
