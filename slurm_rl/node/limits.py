"""Resource limits of a node's processes. Standard library only.

Slurm passes on the soft limits of the shell that submitted, which are low on login nodes: a trainer would run out of
files or be killed for its CPU time. The hard limits are the node's own.
"""

import math
import re
import resource

_MIB = 1 << 20
# Some libraries iterate over all possible descriptors, so that a billion costs minutes.
_MAX_FILES = 1 << 20
# With an unlimited stack, glibc gives threads only 2 MiB.
_STACK = 8 * _MIB
_RAISED = {
    resource.RLIMIT_MEMLOCK: math.inf,  # RDMA locks its buffers
    resource.RLIMIT_NOFILE: _MAX_FILES,
    resource.RLIMIT_NPROC: math.inf,
    resource.RLIMIT_CPU: math.inf,
    resource.RLIMIT_AS: math.inf,
    resource.RLIMIT_DATA: math.inf,
    resource.RLIMIT_FSIZE: math.inf,
    resource.RLIMIT_STACK: _STACK,
}
"""Limit -> sufficient value. Without core dumps: eight ranks of 100 GB would fill the disk."""
_LEAST = {
    "cpu time": math.inf,
    "file size": math.inf,
    "data size": math.inf,
    "address space": math.inf,
    "stack size": _STACK,
    "processes": 4096,
    "open files": 8192,
}
"""Name in /proc/<pid>/limits -> hard limit below which runs fail."""


def raise_limits() -> None:
    """Raise the soft limits of this process to the hard ones, up to sufficient values."""
    for limit, enough in _RAISED.items():
        soft, hard = resource.getrlimit(limit)
        wanted = hard if enough == math.inf else int(min(enough, _number(hard)))
        if _number(soft) < _number(wanted):
            resource.setrlimit(limit, (wanted, hard))


def _number(value: int) -> float:
    return math.inf if value == resource.RLIM_INFINITY else value


def find_low_limits(text: str) -> list[str]:
    r"""Return the hard limits in the text of /proc/<pid>/limits that are too low for a run.

    >>> find_low_limits("Max cpu time        3      600        seconds\nMax open files   512   20000   files\n")
    ['cpu time 600 seconds']
    """
    low = []
    for name, least in _LEAST.items():
        match = re.search(rf"^Max {name} +\S+ +(\d+) +(\w+)", text, re.MULTILINE)
        if match and int(match[1]) < least:
            unit = "" if match[2] in name else f" {match[2]}"
            low.append(f"{name} {match[1]}{unit}")
    return low


def read_locked_memory(text: str) -> float | None:
    """Return the hard limit of locked memory in bytes; None if the text has none."""
    match = re.search(r"^Max locked memory +\S+ +(\S+)", text, re.MULTILINE)
    return None if match is None else math.inf if match[1] == "unlimited" else float(match[1])
