"""Distinguish out-of-memory from other failures. Standard library only.

A rank reports a failed allocation itself. A kill by the kernel is reported by the node's agent (from the cgroup's
counter), by srun, or by Slurm's step daemon.
"""

import contextlib
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.run_dir.run_dir import AttemptDir, read_json, write_json

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_RECENT_S = 30.0
# The names of torch's classes; some of its libraries raise RuntimeError instead.
_TYPES = {"OutOfMemoryError", "MemoryError"}
_MESSAGES = re.compile(
    r"(CUDA|HIP|XPU|MPS).{0,20}out of memory|CUDNN_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|can't allocate memory",
    re.IGNORECASE,
)
# The first is a message of srun, the second one in the output of the task.
_SRUN_OOM = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: Out Of Memory$", re.MULTILINE)
_KILL_EVENT = re.compile(r"\boom[-_ ]kill event", re.IGNORECASE)
KERNEL = "the kernel killed a process there, because the memory of the job was full"


@dataclass(frozen=True)
class RanOut:
    """A process or node that ran out of memory."""

    name: str
    """policy-1, rank-0, or a node."""
    phase: str
    """Phase of the process; "" after a kill by the kernel."""
    seen: str
    """Message of the error."""

    @property
    def where(self) -> str:
        return f"{self.name} in {self.phase}" if self.phase else self.name


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an allocation failed, by class names and message: torch is not imported for it.

    >>> is_out_of_memory(RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB")), is_out_of_memory(ValueError())
    (True, False)
    """
    if error is None:
        return False
    by_name = any(kind.__name__ in _TYPES for kind in type(error).__mro__)
    return by_name or (isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None)


def note_out_of_memory(attempt: AttemptDir, found: RanOut) -> None:
    """Record it for the controller, once per process."""
    path = attempt.path / f"memory-{found.name}.json"
    with contextlib.suppress(OSError):  # the error itself is reported anyway
        if not path.exists():
            write_json(path, asdict(found))


def find_out_of_memory(attempt: AttemptDir) -> list[RanOut]:
    """Return processes and nodes that ran out of memory, those that reported it themselves first.

    Which of agent, srun and step daemon reports a kill is a matter of luck, so all of them give the same `RanOut`.
    """
    found = [RanOut(**read_json(path)) for path in attempt.path.glob("memory-*.json")]
    if found:
        return sorted(found, key=lambda one: (one.phase == "", one.name))
    logs = [attempt.log("srun"), *attempt.logs.glob("task-*.log")]
    texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs if log.is_file()]
    if hosts := {host for text in texts for host in _SRUN_OOM.findall(text)}:
        return [RanOut(host, "", KERNEL) for host in sorted(hosts)]
    if not any(map(_KILL_EVENT.search, texts)):
        return []
    nodes = [read_json(path).get("host") for path in attempt.path.glob("node-*.json")]
    return [RanOut(nodes[0] if len(nodes) == 1 else "a node of the job", "", KERNEL)]


def count_oom_kills(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """Return the number of kills in this process's cgroup since it was created; 0 if unknown."""
    total = 0
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="ascii", errors="replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers in ("", "memory"):
                name = "memory.oom_control" if controllers else "memory.events"
                total = max(total, _read_count(cgroups / controllers / path.lstrip("/") / name))
    return total


def _read_count(path: Path) -> int:
    try:
        match = re.search(r"^oom_kill (\d+)$", path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


class OomKills:
    """Counts recent kills: an old one is not the cause of a failure now."""

    def __init__(self) -> None:
        self._counts = [count_oom_kills()] * 2
        self._check_at = 0.0

    def check(self) -> None:
        """Read the counter at intervals; to be called in the agent's loop."""
        if time.monotonic() > self._check_at:
            self._check_at = time.monotonic() + _RECENT_S
            self._counts = [self._counts[1], count_oom_kills()]

    def note(self, attempt: AttemptDir, host: str) -> None:
        """Record a recent kill, for an attempt that has failed."""
        if count_oom_kills() > self._counts[0]:
            note_out_of_memory(attempt, RanOut(host, "", KERNEL))
