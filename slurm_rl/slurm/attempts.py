"""What follows the end of an attempt: a table, without machinery.

| the trainer said | asked to stop by       | then                                             |
|------------------|------------------------|--------------------------------------------------|
| finished         |                        | finish                                           |
| checkpointed     | the user, scancel      | interrupted: final, `resume` goes on             |
| checkpointed     | time limit, preemption | requeue                                          |
| failed, input    |                        | fail: trying again would fail again              |
| failed, died     |                        | retry while failures <= max_failures, and not    |
|                  |                        | after two attempts that saved nothing new        |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Decision = Literal["finish", "interrupt", "requeue", "retry", "fail"]

EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt ended."""

    outcome: Literal["finished", "checkpointed", "failed"]
    cause: str = ""
    exit_code: int = 0
    saved_step: int = -1
    """Newest step in the checkpoints when it ended; -1 for none."""
    job_key: str = ""
    """The job it belongs to; a `resume` is another job and starts counting anew."""


def decide(ends: Sequence[AttemptEnd], *, stopped_by: Literal["", "user", "scheduler"], max_failures: int) -> Decision:
    """What to do after the last of `ends`, which are all attempts of this job, oldest first."""
    last = ends[-1]
    if last.outcome == "finished":
        return "finish"
    if stopped_by == "user":
        return "interrupt"
    if last.outcome == "checkpointed":
        return "requeue" if stopped_by == "scheduler" and not stands_still(ends) else "interrupt"
    if last.exit_code == EXIT_BAD_INPUT or stands_still(ends):
        return "fail"
    num_failures = sum(end.outcome == "failed" for end in ends)
    return "retry" if num_failures <= max_failures else "fail"


def stands_still(ends: Sequence[AttemptEnd]) -> bool:
    """Two attempts in a row reached no checkpoint newer than the one before them."""
    if len(ends) < 2:
        return False
    before = ends[-3].saved_step if len(ends) > 2 else -1
    return ends[-1].saved_step <= before and ends[-2].saved_step <= before
