"""The GRPO driver: `python -m slurm_rl.trainers.grpo.main --run-dir <run> --attempt <n>`, on the head node.

It writes outcome.json, whatever happens (see node/stop.py).
"""

import sys

from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir


def main() -> int:
    run, attempt = open_attempt(attempt_parser("The GRPO trainer of one attempt.").parse_args())
    return run_to_outcome(run, attempt, _train)


def _train(run: RunDir, attempt: AttemptDir) -> None:
    stop = StopFlag(at_once=True)
    stop.install()  # before the imports, which take long
    try:
        from slurm_rl.trainers.grpo.run_grpo import run_training

        run_training(run, attempt, stop)
    finally:
        stop.at_once = False


if __name__ == "__main__":
    sys.exit(main())
