"""Stacks of processes that hang: parsed, grouped, and who stands where no other does. Pure.

ByteRobust's rule (https://arxiv.org/abs/2509.16293): of ranks that do the same, most wait in one place for those that
are somewhere else; the fewer are the suspects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_STATES = {"T": "it is stopped (SIGSTOP)", "t": "a debugger holds it", "D": "it hangs in the kernel", "Z": "it is dead"}
# Of torch, NCCL's wrappers and Ray: whoever is in one of them waits for others.
_WAITING = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|gather|scatter|all_to_all|wait|synchronize"
)
_SHOWN = 3


@dataclass(frozen=True)
class Stack:
    """What was found of one process."""

    name: str
    node: str
    frames: tuple[str, ...] = ()
    """Of its main thread, innermost first: `all_reduce (distributed_c10d.py)`; none where it did not answer."""
    state: str = ""
    """Of the process by the kernel's letter: R, S, D, T, Z; "" of one that is gone."""

    @property
    def waits(self) -> bool:
        """Whether it is in a call that ends when others do something."""
        return any(_WAITING.search(frame) for frame in self.frames[:_SHOWN])


def parse_stack(text: str) -> tuple[str, ...]:
    """Frames of the main thread, which faulthandler writes last, as `function (file)`, innermost first.

    >>> parse_stack('Current thread 0x00007f (most recent call first):\\n  File "/a/b.py", line 6 in main\\n')
    ('main (b.py)',)
    """
    threads = _THREAD.split(text)[1:]
    found = _FRAME.findall(threads[-1]) if threads else []
    # Without the line: ranks that wait in a loop are at one place of it or another.
    return tuple(f"{function} ({file.rpartition('/')[2]})" for file, _, function in found)


def group_stacks(stacks: Iterable[Stack]) -> list[list[Stack]]:
    """Those with the same frames together, the largest group first."""
    groups: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        groups.setdefault(stack.frames or ("", stack.state), []).append(stack)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].name))


def name_suspects(groups: Sequence[Sequence[Stack]]) -> list[Stack]:
    """Who does not answer; else who is in the smaller groups; of groups of one size, who does not wait.

    >>> waits = Stack("rank-0", "n1", ("all_reduce (c10d.py)",), "S")
    >>> works = Stack("rank-1", "n2", ("read (io.py)",), "R")
    >>> [one.name for one in name_suspects(group_stacks([waits, works]))]
    ['rank-1']

    Returns:
        none where all stand at one place, or nothing tells them apart.
    """
    silent = [stack for group in groups for stack in group if not stack.frames]
    if silent:
        return silent
    largest = max(map(len, groups), default=0)
    minority = [stack for group in groups if len(group) < largest for stack in group]
    if minority or len(groups) < 2:
        return minority
    busy = [stack for group in groups for stack in group if not stack.waits]
    return busy if len(busy) < sum(map(len, groups)) else []


def describe_groups(groups: Sequence[Sequence[Stack]], suspects: Sequence[Stack]) -> str:
    """Suspects first, then where the others are."""
    parts = [f"suspect: {_who([one])}, {_where(one)}" for one in suspects]
    others = [[stack for stack in group if stack not in suspects] for group in groups]
    parts += [f"{_who(group)}: {_where(group[0])}" for group in others if group]
    if not suspects:
        parts.append("no one stands apart from the others, so look at the network between them")
    return "; ".join(parts)


def _who(group: Sequence[Stack]) -> str:
    names = [f"{stack.name} on {stack.node}" for stack in group[:_SHOWN]]
    return ", ".join(names) + (f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else "")


def _where(stack: Stack) -> str:
    if not stack.frames:
        return f"no stack, {_STATES.get(stack.state, 'it is gone' if not stack.state else 'it does not answer')}"
    return "in " + " < ".join(stack.frames[:_SHOWN])
