"""Decide the next action after the end of an attempt. Pure.

| the attempt                     | stop requested by      | then                                          |
|---------------------------------|------------------------|-----------------------------------------------|
| finished                        |                        | finish                                        |
| anything else                   | the user, scancel      | interrupted: final, `resume` continues it     |
| out of memory, the first time   |                        | as `failed` below, with smaller micro-batches |
| failed on input                 |                        | fail: a retry would fail again                |
| the second without new progress |                        | fail: so would the third                      |
| failed, more than max_failures  |                        | fail                                          |
| anything else                   | time limit, preemption | requeue                                       |
| checkpointed                    | unknown                | interrupted                                   |
| lost (its node, its controller) |                        | retry on spare nodes, requeue without enough  |
| failed                          |                        | retry                                         |

If no requeue is possible, a job with a failed last attempt has failed, and any other is interrupted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Decision = Literal["finish", "interrupt", "requeue", "retry", "fail"]
StoppedBy = Literal["", "user", "scheduler"]

_MAX_UNBEGUN = 6
EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
EXIT_CONTINUES = 75
"""Exit code of a job whose run continues in another start or job, for jobs that wait for it."""
EXIT_NOT_OURS = 76
"""Exit code of a controller that lost the run to another one; it stopped writing."""


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt ended."""

    outcome: Literal["finished", "checkpointed", "failed", "lost"]
    """`lost`: ended from outside before it could save, which is no failure of the run."""
    cause: str = ""
    exit_code: int = 0
    saved_step: int = -1
    """Newest step in the checkpoints when it ended; -1 for none."""
    job_key: str = ""
    """The job it belongs to; a `resume` is another job and starts counting anew."""
    remedy: str = ""
    """Changed settings of the next attempt; such an end does not count as a failure."""
    has_begun: bool = True
    """False when bad nodes were found before anything was started on them."""
    at_limit: bool = False
    """True if an external trainer stopped for the time limit before the scheduler's signal."""


def decide(
    ends: Sequence[AttemptEnd],
    *,
    stopped_by: StoppedBy,
    max_failures: int,
    has_nodes: bool = True,
) -> Decision:
    """Decide after the last of `ends`, all attempts of this job, oldest first."""
    last = ends[-1]
    if last.outcome == "finished":
        return "finish"
    if stopped_by == "user":
        return "interrupt"
    if last.remedy:  # given once a run
        return "retry" if has_nodes and stopped_by == "" else "requeue"
    num_failures = sum(end.outcome == "failed" and not end.remedy for end in ends)
    is_final = last.exit_code == EXIT_BAD_INPUT or num_failures > max_failures
    if (last.outcome == "failed" and is_final) or stands_still(ends):
        return "fail"
    if stopped_by == "scheduler":
        return "requeue"
    if last.outcome == "checkpointed":
        return "interrupt"
    return "retry" if has_nodes else "requeue"


def stands_still(ends: Sequence[AttemptEnd]) -> bool:
    """Return True if two attempts in a row reached no newer checkpoint, or many never began."""
    num_unbegun = next((place for place, end in enumerate(reversed(ends)) if end.has_begun), len(ends))
    if num_unbegun:
        return num_unbegun >= _MAX_UNBEGUN
    ends = [end for end in ends if end.has_begun]
    if len(ends) < 2:
        return False
    before = ends[-3].saved_step if len(ends) > 2 else -1
    return ends[-1].saved_step <= before and ends[-2].saved_step <= before


def explain_failure(ends: Sequence[AttemptEnd]) -> str:
    """Return the cause of the last end, and why there is no further attempt."""
    last = ends[-1]
    if last.exit_code == EXIT_BAD_INPUT or not last.has_begun or not stands_still(ends):
        return last.cause
    saved = f"step {last.saved_step} is the newest" if last.saved_step >= 0 else "there is none"
    return f"two attempts in a row reached no new checkpoint ({saved}); the last one: {last.cause}"
