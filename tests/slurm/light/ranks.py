"""The light trainer under torchrun: every rank counts, sums go through torch.distributed (gloo), rank 0 writes.

    torchrun ... ranks.py <run> --attempt <n> --num-steps 30 --step-s 0.2 --save-every 5

Its metrics rows are those of trainer.py with one value per rank, so `expected_metrics` fits both.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from trainer import Counter

from slurm_rl.config.job import WandbConfig
from slurm_rl.errors import StopRequested
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.attempt import open_attempt
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.run_dir.run_dir import RunDir, append_event
from slurm_rl.run_dir.step_log import SAVE
from slurm_rl.trainers.common.metrics_log import MetricsLogger


class Ranks:
    """Training loop of one rank."""

    def __init__(self, run: RunDir, args: argparse.Namespace) -> None:
        self.run_dir, self.args = run, args
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.store = CheckpointStore(run.checkpoints)
        self.step, self.values, self.saved = 0, [0.5] * self.size, -1
        self.metrics = (
            MetricsLogger(run, WandbConfig(), "light", {}, run.attempt(args.attempt)) if self.rank == 0 else None
        )

    def run(self, stop: StopFlag) -> None:
        self.restore()
        if self.metrics:
            append_event(self.run_dir, "trainer/started", attempt=self.args.attempt)
            self.metrics.steps.mark()
        while self.step < self.args.num_steps:
            self.compute()
            stops = torch.tensor([stop.signal is not None], dtype=torch.int)
            dist.all_reduce(stops)
            if stops.item() or self.step % self.args.save_every == 0 or self.step == self.args.num_steps:
                self.save()
            if stops.item():
                raise StopRequested("asked to save and stop")

    def compute(self) -> None:
        value = Counter().add(self.step, self.values[self.rank], self.args.step_s)
        gathered = [torch.zeros(1, dtype=torch.float64) for _ in range(self.size)]
        dist.all_gather(gathered, torch.tensor([value], dtype=torch.float64))
        self.values = [float(one) for one in gathered]
        self.step += 1
        if self.metrics:
            self.metrics.log(self.step, "grpo", {f"value/{n}": one for n, one in enumerate(self.values)})

    def restore(self) -> None:
        newest = self.store.latest()
        if newest is not None:
            self.step = self.saved = newest.step
            self.values = json.loads((newest.path / "values.json").read_text())
        if self.metrics:
            self.metrics.rewind(self.step if newest else -1, self.step)
            if newest:
                append_event(self.run_dir, "trainer/resumed", step=self.step)

    def save(self) -> None:
        if self.rank == 0 and self.step != self.saved:
            folder = self.store.begin(self.step)
            (folder / "values.json").write_text(json.dumps(self.values))
            self.store.commit(self.step, {})
            append_event(self.run_dir, "checkpoint/saved", step=self.step)
            if self.metrics:
                self.metrics.steps.add(self.step, SAVE)
        self.saved = self.step


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--num-steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--import-s", type=float, default=0.0)
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
