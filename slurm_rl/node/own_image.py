"""Checks of the image around a node agent, before anything starts there. Standard library only.

The agent checks, and not an earlier step, because some runtimes unpack an image again for every step.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from slurm_rl.errors import ConfigError
from slurm_rl.node.image_report import parse_report
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.compat import Versions, check_versions, find_differences
from slurm_rl.plan.job import JobPlan

_DEADLINE_S = 120.0


def check_own_image(plan: JobPlan) -> Versions | None:
    """Return the versions in the image; None without one. Raises ConfigError if they differ from the plan."""
    if plan.container["image"] is None:
        return None
    versions = _read_versions(plan.expected)
    check_versions(plan, versions)
    return versions


def check_same_image(head: HeadRecord, host: str, versions: Versions | None) -> None:
    """Raise ConfigError if a version differs from the head's."""
    differences = find_differences(head.host, head.versions or {}, host, versions or {})
    if differences:
        raise ConfigError("all nodes must have the same image", seen="\n  " + "\n  ".join(differences))


def _read_versions(names: Iterable[str]) -> Versions:
    # In a process of its own: RCCL starts threads when it reports its version.
    argv = [sys.executable, "-m", "slurm_rl.node.image_report", *names]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S)
        report, seen = parse_report(done.stdout), done.stderr.strip()[-500:] or "no output"
    except subprocess.TimeoutExpired:
        report, seen = None, f"no answer within {_DEADLINE_S:g} s"
    if report is None:
        raise ConfigError("the image's Python must report its versions", seen=seen)
    versions: Versions = report["versions"]
    return versions
