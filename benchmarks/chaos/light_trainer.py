"""A trainer without a model over the nodes of light_node.py; everything around its steps is real.

    python light_trainer.py --run-dir <run> --attempt <n> --step-s 0.25 --save-every 8

Checkpoints, metrics, step times, stop flag and outcome are the project's own. It trains until <run>/finish exists.
`writers.jsonl` records every write with its writer, including those that a rewind removed.
"""

import argparse
import json
import os
import socket
import sys
import time

from benchmarks.chaos.light_node import receive, request, send
from slurm_rl.config.job import LoggingConfig
from slurm_rl.errors import BringUpError, StopRequested, TrainingError
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.run_dir.step_log import SAVE
from slurm_rl.trainers.common.metrics_log import MetricsLogger

STEP_TIMEOUT_S = 15.0
_KEEP = 3


class LightTrainer:
    """Training loop that resumes from the newest checkpoint."""

    def __init__(self, run: RunDir, attempt: AttemptDir, args: argparse.Namespace) -> None:
        self.run_dir, self.attempt, self.args = run, attempt, args
        self.num_nodes = JobPlan.from_json(read_json(run.plan)).num_nodes
        self.timeout_s = JobPlan.from_json(read_json(run.plan)).limits.start_timeout_s
        self.store = CheckpointStore(run.checkpoints, run.require_ours)
        self.step, self.values, self.saved = 0, [0.5] * self.num_nodes, -1
        self.nodes: list[socket.socket] = []

    def run(self, stop: StopFlag) -> None:
        self.nodes = self.connect(stop)
        append_event(self.run_dir, "ray/cluster_ready", attempt=self.attempt.number)
        self.metrics = MetricsLogger(self.run_dir, LoggingConfig(), "light", {}, self.attempt)
        self.restore()
        append_event(self.run_dir, "trainer/started", attempt=self.attempt.number)
        while not (self.run_dir.path / "finish").exists():
            self.take_step()
            if stop.is_set() or self.step % self.args.save_every == 0:
                self.save()
            stop.check()
        self.save()
        self.metrics.close()

    def connect(self, stop: StopFlag) -> list[socket.socket]:
        """Return a connection to each node, by rank, after all have joined."""
        host, _, port = os.environ["RAY_ADDRESS"].partition(":")
        deadline = time.monotonic() + self.timeout_s
        with socket.create_connection((host, int(port)), STEP_TIMEOUT_S) as head:
            while len(found := request(head, {})["addresses"]) < self.num_nodes:
                if stop.is_set():
                    raise StopRequested("asked to leave before all nodes had joined")
                if time.monotonic() > deadline:
                    raise BringUpError("all nodes must join", seen=f"{sorted(found)} of {self.num_nodes}")
                time.sleep(0.1)
        return [socket.create_connection(tuple(found[str(n)]), STEP_TIMEOUT_S) for n in range(self.num_nodes)]

    def take_step(self) -> None:
        for rank, (node, value) in enumerate(zip(self.nodes, self.values, strict=True)):
            self.talk(rank, lambda n=node, v=value: send(n, {**self.question, "value": v}))
        self.values = [self.talk(rank, lambda n=node: receive(n))["value"] for rank, node in enumerate(self.nodes)]
        self.step += 1
        row = {f"value/{rank}": value for rank, value in enumerate(self.values)}
        self.metrics.log(self.step, "grpo", {**row, "time/epoch": float(self.run_dir.epoch or 0)})
        self.witness("row")

    @property
    def question(self) -> dict[str, float]:
        return {"step": self.step, "seconds": self.args.step_s}

    def talk(self, rank: int, how):  # type: ignore[no-untyped-def]
        try:
            return how()
        except OSError as error:
            raise TrainingError("every rank must answer", seen=f"rank {rank}: {error}") from error

    def restore(self) -> None:
        newest = self.store.latest()
        if newest is not None:
            self.step = self.saved = newest.step
            self.values = json.loads((newest.path / "values.json").read_text())
        self.metrics.rewind(self.step if newest else -1, self.step)
        if newest is not None:
            append_event(self.run_dir, "trainer/resumed", step=self.step)
        self.metrics.steps.mark()

    def save(self) -> None:
        if self.step == self.saved:
            return
        self.metrics.steps.mark()
        folder = self.store.begin(self.step)
        (folder / "values.json").write_text(json.dumps(self.values))
        self.store.commit(self.step, {"epoch": self.run_dir.epoch})
        self.saved = self.step
        self.store.prune(_KEEP)
        append_event(self.run_dir, "checkpoint/saved", step=self.step)
        self.metrics.steps.add(self.step, SAVE)
        self.witness("checkpoint")

    def witness(self, what: str) -> None:
        row = {"what": what, "step": self.step, "epoch": self.run_dir.epoch, "attempt": self.attempt.number}
        append_row(self.run_dir.path / "writers.jsonl", {**row, "host": socket.gethostname()})


def main() -> int:
    parser = attempt_parser("A trainer without a model.")
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    args = parser.parse_args()
    run, attempt = open_attempt(args)
    stop = StopFlag()
    stop.install()
    return run_to_outcome(run, attempt, lambda *_: LightTrainer(run, attempt, args).run(stop))


if __name__ == "__main__":
    sys.exit(main())
