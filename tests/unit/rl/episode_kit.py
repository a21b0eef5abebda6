"""Fake engines for episode tests; replies depend only on seed, tokens and version."""

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.node.stop import StopFlag, Timer
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.sampling import seed_prompts
from slurm_rl.rollout.turn_log import TurnLog
from slurm_rl.workers.ray_driver import Actor


class Letters:
    """A tokenizer with one token per letter."""

    chat_template: str | None = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


WORLDS = Path(__file__).parents[1] / "envs" / "worlds.py"
LIMITS = Limits(max_turns=5, turn_tokens=4, max_tokens=60)
SPEC = SamplingSpec(num_completions=3, max_tokens=60, temperature=1.0, top_p=1.0, seed=7, batch="rollout-3")
ANSWERS = ["2", "3", "1", "4", "9"]


def sample(seed: int, tokens: Sequence[int], version: int = 3) -> Trajectory:
    """Return a reply that depends only on seed and tokens."""
    draw = random.Random(f"{seed} {list(tokens)}")
    said = "".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, 4)))
    return Trajectory([ord(letter) for letter in said], [-draw.random() for _ in said], said, False, version)


class RemoteEngine:
    """Fake handle of an asynchronous engine's actor, with Ray's calls in threads of this process.

    Subclasses implement `on_submit(client, requests)` and `finished(client)`, which blocks until it has responses.
    """

    @property
    def submit(self) -> SimpleNamespace:
        return SimpleNamespace(remote=self._submit)

    @property
    def collect(self) -> SimpleNamespace:
        return SimpleNamespace(remote=self._collect)

    def _submit(self, client: str, requests: Sequence[Any]) -> SimpleNamespace:
        self.on_submit(client, [GenerationRequest(*request) for request in requests])
        answer: Future[Any] = Future()
        answer.set_result(None)
        return SimpleNamespace(future=lambda: answer)

    def _collect(self, client: str, wait_s: float, delay_s: float) -> SimpleNamespace:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(self._results(client))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return SimpleNamespace(future=lambda: answer)

    def _results(self, client: str) -> tuple[list[Generated], list[Rejected]]:
        return self.finished(client), []

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        raise NotImplementedError

    def finished(self, client: str) -> list[Generated]:
        raise NotImplementedError


class Engine(RemoteEngine):
    """Finish requests in a shuffled order.

    Args:
        lives: number of responses after which the engine is dead.
    """

    def __init__(self, order: int = 0, lives: int = 10**9, version: int = 3) -> None:
        self.asked: list[GenerationRequest] = []
        self.random, self.lives, self.version = random.Random(order), lives, version
        self._waiting: defaultdict[str, list[GenerationRequest]] = defaultdict(list)
        """Requests by client."""
        self._lock = threading.Condition()

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        with self._lock:
            self._waiting[client] += requests
            self.asked += requests
            self._lock.notify_all()

    def finished(self, client: str) -> list[Generated]:
        with self._lock:
            waiting = self._waiting[client]
            self._lock.wait_for(lambda: waiting or not self.lives, timeout=30)
            self.random.shuffle(waiting)
            count = min(self.random.randint(1, 3), len(waiting), self.lives)
            taken, waiting[:count] = waiting[:count], []
            self.lives -= count
        if count == 0:
            import ray

            raise ray.exceptions.ActorDiedError
        replies = [sample(it.seed, it.prompt.token_ids, self.version) for it in taken]
        return [(it.name, Response.pack(reply)) for it, reply in zip(taken, replies, strict=True)]


class WaveEngine:
    """The same engine for lockstep sampling."""

    def __init__(self, version: int = 3) -> None:
        self.version = version

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, seeds: Any = None) -> list[Group]:
        own = seeds if seeds is not None else seed_prompts(spec, len(prompts))
        members = range(spec.num_completions)
        return [
            Group(prompt, [sample(seed + member, prompt.token_ids, self.version) for member in members])
            for prompt, seed in zip(prompts, own, strict=True)
        ]

    def finish(self, pending: list[Group], within_s: float | None = None) -> list[Group]:
        return pending


def sampler_of(*engines: Engine, supervisor: Any = None, timeout_s: float = 60.0) -> Any:
    cluster = SimpleNamespace(stop=StopFlag(), while_waiting=lambda: None)
    actors = [Actor(f"rollout-{at}", engine) for at, engine in enumerate(engines)]
    return SimpleNamespace(engines=actors, cluster=cluster, supervisor=supervisor, timeout_s=timeout_s)


def pool_of(name: str) -> EnvironmentPool:
    return EnvironmentPool(EnvironmentConfig(name=f"{WORLDS}:{name}", timeout_s=60.0))


def journal_of(folder: Path, pool: EnvironmentPool, version: int = 3) -> TurnLog:
    journal = TurnLog(folder, pool.facts, keeps_all=False, report=lambda *_, **__: None)
    journal.resume(version, None)
    return journal


def play_episodes(
    kind: Any,
    sampler: Any,
    pool: EnvironmentPool,
    folder: Path,
    *,
    limits: Limits = LIMITS,
    journal: TurnLog | None = None,
    scorer: Any = None,
) -> list[Group]:
    """Play the prompts of `folder`; `kind` is LockstepEpisodes or AsyncEpisodes."""
    tokenizer: Any = Letters()
    episodes = kind(sampler, pool, TurnRenderer(tokenizer, None), limits, scorer, journal)
    found: list[Group] = episodes.finish(episodes.start(prompts_of(folder), SPEC), Timer())
    return found


def prompts_of(folder: Path) -> list[EncodedPrompt]:
    """Return prompts with the name of the folder where environments write a file per call."""
    return [EncodedPrompt(index=i, token_ids=[63 + i], text=str(folder), answer=it) for i, it in enumerate(ANSWERS)]
