"""A trainer without a model, for tests of everything around a trainer.

    python trainer.py --run-dir <run> --attempt <n> --num-steps 30 --step-s 0.2 --save-every 5

It replaces slurm_rl.trainers.grpo.main: a Ray driver with one actor per node and a loop in which the values of a step
depend on all earlier steps. Cluster, StopFlag, CheckpointStore and MetricsLogger are the real ones; there is no torch
and no vLLM: a step is arithmetic and a sleep. If the plan places reward services, each step sends one request.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_rl.config.job import LoggingConfig
from slurm_rl.errors import StopRequested
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.node.stop import StopFlag, run_to_outcome
from slurm_rl.plan.job import ActorPlan, JobPlan
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json
from slurm_rl.run_dir.step_log import SAVE
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.workers.ray_driver import Actor, Cluster

_STEP_TIMEOUT_S = 120.0


class Counter:
    """The part of a step that one node computes."""

    def add(self, step: int, value: float, seconds: float) -> float:
        time.sleep(seconds)
        return (value * 1.000001 + 1.0 / (step + 3)) % 1.0


class Loop:
    """Values, metrics and checkpoints of a run that resumes from the newest checkpoint.

    Args:
        metrics: None on ranks that write nothing.
    """

    def __init__(self, run: RunDir, args: argparse.Namespace, num_values: int, metrics: MetricsLogger | None) -> None:
        self.run_dir, self.args, self.metrics = run, args, metrics
        self.store = CheckpointStore(run.checkpoints)
        self.step, self.values, self.saved = 0, [0.5] * num_values, -1

    def restore(self) -> None:
        newest = self.store.latest()
        if newest is not None:
            self.step = self.saved = newest.step
            self.values = json.loads((newest.path / "values.json").read_text())
        if self.metrics:
            if newest is not None:
                append_event(self.run_dir, "trainer/resumed", step=self.step)
            self.metrics.rewind(self.step if newest else -1, self.step)
            self.metrics.steps.mark()

    def start(self) -> None:
        if self.metrics:
            append_event(self.run_dir, "trainer/started", attempt=self.args.attempt)
            self.metrics.steps.mark()

    def log(self) -> None:
        self.step += 1
        if self.metrics:
            self.metrics.log(self.step, "grpo", {f"value/{n}": value for n, value in enumerate(self.values)})

    @property
    def is_time_to_save(self) -> bool:
        return self.step % self.args.save_every == 0 or self.step == self.args.num_steps

    def save(self) -> None:
        if self.metrics and self.step != self.saved:
            began = time.monotonic()
            folder = self.store.begin(self.step)
            time.sleep(self.args.save_s)
            (folder / "values.json").write_text(json.dumps(self.values))
            self.store.commit(self.step, {})
            seconds = round(time.monotonic() - began, 3)
            append_event(self.run_dir, "checkpoint/saved", step=self.step, seconds=seconds, stall_s=seconds)
            self.metrics.steps.add(self.step, SAVE)
        self.saved = self.step


class LightTrainer(Loop):
    def __init__(
        self, run: RunDir, args: argparse.Namespace, cluster: Cluster, metrics: MetricsLogger, scorer: Scorer | None
    ) -> None:
        super().__init__(run, args, cluster.plan.num_nodes, metrics)
        self.cluster, self.metrics, self.scorer = cluster, metrics, scorer
        self.actors: list[Actor] = []

    def run(self) -> None:
        self.restore()
        self.actors = [
            self.cluster.place(ActorPlan("counter", rank, rank, (), None), Counter)
            for rank in range(self.cluster.plan.num_nodes)
        ]
        self.compute(0.0)
        self.start()
        try:
            while self.step < self.args.num_steps:
                values = self.compute(self.args.step_s)
                if self.scorer is not None:
                    [scored] = self.scorer.score([RewardItem(completion=str(self.step), answer=str(self.step))])
                    assert scored.value == 1.0, scored
                self.values = values
                self.log()
                if self.is_time_to_save:
                    self.save()
        except StopRequested:
            self.metrics.steps.mark()
            self.save()
            raise

    def compute(self, seconds: float) -> list[float]:
        calls = [
            (actor, actor.handle.add.remote(self.step, value, seconds))
            for actor, value in zip(self.actors, self.values, strict=True)
        ]
        return self.cluster.gather(calls, timeout_s=_STEP_TIMEOUT_S, what=f"step {self.step}")


def train(run: RunDir, args: argparse.Namespace) -> None:
    stop = StopFlag()
    stop.install()
    cluster = Cluster(JobPlan.from_json(read_json(run.plan)), stop)
    cluster.connect()
    append_event(run, "ray/cluster_ready", attempt=args.attempt)
    metrics = MetricsLogger(run, LoggingConfig(), "light", {}, run.attempt(args.attempt))
    try:
        with open_placed(run, args, cluster) as scorer:
            LightTrainer(run, args, cluster, metrics, scorer).run()
    finally:
        metrics.close()


@contextmanager
def open_placed(run: RunDir, args: argparse.Namespace, cluster: Cluster) -> Iterator[Scorer | None]:
    """Open the reward services that the plan places on separate nodes."""
    if all(actor.role != "reward" for actor in cluster.plan.actors):
        yield None
        return
    # Imported here, because hydra and httpx would delay every other bring-up by a second.
    import yaml

    from slurm_rl.config.parse import parse_config
    from slurm_rl.workers.reward_services import open_rewards

    config = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
    with open_rewards(cluster, config.reward, run, run.attempt(args.attempt)) as scorer:
        yield scorer


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--save-s", type=float, default=0.0)
    # Simulates the import of torch, during which a trainer has no signal handlers yet.
    parser.add_argument("--import-s", type=float, default=0.0)


def main() -> int:
    parser = attempt_parser("A trainer without a model.")
    add_settings(parser)
    args = parser.parse_args()
    run, attempt = open_attempt(args)
    time.sleep(args.import_s)
    return run_to_outcome(run, attempt, lambda run, _: train(run, args))


if __name__ == "__main__":
    sys.exit(main())
