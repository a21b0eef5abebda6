"""The GRPO driver: `python -m slurm_rl.rl.main --run-dir <run> --attempt <n>`, on the head node.

It writes outcome.json, whatever happens (see train/outcome.py).
"""

from __future__ import annotations

import argparse
import sys

from slurm_rl.node.attempt import open_attempt
from slurm_rl.run_dir import AttemptDir, RunDir
from slurm_rl.train.outcome import run_to_outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="The GRPO trainer of one attempt.")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    args = parser.parse_args()
    run, attempt = open_attempt(args.run_dir, args.attempt)
    return run_to_outcome(run, attempt, _train)


def _train(run: RunDir, attempt: AttemptDir) -> None:
    from slurm_rl.rl.session import run_training

    run_training(run, attempt)


if __name__ == "__main__":
    sys.exit(main())
