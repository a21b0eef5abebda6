"""Utilisation with one trainer and 10,000 episodes in flight: the product's loop over episodes in free order.

    python -m benchmarks.many_episodes                                  10,000 in flight, environments of 0.1 to 5 s
    python -m benchmarks.many_episodes --seconds 300                    the same, ended this long after the first batch
    python -m benchmarks.many_episodes --steps 100 --speed 3            memory over 100 steps, in 20 minutes

Engines are local Ray actors that sleep as long as sampling would take (`--slots` slots each, log-normal times),
environments are processes that await as long as a tool would. Everything else is real: AsyncEpisodes, the environment
pool, the journal with its fsync, BatchQueue with `--staleness` batches in flight, among which the episodes are divided.
A step trains as long as its replies occupy all slots; with instant training (`--train 0`) all batches would start and
end at once, and no other would fill the slots of short episodes.

Busy is the share of time in which an engine samples at least one reply, `places` the share of its slots in use, both as
means over engines, from the end of the first batch (in which all start at once) until the last one is requested. Driver
is the CPU time of this process, with all its threads, per second and per turn.
"""

import argparse
import asyncio
import heapq
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.many_engines import wait_until_ready
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.node.stop import StopFlag, Timer
from slurm_rl.rollout.async_episodes import AsyncEpisodes, EpisodeBatch
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.sampling import Sampler
from slurm_rl.rollout.turn_log import TurnLog
from slurm_rl.rollout.vllm.async_engine import Mailbox
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.batch_queue import BatchQueue
from slurm_rl.trainers.grpo.trainer import collect_rarely, collect_step
from slurm_rl.workers.ray_driver import Actor, Cluster

ENVIRONMENT = Path(__file__).with_name("sleeping_environment.py")
REPLY_TOKENS, PROMPT_TOKENS, GROUP_SIZE = 32, 128, 8
MEAN_TURNS = 4
"""Mean number of turns per episode in that environment."""


class SleepingEngine:
    """An asynchronous rollout engine's methods for single responses, without a model."""

    def __init__(self, slots: int, mean_s: float, spread: float) -> None:
        self.mean_s, self.spread = mean_s, spread
        self.free = [0.0] * slots
        self.taken: list[tuple[float, float]] = []
        """When responses started and ended."""
        self.mailbox = Mailbox()

    async def ready(self) -> bool:
        return True

    async def submit(self, client: str, requests: Sequence[tuple[Any, ...]]) -> None:
        random = np.random.default_rng([fields[2] for fields in requests])
        lengths = random.lognormal(np.log(self.mean_s) - self.spread**2 / 2, self.spread, len(requests))
        now, loop = time.time(), asyncio.get_running_loop()
        for fields, length in zip(requests, lengths, strict=True):
            request = GenerationRequest(*fields)
            begin = max(now, heapq.heappop(self.free))
            end = begin + float(length)
            heapq.heappush(self.free, end)
            self.taken.append((begin, end))
            loop.call_later(end - now, self._finish, request)

    def _finish(self, request: GenerationRequest) -> None:
        tokens = [request.seed % 97] * REPLY_TOKENS
        reply = Trajectory(tokens, [-0.5] * REPLY_TOKENS, "so", False, 0)
        self.mailbox.responses.append((request.name, Response.pack(reply)))
        self.mailbox.arrived.set()

    async def collect(self, client: str, wait_s: float, delay_s: float) -> tuple[list[Generated], list[Rejected]]:
        return await self.mailbox.collect(wait_s, delay_s)

    async def measure(self, start: float, end: float) -> tuple[float, float]:
        """Return seconds with at least one response between two times, and slot-seconds."""
        busy, until = 0.0, start
        taken = sorted((max(a, start), min(b, end)) for a, b in self.taken if b > start and a < end)
        for a, b in taken:
            busy, until = busy + max(b - max(a, until), 0.0), max(until, b)
        return busy, sum(b - a for a, b in taken)


