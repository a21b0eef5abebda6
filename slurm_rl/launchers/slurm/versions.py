"""What a version of Slurm does not have yet: said before a job is queued, not by an srun that fails in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_rl.errors import SubmitError

Version = tuple[int, int]

OLDEST: Version = (20, 11)
"""Its srun is the first with --overlap, by which steps share the nodes."""
_SINCE: dict[str, Version] = {
    "segment": (24, 5),
    "spread-segments": (25, 11),
    "consolidate-segments": (25, 11),
    "requeue=expedite": (25, 11),
}


def parse_version(text: str) -> Version | None:
    """Year and month in what `sinfo --version` prints; None where it tells no version.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 25.11.7"), parse_version("slurm")
    ((22, 5), (25, 11), None)
    """
    found = re.search(r"\b(\d+)\.(\d+)\b", text)
    return (int(found[1]), int(found[2])) if found else None


def check_version(options: Mapping[str, object], version: Version) -> None:
    """Compare sbatch's options, and what every run needs, with what this Slurm has.

    Raises:
        SubmitError: it is too old; names the option.
    """
    if version < OLDEST:
        raise SubmitError(
            f"slurm_rl needs Slurm {_render(OLDEST)} or later, whose steps can share nodes (srun --overlap)",
            seen=_render(version),
            action="run inside an allocation as on machines without Slurm: python -m slurm_rl node --help",
        )
    for name, value in options.items():
        for option in (name, f"{name}={value}"):
            if version < _SINCE.get(option, version):
                raise SubmitError(
                    f"--{option} is an option of Slurm {_render(_SINCE[option])} and later",
                    seen=_render(version),
                    action=f"leave cluster.slurm.extra.{name.replace('-', '_')} out",
                )


def _render(version: Version) -> str:
    return f"{version[0]}.{version[1]:02}"
