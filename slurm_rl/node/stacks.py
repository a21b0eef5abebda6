"""Stacks of processes during a hang: parse them, group equal ones, and name the suspects.

The rule of ByteRobust (https://arxiv.org/abs/2509.16293): of ranks with the same work, most wait in one place for those
that are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_STATES = {
    "": "it has ended",
    "T": "it is stopped (SIGSTOP)",
    "t": "a debugger holds it",
    "D": "it hangs in the kernel",
    "Z": "it is dead",
}
_WAITING = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|gather|scatter|all_to_all|wait|synchron"
)
_SHOWN = 3


@dataclass(frozen=True)
class Stack:
    """Main thread of one process."""

    name: str
    node: str
    frames: tuple[str, ...] = ()
    """`all_reduce (distributed_c10d.py)`, innermost first; empty if the process did not answer."""
    state: str = ""
    """The kernel's letter for the process: R, S, D, T, Z; "" if it has ended."""

    @property
    def waits(self) -> bool:
        """Whether the process waits for other ranks."""
        return any(_WAITING.search(frame) for frame in self.frames[:_SHOWN])


def parse_stack(text: str) -> tuple[str, ...]:
    """Return the frames of the main thread, which faulthandler writes last, innermost first.

    >>> parse_stack('Current thread 0x00007f (most recent call first):\\n  File "/a/b.py", line 6 in main\\n')
    ('main (b.py)',)
    """
    threads = _THREAD.split(text)[1:]
    frames = _FRAME.findall(threads[-1]) if threads else []
    # Without line numbers: ranks that wait in a loop are in different lines of it.
    return tuple(f"{function} ({file.rpartition('/')[2]})" for file, _, function in frames)


def group_stacks(stacks: Iterable[Stack]) -> list[list[Stack]]:
    """Group equal stacks, the largest group first."""
    groups: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        groups.setdefault(stack.frames or ("", stack.state), []).append(stack)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].name))


def find_suspects(groups: Sequence[Sequence[Stack]]) -> list[Stack]:
    """Return processes without an answer; else those in smaller groups; else, of equal groups, those that do not wait.

    >>> waits = Stack("rank-0", "n1", ("all_reduce (c10d.py)",), "S")
    >>> works = Stack("rank-1", "n2", ("read (io.py)",), "R")
    >>> [stack.name for stack in find_suspects(group_stacks([waits, works]))]
    ['rank-1']
    """
    stacks = [stack for group in groups for stack in group]
    if silent := [stack for stack in stacks if not stack.frames]:
        return silent
    largest = max(map(len, groups), default=0)
    minority = [stack for group in groups if len(group) < largest for stack in group]
    if minority or len(groups) < 2:
        return minority
    busy = [stack for stack in stacks if not stack.waits]
    return busy if len(busy) < len(stacks) else []


def describe_groups(groups: Sequence[Sequence[Stack]], suspects: Sequence[Stack]) -> str:
    """Describe the suspects first, then the other groups."""
    parts = [f"suspect: {_names([stack])}, {_place(stack)}" for stack in suspects]
    others = [[stack for stack in group if stack not in suspects] for group in groups]
    parts += [f"{_names(group)}: {_place(group[0])}" for group in others if group]
    return "; ".join(parts if suspects else [*parts, "no rank differs from the others: check the network between them"])


def _names(group: Sequence[Stack]) -> str:
    names = [f"{stack.name} on {stack.node}" for stack in group[:_SHOWN]]
    return ", ".join(names) + (f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else "")


def _place(stack: Stack) -> str:
    if not stack.frames:
        return f"no stack, {_STATES.get(stack.state, 'it does not answer')}"
    return "in " + " < ".join(stack.frames[:_SHOWN])
