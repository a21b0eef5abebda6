"""Does one trainer keep many rollout engines busy? The loop's own sampler and pipeline, with engines that sleep.

    python -m benchmarks.many_engines --engines 64 --staleness 0 1 2

Engines are Ray actors on this machine that sleep as long as sampling would take (log-normal, mean 2 s) in place
of vLLM, and note how long; training and weight sync are sleeps too. Busy is the share of the run's time in which
an engine samples, from the first step's start to the last step's end, mean over engines.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.cluster import Actor, Cluster
from slurm_rl.train.grpo.pipeline import Batch, RolloutPipeline
from slurm_rl.train.grpo.sampling import PendingGroups, Sampler
from slurm_rl.train.grpo.types import Completion, SamplingSpec
from slurm_rl.train.stop import StopFlag

SPREAD = 0.3
"""Standard deviation of the logarithm of a batch's sampling time."""


class SleepingEngine:
    """A rollout engine's interface, without a model."""

    def __init__(self, mean_s: float) -> None:
        self.mean_s, self.busy_s = mean_s, 0.0

    def ready(self) -> bool:
        return True

    def generate(self, prompts: Sequence[Sequence[int]], spec: SamplingSpec) -> list[list[Completion]]:
        seconds = float(np.random.default_rng(spec.seed).lognormal(np.log(self.mean_s) - SPREAD**2 / 2, SPREAD))
        time.sleep(seconds)
        self.busy_s += seconds
        return [[Completion([1, 2, 3, 0], [-0.5] * 4, "x", False, 0) for _ in range(4)] for _ in prompts]

    def load_weights(self, seconds: float) -> None:
        time.sleep(seconds)

    def take_busy(self) -> float:
        busy, self.busy_s = self.busy_s, 0.0
        return busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--sample-s", type=float, default=2.0)
    parser.add_argument("--train-s", type=float, default=1.5)
    parser.add_argument("--sync-s", type=float, default=0.05)
    args = parser.parse_args()
    import ray

    ray.init(num_cpus=args.engines, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(SleepingEngine).options(num_cpus=1)
    engines = [Actor(f"rollout-{i}", remote.remote(args.sample_s)) for i in range(args.engines)]
    ray.get([engine.handle.ready.remote() for engine in engines])
    print("| staleness | engines busy | seconds a step |\n|---|---|---|")
    for staleness in args.staleness:
        busy, step_s = measure(engines, staleness, args)
        print(f"| {staleness} | {busy:.1%} | {step_s:.2f} |", flush=True)
    ray.shutdown()


def measure(engines: list[Actor], staleness: int, args: argparse.Namespace) -> tuple[float, float]:
    """Share of the time in which engines sample, and seconds a step."""
    import ray

    # The sampler waits through a cluster, of which only `gather` is used here.
    cluster = Cluster.__new__(Cluster)
    cluster.stop = StopFlag()
    sampler = Sampler(cluster, engines, timeout_s=600)
    prompts = [EncodedPrompt(index=i, token_ids=[1, 2], text="x", answer="x") for i in range(4 * len(engines))]

    def start(step: int) -> PendingGroups:
        return sampler.start(prompts, SamplingSpec(4, 4, 1.0, 1.0, seed=step))

    def finish(pending: PendingGroups, within_s: float | None) -> Batch:
        return Batch(sampler.finish(pending, within_s))

    pipeline: RolloutPipeline[Any] = RolloutPipeline(start, finish, staleness=staleness, num_steps=args.steps)
    under_way: deque[list[tuple[Actor, Any]]] = deque()
    begin = time.perf_counter()
    for step in range(args.steps):
        pipeline.take(step)
        time.sleep(args.train_s)
        # As the loop does: whoever samples ahead waits for the weights of so many steps ago.
        under_way.append([(engine, engine.handle.load_weights.remote(args.sync_s)) for engine in engines])
        while len(under_way) > staleness:
            cluster.gather(under_way.popleft(), timeout_s=600, what="sending the weights")
    seconds = time.perf_counter() - begin
    pipeline.close()
    busy = sum(ray.get([engine.handle.take_busy.remote() for engine in engines]))
    return busy / seconds / len(engines), seconds / args.steps


if __name__ == "__main__":
    main()
