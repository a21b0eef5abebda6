"""Find late processes, slow ranks and the suspects of a hang, from heartbeats and stacks. Standard library only.

Of ranks with the same work, most wait in one place for those that are elsewhere (ByteRobust,
https://arxiv.org/abs/2509.16293).
"""

import contextlib
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.node.heartbeat import NUM_SPEEDS

FACTOR = 5.0
"""Deadline as a multiple of the longest interval seen (the factor of NVRx)."""
MIN_CALLS = 5
"""Calls of a phase after which its usual duration is known."""
SLOW = 0.75
"""Share of its peers' speed below which a rank is a straggler (the bound of NVRx)."""
# These wait for a disk or run users' code, and have deadlines of their own.
_UNMONITORED = {"", "save", "load", "export", "export_model", "load_reference", "ready", "build", "check_rows", "sleep"}
# In its other phases the driver waits for actors that have heartbeats.
_MONITORED_OF_DRIVER = {"train", "sync"}
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_STATES = {"": "it has ended", "T": "it is stopped (SIGSTOP)", "D": "it hangs in the kernel", "Z": "it is dead"}
_WAITING = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|gather|scatter|all_to_all|wait|synchron"
)
_SHOWN = 3


@dataclass(frozen=True)
class Beat:
    """Newest heartbeat of a process."""

    name: str
    pid: int
    phase: str
    """Current phase; "" while it waits for a call."""
    age_s: float
    """Seconds since the heartbeat."""
    num_calls: int = 0
    """Finished calls of this phase."""
    longest_s: float = 0.0
    """Longest interval between two heartbeats of this phase."""
    speeds: Sequence[float] = ()
    """Seconds per token of the newest steps, oldest first."""


@dataclass(frozen=True)
class Late:
    """A process with a last heartbeat older than its deadline."""

    name: str
    node: str
    phase: str
    age_s: float
    deadline_s: float

    @property
    def rule(self) -> str:
        return f"{self.name} on {self.node} must make progress in {self.phase} within {self.deadline_s:g} s"


@dataclass(frozen=True)
class Stack:
    """Main thread of one process."""

    name: str
    node: str
    frames: Sequence[str] = ()
    """`all_reduce (distributed_c10d.py)`, innermost first; empty if the process did not answer."""
    state: str = ""
    """The kernel's letter for the process: R, S, D, T, Z; "" if it has ended."""

    def __str__(self) -> str:
        silent = f"no stack, {_STATES.get(self.state, 'it does not answer')}"
        return f"in {' < '.join(self.frames[:_SHOWN])}" if self.frames else silent


def role_of(name: str) -> str:
    """Return the group of processes with the same work: `policy` of policy-3."""
    return name.rpartition("-")[0] or name


def read_beats(folder: Path, now: float) -> list[Beat]:
    """Return the heartbeats of the node at its time.monotonic() `now`, also of processes that have ended."""
    beats = []
    for path in sorted(folder.glob("*.json")):
        # A file may be incomplete while it is written for the first time.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            row: dict[str, Any] = json.loads(path.read_text(encoding="ascii", errors="replace"))
            beats.append(Beat(age_s=round(max(0.0, now - row.pop("last")), 3), **row))
    return beats


def deadline_of(num_calls: int, longest_s: float, least_s: float, most_s: float) -> float:
    """Return the seconds that may pass between two heartbeats.

    Args:
        least_s: job.heartbeat_timeout_s; it wins where it exceeds `most_s`.
        most_s: trainer.step_timeout_s.
    """
    return max(least_s, most_s if num_calls < MIN_CALLS else min(FACTOR * longest_s, most_s))


def find_late(beats: Iterable[Beat], node: str, least_s: float, most_s: float) -> list[Late]:
    """Return the late processes of a node."""
    late = []
    for beat in beats:
        deadline = deadline_of(beat.num_calls, beat.longest_s, least_s, most_s)
        is_monitored = beat.phase in _MONITORED_OF_DRIVER if beat.name == "driver" else beat.phase not in _UNMONITORED
        if is_monitored and beat.age_s > deadline:
            late.append(Late(beat.name, node, beat.phase, round(beat.age_s, 1), round(deadline, 1)))
    return late


def find_stragglers(beats: Sequence[Beat]) -> dict[str, float]:
    """Return slow ranks with their speed relative to their peers, by the best of the newest five steps."""
    slow: dict[str, float] = {}
    best = {beat.name: min(beat.speeds) for beat in beats if len(beat.speeds) == NUM_SPEEDS}
    for role in dict.fromkeys(map(role_of, best)):
        peers = {name: seconds for name, seconds in best.items() if role_of(name) == role}
        usual = statistics.median_low(peers.values())
        slow |= {name: round(usual / own, 3) for name, own in peers.items() if usual / own < SLOW}
    return slow


def parse_stack(text: str) -> list[str]:
    """Return the frames of the main thread, which faulthandler writes last, innermost first."""
    # Without line numbers: ranks that wait in a loop are in different lines of it.
    frames = _FRAME.findall(_THREAD.split(text)[-1])
    return [f"{function} ({file.rpartition('/')[2]})" for file, _, function in frames]


def compare_stacks(stacks: Sequence[Stack]) -> tuple[list[Stack], str]:
    """Return the suspects, and a description of all stacks: the suspects first, then groups with equal stacks.

    The suspects are processes without an answer; else those in smaller groups; else, of equal groups, those that do not
    wait for other ranks.

    >>> waits = Stack("rank-0", "n1", ["all_reduce (c10d.py)"], "S")
    >>> compare_stacks([waits, Stack("rank-1", "n2", ["read (io.py)"], "R")])[1]
    'suspect: rank-1 on n2, in read (io.py); rank-0 on n1: in all_reduce (c10d.py)'
    """
    groups: dict[str, list[Stack]] = {}
    for stack in stacks:
        groups.setdefault("\n".join(stack.frames) or str(stack), []).append(stack)
    largest = max(map(len, groups.values()), default=0)
    suspects = [stack for stack in stacks if not stack.frames]
    suspects = suspects or [stack for group in groups.values() if len(group) < largest for stack in group]
    if not suspects and len(groups) > 1:
        busy = [stack for stack in stacks if not any(map(_WAITING.search, stack.frames[:_SHOWN]))]
        suspects = busy if len(busy) < len(stacks) else []
    parts = [f"suspect: {stack.name} on {stack.node}, {stack}" for stack in suspects]
    for group in sorted(groups.values(), key=len, reverse=True):
        if others := [stack for stack in group if stack not in suspects]:
            names = ", ".join(f"{stack.name} on {stack.node}" for stack in others[:_SHOWN])
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            parts.append(f"{names}{more}: {others[0]}")
    return suspects, "; ".join(
        parts if suspects else [*parts, "no rank differs from the others: check the network between them"]
    )
