"""Verdicts of health checks.

Fields such as N/A, "Unknown Error" or Skip, and output that is cut short or malformed, are `unknown`: never ok or bad.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from slurm_rl.plan.accelerator import AcceleratorKind

State = Literal["ok", "warn", "bad", "unknown"]
_WORST_FIRST: Final[tuple[State, ...]] = ("bad", "warn", "unknown", "ok")
TIMED_OUT = 124
"""Exit status of `timeout`."""


@dataclass(frozen=True)
class Verdict:
    """Result of one check on one node."""

    state: State
    seen: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Values to compare with those of the other nodes."""


@dataclass(frozen=True)
class NodeSpec:
    """Requirements of the run on each node, and the time of the check."""

    accelerator: AcceleratorKind
    gpus: int
    num_nodes: int
    canary: str
    """Content of the canary file in the run directory."""
    needs_python: bool
    """Whether the host's Python starts the node agent."""
    checked_at: tuple[float, float]
    """Unix times of the request and of the last answer, by the controller's clock."""
    gpu_mem_gb: float | None = None
    """Minimum memory of one GPU in GB, where the preset names it."""
    shm_bytes: float = 0
    """Minimum free space in /dev/shm."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst state, the texts of all verdicts in that state, and the facts of all verdicts.

    >>> worst([Verdict("ok", "2 GPUs"), Verdict("warn", "GPU 1 is hot"), Verdict("unknown", "no ECC")])
    Verdict(state='warn', seen='GPU 1 is hot', facts={})
    """
    verdicts = list(verdicts)
    states = {verdict.state for verdict in verdicts}
    state: State = next((state for state in _WORST_FIRST if state in states), "unknown")
    seen = dict.fromkeys(verdict.seen for verdict in verdicts if verdict.state == state and verdict.seen)
    return Verdict(state, "; ".join(seen), {key: text for one in verdicts for key, text in one.facts.items()})


def tool_failure(rc: int) -> Verdict | None:
    """Return `unknown` for a tool that is missing or was killed; None for one that ran to its end."""
    if rc in (126, 127):
        return Verdict("unknown", "the tool is not installed")
    return Verdict("unknown", f"the tool was killed by a signal ({rc})") if rc > 128 or rc < 0 else None
