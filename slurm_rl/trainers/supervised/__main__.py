"""One rank of a supervised run, started by a node agent's torchrun.

    python -m slurm_rl.trainers.supervised <run> --attempt <n>

Rank 0 writes the run directory, and always outcome.json (see node/stop.py).
"""

import argparse
import sys

import yaml

from slurm_rl.config.parse import parse_config
from slurm_rl.errors import SlurmRLError
from slurm_rl.node.attempt import open_attempt
from slurm_rl.node.stop import run_to_outcome
from slurm_rl.trainers.supervised.rank_info import read_rank_info


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m slurm_rl.trainers.supervised", description="One rank of the supervised trainer."
    )
    parser.add_argument("run_dir")
    parser.add_argument("--attempt", type=int, required=True)
    args = parser.parse_args()
    try:
        rank_info = read_rank_info()
        run, attempt = open_attempt(args)
        run.require()
    except SlurmRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code

    def train(*_: object) -> None:
        from slurm_rl.trainers.supervised.run_supervised import run_training

        config = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
        run_training(run, config, rank_info, attempt)

    return run_to_outcome(run, attempt, train, writes=rank_info.rank == 0)


if __name__ == "__main__":
    sys.exit(main())