class Letters:
    """A tokenizer with one token per letter."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="in flight")
    parser.add_argument("--steps", type=int, default=12, help="batches")
    parser.add_argument("--staleness", type=int, default=3, help="batches ahead of the one that is waited for")
    parser.add_argument("--train", type=float, default=1.0, help="time of training a batch, of that of sampling it")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--reply-s", type=float, default=8.0, help="mean time of a reply")
    parser.add_argument("--spread", type=float, default=0.5, help="standard deviation of the logarithm of that time")
    parser.add_argument("--speed", type=float, default=1.0, help="replies and environments are so many times faster")
    parser.add_argument("--seconds", type=float, help="end after so many, whatever is under way")
    parser.add_argument("--workers", type=int, default=2, help="processes of environments")
    args = parser.parse_args()
    import ray

    collect_rarely()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        measure(Path(folder), args)
    ray.shutdown()
    os._exit(0)  # threads may wait for episodes that --seconds cut off


def measure(folder: Path, args: argparse.Namespace) -> None:
    import ray

    # Environments take 2.5 s on average, so episodes in flight fill this many slots.
    slots = int(args.episodes / args.engines / (1 + 2.5 / args.reply_s) * 0.8)
    cluster = Cluster.__new__(Cluster)  # only waiting is used: the cluster is this machine
    cluster.stop = StopFlag()
    remote = ray.remote(SleepingEngine).options(num_cpus=0, max_concurrency=100)
    engines = [
        Actor(f"rollout-{i}", remote.remote(slots, args.reply_s / args.speed, args.spread)) for i in range(args.engines)
    ]
    wait_until_ready(cluster, engines)
    world = folder / "world.py"
    world.write_text(ENVIRONMENT.read_text().replace("SPEED = 1.0", f"SPEED = {args.speed}"))
    config = EnvironmentConfig(name=f"{world}:Sleeping", num_workers=args.workers, timeout_s=60.0)
    with EnvironmentPool(config) as pool:
        journal = TurnLog(folder / "journal", pool.facts, keeps_all=False, report=lambda *_, **__: None)
        tokenizer: Any = Letters()
        limits = Limits(max_turns=8, turn_tokens=REPLY_TOKENS, max_tokens=10_000)
        sampler = Sampler(cluster, engines, 600.0)
        rollouts = AsyncEpisodes(sampler, pool, TurnRenderer(tokenizer, None), limits, None, journal)
        run_steps(args, rollouts, journal, engines, slots)
        journal.close()


def run_steps(
    args: argparse.Namespace, rollouts: AsyncEpisodes, journal: TurnLog, engines: Sequence[Actor], slots: int
) -> None:
    import ray

    in_flight = args.staleness + 1
    count = args.episodes // in_flight // GROUP_SIZE
    train_s = args.train * count * GROUP_SIZE * MEAN_TURNS * args.reply_s / args.speed / (slots * args.engines)
    tokens = [65] * PROMPT_TOKENS
    prompts = [EncodedPrompt(index=i, token_ids=tokens, text="A" * PROMPT_TOKENS, answer="") for i in range(count)]
    batches: list[EpisodeBatch] = []
    progress = Progress()

    def draw(step: int, _: int) -> tuple[list[EncodedPrompt], SamplingSpec]:
        return prompts, SamplingSpec(GROUP_SIZE, REPLY_TOKENS, 1.0, 1.0, seed=step, batch=f"rollout-{step}")

    def start(own: Sequence[EncodedPrompt], spec: SamplingSpec) -> EpisodeBatch:
        batches.append(rollouts.start(own, spec))
        return batches[-1]

    def finish(batch: EpisodeBatch, timer: Timer, within_s: float | None) -> list[Group]:
        groups = rollouts.finish(batch, timer, within_s)
        progress.num_events += batch.num_events
        batches.remove(batch)
        return groups

    def take_all() -> None:
        for step in range(args.steps):
            if step == args.steps - in_flight:
                progress.lag = time.time()  # no new batch is requested from here on
            check(queue.take(step, Timer()).groups)
            time.sleep(train_s)
            journal.prune(step + 1, 0)
            collect_step()
            progress.memory.append(resident_mb())

    def count_events() -> int:
        return progress.num_events + sum(batch.num_events for batch in list(batches))

    words = [f"rollout.max_off_policy_steps={args.staleness}", f"trainer.num_steps={args.steps}", "warmup.num_steps=0"]
    config = load_config(["+exp=demo", "algorithm.dynamic_sampling_rounds=1", *words])
    schedule: Any = SimpleNamespace(draw=draw)
    watched: Any = SimpleNamespace(start=start, finish=finish)
    queue = BatchQueue(config, RunDir(journal.folder.parent), schedule, watched)
    steps = threading.Thread(target=take_all, daemon=True)
    steps.start()
    while not progress.memory and steps.is_alive():
        time.sleep(0.01)
    begun, cpu, before = time.time(), time.process_time(), count_events()
    steps.join(args.seconds)
    elapsed, cpu = time.time() - begun, time.process_time() - cpu
    end = progress.lag or time.time()
    progress.memory.append(resident_mb())
    turns = (count_events() - before) / 2  # a reply and a step
    found = ray.get([engine.handle.measure.remote(begun, end) for engine in engines])
    busy, places = (sum(values) / (end - begun) / args.engines for values in zip(*found, strict=True))
    few = [f"{progress.memory[at]:.0f}" for at in sorted({0, len(progress.memory) // 2, len(progress.memory) - 1})]
    print("| in flight | turns | turns a second | engines busy | places | driver | a turn | memory, over the steps |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {args.episodes} | {turns:.0f} | {turns / elapsed:.0f} | {busy:.1%} | {places / slots:.1%} | "
        f"{cpu / elapsed:.0%} of a core | {cpu / turns * 1e6:.0f} us | {', '.join(few)} MB |",
        flush=True,
    )


@dataclass
class Progress:
    """Results of the steps."""

    lag: float | None = None
    """When the last batch was requested."""
    num_events: int = 0
    """Journal events of finished batches."""
    memory: list[float] = field(default_factory=list)
    """In megabytes, after each step."""


def check(groups: Sequence[Group]) -> None:
    failures = {result.failure for group in groups for result in group.results} - {None}
    assert not failures, failures


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    main()
