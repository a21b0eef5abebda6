"""Utilisation of many rollout engines with one trainer: the product's loop, with engines and a policy that sleep.

    python -m benchmarks.many_engines --engines 64

Engines are local Ray actors that sleep as long as sampling would take: each has `--slots` slots, a completion holds one
for a log-normal time, and further ones queue in the engine, as in vLLM. The policy is an actor that sleeps as long as
training would take. Everything else is real: GRPOTrainer, sampler, pipeline, rewards, weight sync, metrics, checkpoint.

With 64 engines the longest completion of a batch takes five times the mean. Engines idle for it whenever the batches
allowed in flight hold less work than that, as with `--prompts 8`.

Busy is the share of time in which an engine samples at least one completion, `places` the share of its slots in use,
both as means over engines. The time starts with the first step and ends with the request of the last batch, since no
later batch can fill the engines; an engine that loads weights is not busy.
"""

import argparse
import heapq
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reward_overlap import WORKERS
from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Prompts, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import StopFlag
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rollout.load_balancer import max_calls
from slurm_rl.rollout.weights.sync import ObjectStore, WeightSync
from slurm_rl.rollout.weights.weight_record import HeldWeights, SentWeights
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.grpo.build import build_rollouts, build_sampler
from slurm_rl.trainers.grpo.judges import Judge
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.trainers.grpo.trainer import GRPOTrainer
from slurm_rl.trainers.grpo.trainer_state import RunSaver
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.train_workers import WorkerGroup

GROUP_SIZE = 4
FILE = Path(__file__).resolve().parent / "reward_overlap.py"
CASES = {"0": (0, False), "1": (1, False), "1c": (1, True), "2c": (2, True)}
"""Staleness, and whether engines accept requests at any time."""


class SleepingEngine:
    """A rollout engine's interface, without a model."""

    def __init__(self, slots: int, mean_s: float, spread: float, sync_s: float) -> None:
        self.mean_s, self.spread, self.sync_s = mean_s, spread, sync_s
        self.lock = threading.Lock()
        self.free = [0.0] * slots
        """When each slot becomes free; this clock and those below stop while weights load."""
        self.paused_s, self.version = 0.0, -1
        self.pauses: list[float] = []
        """When weights were loaded, by the wall clock."""
        self.taken: list[tuple[float, float]] = []
        """When completions started and ended."""

    def ready(self) -> bool:
        return True

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Trajectory]]:
        random = np.random.default_rng(seeds)
        count = len(prompts) * spec.num_completions
        lengths = random.lognormal(np.log(self.mean_s) - self.spread**2 / 2, self.spread, count)
        with self.lock:
            now, times = time.time() - self.paused_s, []
            for length in lengths:
                begin = max(now, heapq.heappop(self.free))
                heapq.heappush(self.free, begin + float(length))
                times.append((begin, begin + float(length)))
        last = max(end for _, end in times)
        while (left := last + self.paused_s - time.time()) > 0:
            time.sleep(left)
        with self.lock:
            self.taken += times
        return [
            [Trajectory([1, 2, 0], [-0.5] * 3, str(random.integers(2)), False, self.version) for _ in range(GROUP_SIZE)]
            for _ in prompts
        ]

    def load_weights(self, version: int, records: Any, probe: TokenPrompt) -> HeldWeights:
        """Delay all completions in flight."""
        time.sleep(self.sync_s)
        with self.lock:
            self.paused_s += self.sync_s
            self.pauses.append(time.time())
            self.version = version
        return HeldWeights(version, ["sum"], [0.0])

    def measure(self, start: float, end: float) -> tuple[float, float]:
        """Return seconds with at least one completion between two wall-clock times, and slot-seconds."""
        start, end = (at - self.sync_s * sum(pause <= at for pause in self.pauses) for at in (start, end))
        busy, until = 0.0, start
        taken = sorted((max(a, start), min(b, end)) for a, b in self.taken if b > start and a < end)
        for a, b in taken:
            busy, until = busy + max(b - max(a, until), 0.0), max(until, b)
        return busy, sum(b - a for a, b in taken)


