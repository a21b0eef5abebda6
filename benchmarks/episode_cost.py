"""What episodes themselves cost the driver: tokens, masks, seeds and the journal, with nothing else in the process.

    python -m benchmarks.episode_cost                           10,000 episodes of 8 turns

FreeEpisodes and its journal are a run's. Engines and environments are lists of this process, whose time is not counted:
what the ways to and from other processes cost beside it, `benchmarks.many_episodes` tells.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.many_episodes import GROUP_SIZE, PROMPT_TOKENS, REPLY_TOKENS, Letters, resident_mb
from slurm_rl.data.groups import Completion, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.answers import Answer
from slurm_rl.envs.environment import Step
from slurm_rl.envs.environments import Environments
from slurm_rl.envs.facts import Facts
from slurm_rl.envs.worker import Call
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.free_order import FreeBatch, FreeEpisodes
from slurm_rl.rollout.journal import Journal
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.reply_request import ReplyRequest
from slurm_rl.rollout.sampling import Sampler
from slurm_rl.trainers.grpo.garbage import collect_rarely

AT_ONCE = 64
"""Replies, or steps, that come together."""


class Held(Environments):
    """Keeps calls until they are taken."""

    def __init__(self) -> None:
        super().__init__(())
        self.facts, self.calls = Facts("replay", ""), list[Call]()

    def submit(self, calls: Sequence[Call]) -> None:
        self.calls += calls

    def listen(self, timeout_s: float) -> list[Answer]:
        time.sleep(timeout_s)
        return []

    def forget(self, episodes: Sequence[str]) -> None:
        pass


@dataclass
class HeldRequests:
    """The same for requests, in place of a ReplySampler."""

    requests: list[ReplyRequest] = field(default_factory=list)

    def ask(self, requests: Sequence[ReplyRequest]) -> None:
        self.requests += requests

    def forget(self, episode: str) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    collect_rarely()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.episodes // GROUP_SIZE, args.turns)


def measure(folder: Path, num_prompts: int, num_turns: int) -> None:
    pool, requests, engines = Held(), HeldRequests(), list[Any]()
    tokenizer: Any = Letters()
    journal = Journal(folder, pool.facts, keeps_all=False, report=lambda *_, **__: None)
    limits = Limits(num_turns, REPLY_TOKENS, 10_000)
    nobody: Any = None
    renderer = TurnRenderer(tokenizer, None)
    episodes = FreeEpisodes(Sampler(nobody, engines, 60.0), pool, renderer, limits, None, journal)
    episodes._replies = requests  # type: ignore[assignment]
    text = "A" * PROMPT_TOKENS
    prompts = [EncodedPrompt(index=i, token_ids=[65] * PROMPT_TOKENS, text=text, answer="") for i in range(num_prompts)]
    spec = SamplingSpec(GROUP_SIZE, REPLY_TOKENS, 1.0, 1.0, seed=3, batch="rollout-3")
    spent, before = 0.0, resident_mb()

    def count(work: Callable[..., None], *args: Any) -> None:
        nonlocal spent
        start = time.thread_time()
        work(*args)
        spent += time.thread_time() - start

    opened = journal.open(spec, prompts, pool.facts)
    single = replace(spec, max_tokens=REPLY_TOKENS, num_completions=1)
    count(episodes._begin, FreeBatch(prompts, single, GROUP_SIZE, opened))
    count(episodes._flush)
    for turn in range(num_turns):
        asked, requests.requests = requests.requests, []
        replies = [(one.episode, _reply(one.seed)) for one in asked]
        for at in range(0, len(replies), AT_ONCE):
            count(episodes._take_replies, replies[at : at + AT_ONCE])
            count(episodes._flush)
        is_last = turn == num_turns - 1
        calls, pool.calls = pool.calls, []
        answers = [Answer(one.episode, _step(is_last)) for one in calls]
        for at in range(0, len(answers), AT_ONCE):
            count(episodes._take_answers, answers[at : at + AT_ONCE])
            count(episodes._flush)
    num_episodes = num_prompts * GROUP_SIZE
    grown = resident_mb() - before
    journal.close()
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print("| episodes | turns of each | a turn | memory of an episode | journal |")
    print("|---|---|---|---|---|")
    turn_us = spent / (num_episodes * num_turns) * 1e6
    print(f"| {num_episodes} | {num_turns} | {turn_us:.0f} us | {grown * 1e3 / num_episodes:.0f} kB | {size:.0f} MB |")


def _reply(seed: int) -> PackedReply:
    return PackedReply.of(Completion([seed % 97] * REPLY_TOKENS, [-0.5] * REPLY_TOKENS, "so", False, 0))


def _step(is_last: bool) -> Step:
    return Step("It is something else.", 1.0 if is_last else None, is_last)


if __name__ == "__main__":
    main()
