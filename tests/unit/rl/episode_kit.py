"""Stand-ins for engines whose replies follow from seed, tokens and version, for tests of episodes."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from slurm_rl.data.groups import Completion, Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import StopFlag
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.rollout.reply_server import ReplyServer
from slurm_rl.rollout.sampling import seed_prompts
from slurm_rl.workers.ray_driver import Actor


class Letters:
    """A tokenizer: a letter is a token."""

    chat_template: str | None = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


WORLDS = Path(__file__).parents[1] / "envs" / "worlds.py"
LIMITS = Limits(max_turns=5, turn_tokens=4, max_tokens=60)
SPEC = SamplingSpec(num_completions=3, max_tokens=60, temperature=1.0, top_p=1.0, seed=7, batch="rollout-3")
ANSWERS = ["2", "3", "1", "4", "9"]


def sample(seed: int, tokens: Sequence[int], version: int = 3) -> Completion:
    """A reply that follows from seed and tokens, as an engine's does."""
    draw = random.Random(f"{seed} {list(tokens)}")
    said = "".join(draw.choice("abcdefgh") for _ in range(draw.randint(1, 4)))
    return Completion([ord(letter) for letter in said], [-draw.random() for _ in said], said, False, version)


class ServedEngine:
    """An actor's handle, in this process: Ray's calls are a stand-in, the connection for replies is the real one.

    Subclasses have the methods `begin_replies` and `take_replies` of a RolloutEngine.
    """

    @cached_property
    def server(self) -> ReplyServer:
        return ReplyServer(cast(Any, self), "127.0.0.1")

    @property
    def open_replies(self) -> SimpleNamespace:
        return SimpleNamespace(remote=self._open)

    def _open(self) -> SimpleNamespace:
        answer: Future[Any] = Future()
        try:
            answer.set_result(self.server.address())
        except BaseException as error:
            answer.set_exception(error)
        return SimpleNamespace(future=lambda: answer)


class Engine(ServedEngine):
    """Begins replies, and gives those that have ended in an order of its own.

    Args:
        lives: so many replies, and then it is dead.
    """

    def __init__(self, order: int = 0, lives: int = 10**9, version: int = 3) -> None:
        self.asked: list[ReplyRequest] = []
        self.random, self.lives, self.version = random.Random(order), lives, version
        self._waiting: defaultdict[str, list[ReplyRequest]] = defaultdict(list)
        """By who asks."""
        self._lock = threading.Condition()

    def begin_replies(self, client: str, requests: Sequence[ReplyRequest]) -> list[Refused]:
        with self._lock:
            self._waiting[client] += requests
            self.asked += requests
            self._lock.notify_all()
        return []

    def take_replies(self, client: str, wait_s: float, linger_s: float) -> list[Replied]:
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
        return [(it.episode, PackedReply.of(reply)) for it, reply in zip(taken, replies, strict=True)]


class WaveEngine:
    """The same for waves."""

    def __init__(self, version: int = 3) -> None:
        self.version = version

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, seeds: Any = None) -> list[Group]:
        own = seeds if seeds is not None else seed_prompts(spec, len(prompts))
        return [
            Group(
                prompt,
                [sample(seed + member, prompt.token_ids, self.version) for member in range(spec.num_completions)],
            )
            for prompt, seed in zip(prompts, own, strict=True)
        ]

    def finish(self, pending: list[Group], within_s: float | None = None) -> list[Group]:
        return pending


def sampler_of(*engines: Engine, care: Any = None, timeout_s: float = 60.0) -> Any:
    cluster = SimpleNamespace(stop=StopFlag(), while_waiting=lambda: None)
    actors = [Actor(f"rollout-{at}", engine) for at, engine in enumerate(engines)]
    return SimpleNamespace(engines=actors, cluster=cluster, care=care, timeout_s=timeout_s)


def prompts_of(folder: Path) -> list[EncodedPrompt]:
    """The text names the folder where worlds leave a file a call."""
    return [EncodedPrompt(index=i, token_ids=[63 + i], text=str(folder), answer=it) for i, it in enumerate(ANSWERS)]
