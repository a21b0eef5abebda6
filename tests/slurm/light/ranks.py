"""The light trainer under torchrun: every rank counts, sums go through torch.distributed (gloo), rank 0 writes.

    torchrun ... ranks.py <run> --attempt <n> --num-steps 30 --step-s 0.2 --save-every 5

Its metrics rows are those of trainer.py with one value per rank, so `expected_metrics` fits both.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from trainer import Counter, Loop, add_settings

from slurm_rl.config.job import LoggingConfig
from slurm_rl.errors import StopRequested
from slurm_rl.node.attempt import open_attempt
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger


class Ranks(Loop):
    """Training loop of one rank; rank 0 writes."""

    def __init__(self, run: RunDir, args: argparse.Namespace) -> None:
        metrics = None
        if dist.get_rank() == 0:
            metrics = MetricsLogger(run, LoggingConfig(), "light", {}, run.attempt(args.attempt))
        super().__init__(run, args, dist.get_world_size(), metrics)

    def run(self, stop: StopFlag) -> None:
        self.restore()
        self.start()
        while self.step < self.args.num_steps:
            self.compute()
            stops = torch.tensor([stop.signal is not None], dtype=torch.int)
            dist.all_reduce(stops)
            if stops.item() or self.is_time_to_save:
                self.save()
            if stops.item():
                raise StopRequested("asked to save and stop")

    def compute(self) -> None:
        value = Counter().add(self.step, self.values[dist.get_rank()], self.args.step_s)
        gathered = [torch.zeros(1, dtype=torch.float64) for _ in self.values]
        dist.all_gather(gathered, torch.tensor([value], dtype=torch.float64))
        self.values = [float(one) for one in gathered]
        self.log()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--attempt", required=True, type=int)
    add_settings(parser)
    args = parser.parse_args()
    run, attempt = open_attempt(args)
    time.sleep(args.import_s)
    stop = StopFlag()
    stop.install()
    dist.init_process_group("gloo")
    print(f"rank {os.environ['RANK']} of {dist.get_world_size()}, {torch.get_num_threads()} threads", flush=True)
    return run_to_outcome(run, attempt, lambda _, __: Ranks(run, args).run(stop), writes=dist.get_rank() == 0)


if __name__ == "__main__":
    sys.exit(main())
