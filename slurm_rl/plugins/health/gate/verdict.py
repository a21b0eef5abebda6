"""What a check says of a node, and what it is held against.

    >>> Verdict("bad", "GPU 3: a row could not be remapped")
    Verdict(state='bad', seen='GPU 3: a row could not be remapped', facts={})

Fields such as N/A, Unknown Error, "deprecated", Skip, and output that is cut short or of another form are `unknown`:
never ok, never bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from slurm_rl.plan.accelerator import AcceleratorKind

State = Literal["ok", "warn", "bad", "unknown"]
_WORST_FIRST: Final[tuple[State, ...]] = ("bad", "warn", "unknown", "ok")


@dataclass(frozen=True)
class Verdict:
    """Of one check about one node."""

    state: State
    seen: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the other nodes are to have as well."""


@dataclass(frozen=True)
class Wanted:
    """What the run needs of each node, and what the controller knows of the moment."""

    accelerator: AcceleratorKind
    gpus: int
    num_nodes: int
    word: str
    """What the canary holds."""
    needs_python: bool
    """The host's Python starts something on the nodes."""
    asked: tuple[float, float]
    """When the question was put and the last answer came, in seconds since 1970, by the controller's clock."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst state, with what all of that state say, and the facts of all.

    >>> worst([Verdict("ok", "2 GPUs"), Verdict("warn", "GPU 1 is hot"), Verdict("unknown", "no ECC")])
    Verdict(state='warn', seen='GPU 1 is hot', facts={})
    """
    verdicts = list(verdicts)
    told = {verdict.state for verdict in verdicts}
    state: State = next((one for one in _WORST_FIRST if one in told), "unknown")
    seen = dict.fromkeys(verdict.seen for verdict in verdicts if verdict.state == state and verdict.seen)
    return Verdict(state, "; ".join(seen), {key: text for one in verdicts for key, text in one.facts.items()})


def find_rc(rc: int) -> Verdict | None:
    """The verdict of a program that did not run to its end; None when it did, whatever its status."""
    if rc in (126, 127):
        return Verdict("unknown", "the program is not on the host")
    return Verdict("unknown", f"the program was ended by a signal ({rc})") if rc > 128 or rc < 0 else None
