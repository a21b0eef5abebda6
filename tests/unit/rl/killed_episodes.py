"""A run of episodes that may be killed: the product's loop and journal, real environments, and fake engines.

Replies depend only on seed, tokens and version. A step increments the version without training, and every second step
is a checkpoint. With `kill at` n > 0 the process sends itself SIGKILL at the n-th request.
"""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_rl.data.turns import TurnRenderer
from slurm_rl.node.stop import Timer
from slurm_rl.rollout.async_episodes import AsyncEpisodes
from slurm_rl.rollout.engine import GenerationRequest
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.turn_log import TurnLog
from slurm_rl.run_dir.run_dir import write_json
from tests.unit.rl.episode_kit import LIMITS, SPEC, Engine, Letters, WaveEngine, pool_of, prompts_of, sampler_of

STEPS = 4


class Watched:
    """Record each request before it is sampled, and kill the process at one of them."""

    def __init__(self, file: Path, kill_at: int) -> None:
        self.file, self.kill_at, self.count = file.open("a"), kill_at, 0

    def note(self, seeds: Sequence[int], version: int) -> None:
        for seed in seeds:
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.file.write(f"{version} {seed}\n")
            self.file.flush()


class WatchedEngine(Engine):
    def __init__(self, watched: Watched) -> None:
        super().__init__(order=os.getpid())
        self.watched = watched

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        self.watched.note([request.seed for request in requests], self.version)
        super().on_submit(client, requests)


class WatchedWaves(WaveEngine):
    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched

    def start(self, prompts: Any, spec: Any, seeds: Any = None) -> Any:
        groups = super().start(prompts, spec, seeds)
        self.watched.note([0] * sum(len(group.completions) for group in groups), self.version)
        return groups


def main(folder: Path, order: str, kill_at: int) -> None:
    saved = folder / "checkpoint.json"
    state: dict[str, Any] = json.loads(saved.read_text()) if saved.is_file() else {"step": 0, "found": []}
    (folder / "effects").mkdir(exist_ok=True)
    watched = Watched(folder / "asked", kill_at)
    tokenizer: Any = Letters()
    with pool_of("Counted") as pool:
        journal = TurnLog(folder / "journal", pool.facts, keeps_all=order == "lockstep", report=lambda *_, **__: None)
        journal.resume(state["step"], None)
        engine: Any = WatchedEngine(watched) if order == "async" else WatchedWaves(watched)
        render = TurnRenderer(tokenizer, None)
        episodes: Any = (
            AsyncEpisodes(sampler_of(engine), pool, render, LIMITS, None, journal)
            if order == "async"
            else LockstepEpisodes(engine, pool, render, LIMITS, None, journal)
        )
        while state["step"] < STEPS:
            step = engine.version = state["step"]
            spec = replace(SPEC, seed=step + 100, batch=f"rollout-{step}")
            groups = episodes.finish(episodes.start(prompts_of(folder / "effects"), spec), Timer())
            found = [
                [[it.token_ids, it.logprobs, it.weight_version] for it in group.completions]
                + [[it.value, it.failure, dict(it.parts)] for it in group.results]
                for group in groups
            ]
            state = {"step": step + 1, "found": [*state["found"], found]}
            if state["step"] % 2 == 0:
                write_json(saved, state)
                journal.prune(state["step"], state["step"])
        journal.close()
