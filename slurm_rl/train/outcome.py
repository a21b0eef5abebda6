"""How a trainer ends, whatever happens: outcome.json, and an exit status that says the same.

`finished` 0, `checkpointed` 75 (asked to stop; all is saved: try again later), `failed` 1, or 2 for bad input.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from slurm_rl.disk import explain_refusal, say
from slurm_rl.errors import SlurmRLError, StopRequested
from slurm_rl.node.driver import EXIT_CHECKPOINTED
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, write_last


def run_to_outcome(
    run: RunDir, attempt: AttemptDir, train: Callable[[RunDir, AttemptDir], None], *, writes: bool = True
) -> int:
    """Run `train` and return the exit status.

    Args:
        writes: whether this process is the one of the trainer's that writes outcome.json and events.
    """

    def end(outcome: str, status: int, **fields: Any) -> int:
        if writes:
            write_last(run, attempt.outcome, {"outcome": outcome, "exit_code": status, **fields})
        return status

    try:
        train(run, attempt)
    except StopRequested as stop:
        return end("checkpointed", EXIT_CHECKPOINTED, cause=str(stop))
    except SlurmRLError as error:
        say(f"{type(error).__name__}: {error}")
        return end("failed", error.exit_code, cause=str(error), error=type(error).__name__)
    except Exception as error:
        if cause := explain_refusal(error, run.path):
            say(cause)
            return end("failed", 1, cause=f"{cause}, then resume", error=type(error).__name__)
        # Not ours, so the traceback is what helps; the log keeps it and the cause names it.
        traceback.print_exc()
        if writes:
            append_event(run, "trainer/crashed", cause=repr(error))
        return end("failed", 1, cause=repr(error), error=type(error).__name__)
    return end("finished", 0)
