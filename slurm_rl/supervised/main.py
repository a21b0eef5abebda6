"""One rank of a supervised run: `python -m slurm_rl.supervised.main <run> [--attempt <n>]`.

    torchrun --nproc-per-node 8 -m slurm_rl.supervised.main <run>     8 ranks
    python -m slurm_rl.supervised.main <run>                          one

Rank 0 writes outcome.json, whatever happens (see train/ending.py), and all else that a run directory holds.
"""

from __future__ import annotations

import argparse
import sys

from slurm_rl.errors import ConfigError
from slurm_rl.node.attempt import open_attempt
from slurm_rl.run_dir import AttemptDir, RunDir
from slurm_rl.supervised.place import find_place
from slurm_rl.train.ending import run_to_outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="One rank of the supervised trainer.")
    parser.add_argument("run_dir")
    parser.add_argument("--attempt", type=int, help="the newest by default")
    args = parser.parse_args()
    try:
        place = find_place()
    except ConfigError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code

    def train(run: RunDir, attempt: AttemptDir) -> None:
        from slurm_rl.supervised.session import run_training

        run_training(run, attempt, place)

    number = args.attempt if args.attempt is not None else max(RunDir(args.run_dir).attempt_numbers(), default=1)
    run, attempt = open_attempt(args.run_dir, number)
    return run_to_outcome(run, attempt, train, writes=place.rank == 0)


if __name__ == "__main__":
    sys.exit(main())
