"""The GRPO driver: `python -m slurm_rl.train.grpo.main --run-dir <run> --attempt <n>`, on the head node.

It writes outcome.json, whatever happens: `finished`, `checkpointed` (asked to stop; all is saved) or
`failed` with the cause. The exit status says the same: 0, 75 (try again later), 1, or 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Any

from slurm_rl.errors import SlurmRLError, StopRequested
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, write_json

EXIT_CHECKPOINTED = 75


def main() -> int:
    parser = argparse.ArgumentParser(description="The GRPO trainer of one attempt.")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    args = parser.parse_args()
    run = RunDir(args.run_dir)
    attempt = run.attempt(args.attempt)
    try:
        from slurm_rl.train.grpo.session import run_training

        run_training(run, attempt)
    except StopRequested as stop:
        return _end(attempt, "checkpointed", EXIT_CHECKPOINTED, cause=str(stop))
    except SlurmRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _end(attempt, "failed", error.exit_code, cause=str(error), error=type(error).__name__)
    except Exception as error:
        # Not ours, so the traceback is what helps; the log keeps it and the cause names it.
        traceback.print_exc()
        append_event(run, "trainer/crashed", cause=repr(error))
        return _end(attempt, "failed", 1, cause=repr(error), error=type(error).__name__)
    return _end(attempt, "finished", 0)


def _end(attempt: AttemptDir, outcome: str, status: int, **fields: Any) -> int:
    write_json(attempt.outcome, {"outcome": outcome, "exit_code": status, **fields})
    return status


if __name__ == "__main__":
    sys.exit(main())
