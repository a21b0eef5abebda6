"""Out of memory, told apart from every other end: who ran out, in what. Standard library alone.

A rank whose own allocation fails says so itself; whom the kernel kills, its node's agent tells of, by the counter of
the cgroup; and Slurm's words stand in srun's log.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.run_dir.run_dir import AttemptDir, read_json, write_json

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# torch's classes; a subclass of RuntimeError, which some of its libraries raise themselves.
_LATELY_S = 30.0
_TYPES = {"OutOfMemoryError", "MemoryError"}
_WORDS = re.compile(
    r"(CUDA|HIP|XPU|MPS).{0,20}out of memory|CUDNN_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|can't allocate memory",
    re.IGNORECASE,
)
# Slurm says the first to srun, and the second where the task writes.
_TASK_OUT = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: Out Of Memory$", re.MULTILINE)
_KILL_EVENT = re.compile(r"\boom[-_ ]kill event", re.IGNORECASE)
KERNEL = "the kernel killed a process there, because the memory of the job was full"


@dataclass(frozen=True)
class RanOut:
    """Who ran out of memory."""

    who: str
    """policy-1, rank-0, or a node."""
    phase: str
    """What it did; "" where the kernel ended it."""
    seen: str
    """The error's words."""

    @property
    def where(self) -> str:
        return f"{self.who} in {self.phase}" if self.phase else self.who


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an allocation failed, by the names of its classes and its words: torch is not imported for it.

    >>> is_out_of_memory(RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB")), is_out_of_memory(ValueError())
    (True, False)
    """
    if error is None:
        return False
    by_name = any(kind.__name__ in _TYPES for kind in type(error).__mro__)
    return by_name or (isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None)


def note_out_of_memory(attempt: AttemptDir, found: RanOut) -> None:
    """For whoever decides what follows; every process may, the first of its name counts."""
    path = attempt.path / f"memory-{found.who}.json"
    with contextlib.suppress(OSError):  # the error itself is told in any case
        if not path.exists():
            write_json(path, asdict(found))


def find_out_of_memory(attempt: AttemptDir) -> list[RanOut]:
    """Return the processes and nodes that ran out of memory; processes that said so themselves come first.

    A kill by the kernel is seen by the node's agent, if it lives, by srun, and by Slurm's step daemon. Which of them
    gets to say so is a matter of luck, so that all three give the same `RanOut`.
    """
    found = [RanOut(**read_json(path)) for path in attempt.path.glob("memory-*.json")]
    if found:
        return sorted(found, key=lambda one: (one.phase == "", one.who))
    text = attempt.log("srun").read_text(encoding="utf-8", errors="replace") if attempt.log("srun").is_file() else ""
    if hosts := _TASK_OUT.findall(text):
        return [RanOut(host, "", KERNEL) for host in sorted(set(hosts))]
    logs = [log.read_text(encoding="utf-8", errors="replace") for log in attempt.logs.glob("task-*.log")]
    if not any(map(_KILL_EVENT.search, [text, *logs])):
        return []
    nodes = [read_json(path).get("host") for path in attempt.path.glob("node-*.json")]
    return [RanOut(nodes[0] if len(nodes) == 1 else "a node of the job", "", KERNEL)]


def count_oom_kills(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """Processes that the kernel has ended in this process's cgroup, because that was full; 0 where nobody knows."""
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    total = 0
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "memory"):
            version = ("memory.events", "oom_kill") if not controllers else ("memory.oom_control", "oom_kill")
            total = max(total, _read_count(cgroups / controllers / path.lstrip("/") / version[0], version[1]))
    return total


def _read_count(path: Path, key: str) -> int:
    try:
        found = re.search(rf"^{key} (\d+)$", path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


class OomKills:
    """Whether the kernel has ended a process here lately: one that ended long ago is not why a run ends now."""

    def __init__(self) -> None:
        self._counts = [count_oom_kills()] * 2
        self._look_at = 0.0

    def look(self) -> None:
        """Cheap; call it in a loop."""
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _LATELY_S
            self._counts = [self._counts[1], count_oom_kills()]

    def note(self, attempt: AttemptDir, host: str) -> None:
        """For an attempt that has failed."""
        if count_oom_kills() > self._counts[0]:
            note_out_of_memory(attempt, RanOut(host, "", KERNEL))