class SleepingPolicy:
    """A policy worker's interface, without a model."""

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s

    def train(self, *_: Any) -> dict[str, float]:
        time.sleep(self.train_s)
        return {"loss": 0.0, "grad_norm": 0.0}

    def pack_weights(self, probe: TokenPrompt) -> tuple[list[Any], SentWeights]:
        return [], SentWeights("sum", [0.0])

    def save(self, folder: Path, background: bool) -> list[Path]:
        (folder / "nothing").touch()
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES], help="staleness; c: continuous")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--slots", type=int, default=16, help="completions that an engine samples at once")
    parser.add_argument("--prompts", type=int, default=16, help="prompts a step for each engine, 4 completions each")
    parser.add_argument("--sample-s", type=float, default=4.0, help="mean time of a completion")
    parser.add_argument("--spread", type=float, default=0.5, help="standard deviation of the logarithm of that time")
    parser.add_argument("--train-s", type=float, default=4.0)
    parser.add_argument("--sync-s", type=float, default=0.1)
    parser.add_argument("--reward", choices=("fast", "slow"), help="score by this function of reward_overlap.py")
    args = parser.parse_args()
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(
        "| rollout.max_off_policy_steps | rollout.inflight_weight_updates | engines busy | places | s/step "
        "|\n|---|---|---|---|---|"
    )
    for staleness, continuous in (CASES[case] for case in args.cases):
        with tempfile.TemporaryDirectory() as folder:
            busy, places, step_s = measure(Path(folder), staleness, continuous, args)
        print(f"| {staleness} | {continuous} | {busy:.1%} | {places:.1%} | {step_s:.2f} |", flush=True)
    ray.shutdown()


def measure(folder: Path, staleness: int, continuous: bool, args: argparse.Namespace) -> tuple[float, float, float]:
    """Return busy shares of engines and of slots, and seconds per step."""
    import ray

    config = load_config(
        [
            "+exp=demo",
            f"rollout.max_off_policy_steps={staleness}", f"rollout.inflight_weight_updates={continuous}",
            "checkpoint.interval=1000000",
            f"rollout.max_num_seqs={args.slots}", f"trainer.num_steps={args.steps}", "warmup.num_steps=0",
            f"trainer.prompts_per_step={args.prompts * args.engines}", f"algorithm.group_size={GROUP_SIZE}",
            *([f"reward.function={FILE}:{args.reward}", f"reward.num_workers={WORKERS}"] if args.reward else []),
            "algorithm.kl.coef=0", "eval.interval=0", "eval.num_samples=1", "eval.greedy=false",
        ]
    )  # fmt: skip
    cluster = Cluster.__new__(Cluster)  # only `gather` is used: the cluster is this machine
    cluster.stop = StopFlag()
    num_calls = max_calls(staleness) + 2 * (staleness + 1) if continuous else 1
    remote = ray.remote(SleepingEngine).options(num_cpus=0, max_concurrency=num_calls)
    engines = [
        Actor(f"rollout-{i}", remote.remote(args.slots, args.sample_s, args.spread, args.sync_s))
        for i in range(args.engines)
    ]
    worker = Actor("policy-0", ray.remote(SleepingPolicy).options(num_cpus=0).remote(args.train_s))
    policy = WorkerGroup(cluster, [worker], 8192, 600, "policy")
    probe = TokenPrompt(token_ids=[1, 2])
    sync = WeightSync(cluster, ObjectStore([worker], engines), engines, probe=probe, tolerance=1.0, timeout_s=600)
    rows = [EncodedPrompt(index=i, token_ids=[1, 2], text="0+1=", answer="1") for i in range(100_000)]
    run = RunDir(folder)
    metrics = MetricsLogger(run, config.logging, "many_engines", {})
    with RewardPool(config.reward) as rewards:
        sampler = build_sampler(cluster, engines, config)
        trainer = GRPOTrainer(
            config,
            run,
            Prompts(rows, rows[:1], []),
            Learner(config, policy, policy),
            sampler,
            build_rollouts(config, sampler, {"": Judge(rewards, None)}, None, ""),
            sync,
            RunSaver(run, config, policy),
            metrics,
        )
        trainer.run(lambda: wait_until_ready(cluster, engines))
    metrics.close()
    stamps = {row["step"]: row["time/stamp"] for row in read_rows(run.metrics) if row["stage"] == "grpo"}
    [start] = [r["time/stamp"] for r in read_rows(run.metrics) if r["stage"] == "eval" and r["step"] == 0]
    last = args.steps - staleness
    end = stamps[last]
    found = ray.get([engine.handle.measure.remote(start, end) for engine in engines])
    for actor in [*engines, worker]:
        ray.kill(actor.handle)
    busy, places = (sum(values) / (end - start) / args.engines for values in zip(*found, strict=True))
    return busy, places / args.slots, (end - start) / last


def wait_until_ready(cluster: Cluster, engines: Sequence[Actor]) -> None:
    calls = [(engine, engine.handle.ready.remote()) for engine in engines]
    cluster.gather(calls, timeout_s=600, what="starting the engines")


if __name__ == "__main__":
    main()
