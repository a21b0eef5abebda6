"""LockstepEpisodes with real environments and a scripted engine."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.credit import build_train_sequences
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory, Turn
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.errors import StopRequested
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.episode import Episode, Limits
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.scoring import item_of, result_of
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from tests.unit.rl.episode_kit import WORLDS, Letters, WaveEngine

LIMITS = Limits(max_turns=3, turn_tokens=4, max_tokens=12)
SPEC = SamplingSpec(num_completions=2, max_tokens=12, temperature=1.0, top_p=1.0, seed=7)


class Engine(WaveEngine):
    """Reply by the end of the prompt, and record the requests."""

    def __init__(self, replies: dict[str, str]) -> None:
        super().__init__()
        self.replies, self.asked = replies, list[tuple[list[str], list[int] | None]]()

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, seeds: list[int] | None = None) -> Any:
        texts = ["".join(map(chr, prompt.token_ids)) for prompt in prompts]
        self.asked.append((texts, seeds))
        return [
            Group(prompt, [self._reply(text, member) for member in range(spec.num_completions)])
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    def _reply(self, text: str, member: int) -> Trajectory:
        said = self.replies.get(text, "ab"[member])
        return Trajectory([ord(letter) for letter in said], [-1.0 - member] * len(said), said, False, 3)


class Scorer:
    def __init__(self) -> None:
        self.items: list[RewardItem] = []

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        self.items += items
        return [RewardResult(item=item, value=0.25) for item in items]


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    with EnvironmentPool(EnvironmentConfig(name=f"{WORLDS}:Bad", timeout_s=60.0)) as pool:
        yield pool


def play(
    pool: EnvironmentPool,
    answers: Sequence[str],
    *,
    replies: dict[str, str] | None = None,
    limits: Limits = LIMITS,
    scorer: Scorer | None = None,
) -> tuple[list[Group], Engine]:
    tokenizer: Any = Letters()
    engine: Any = Engine(replies or {})
    prompts = [EncodedPrompt(index=i, token_ids=[ord("?")], text="?", answer=text) for i, text in enumerate(answers)]
    episodes = LockstepEpisodes(engine, pool, TurnRenderer(tokenizer, None), limits, scorer)
    return episodes.finish(episodes.start(prompts, SPEC), Timer()), engine


def test_lockstep_trains_on_replies_but_not_on_observations(pool: EnvironmentPool) -> None:
    [group], engine = play(pool, ["2"])
    assert [text for text, _ in engine.asked] == [["?"], ["?aa", "?bb"]]
    first, second = group.completions
    assert "".join(map(chr, first.token_ids)) == "aaa" and "".join(map(chr, second.token_ids)) == "bba"
    assert first.logprobs == [-1.0, -1.0] and second.logprobs == [-2.0, -1.0]
    assert [(turn.start, turn.end, turn.reply, turn.observation) for turn in first.turns] == [
        (0, 1, "a", "a"),
        (2, 3, "a", "a a"),
    ]
    assert [result.value for result in group.results] == [1.0, 1.0]
    assert group.results[0].parts == {"replies": 2.0}
    sequence = build_train_sequences([group], AlgorithmConfig(), None)[0]
    assert sequence.trained is not None and sequence.trained.tolist() == [1, 3]
    assert np.array_equal(sequence.old_logprobs, np.float32([-1.0, -1.0]))
    assert sequence.token_ids.tolist() == [ord(letter) for letter in "?aaa"]


def test_seeds_are_repeatable_and_independent_of_other_episodes(pool: EnvironmentPool) -> None:
    runs = [play(pool, ["3", "3"])[1].asked for _ in range(2)]
    assert runs[0] == runs[1]
    seeds = [seed for _, own in runs[0] for seed in own or []]
    assert len(seeds) == len(set(seeds)) == 8
    # Finished episodes get no further requests, and the others keep their seeds.
    assert play(pool, ["1", "3"])[1].asked[1][1] == (runs[0][1][1] or [])[2:]


@pytest.mark.parametrize("wave", [1, 2])
def test_interrupted_batch_finishes_with_same_episodes(pool: EnvironmentPool, wave: int) -> None:
    """A checkpoint on a stop signal does this; the environments have had turns that were discarded."""

    class Stopped(Engine):
        num_waves = 0

        def finish(self, pending: list[Group], within_s: float | None = None) -> list[Group]:
            self.num_waves += 1
            if self.num_waves == wave + 1:
                raise StopRequested("asked to stop")
            return pending

    undisturbed, _ = play(pool, ["3", "2"])
    tokenizer: Any = Letters()
    engine: Any = Stopped({})
    prompts = [EncodedPrompt(index=i, token_ids=[ord("?")], text="?", answer=text) for i, text in enumerate("32")]
    episodes = LockstepEpisodes(engine, pool, TurnRenderer(tokenizer, None), LIMITS, None)
    pending = episodes.start(prompts, SPEC)
    with pytest.raises(StopRequested):
        episodes.finish(pending, Timer())
    assert episodes.finish(pending, Timer(), 60.0) == undisturbed


@pytest.mark.parametrize("bad", ["raise", "nan", "nothing"])
def test_failed_episode_has_no_reward_and_group_continues(pool: EnvironmentPool, bad: str) -> None:
    [group], _ = play(pool, ["2"], replies={"?aa": bad}, limits=Limits(3, 8, 40))
    failed, well = group.results
    assert failed.value is None and failed.failure == ("exception" if bad == "raise" else "bad score")
    assert {"raise": "no such door", "nan": "nan", "nothing": "None"}[bad] in failed.detail
    assert well.value == 1.0
    metrics = sampling_metrics([group])
    assert metrics["reward/failed"] == 1.0 and metrics["reward/mean"] == 1.0


@pytest.mark.parametrize("limits", [Limits(2, 4, 40), Limits(9, 4, 7)])
def test_episode_over_limit_is_truncated_and_scored(pool: EnvironmentPool, limits: Limits) -> None:
    scorer = Scorer()
    [group], _ = play(pool, ["9"], limits=limits, scorer=scorer)
    assert all(one.truncated and len(one.token_ids) <= limits.max_tokens for one in group.completions)
    assert [result.value for result in group.results] == [0.25, 0.25]
    assert [(item.completion, item.truncated) for item in scorer.items] == [("a", True), ("a", True)]


def test_unrenderable_observation_fails_one_episode(pool: EnvironmentPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Letters, text: str, **_: Any) -> dict[str, list[int]]:
        raise ValueError("no such token")

    monkeypatch.setattr(Letters, "__call__", refuse)
    [group], _ = play(pool, ["2"])
    assert [result.failure for result in group.results] == ["bad score"] * 2
    assert "no such token" in group.results[0].detail


def test_infinite_reward_is_failure() -> None:
    episode = Episode(0, 0, EncodedPrompt(index=0, token_ids=[1], text="?", answer=""), 7)
    episode.add_reply(Response.pack(Trajectory([1], [-1.0], "a", False, 0)))
    episode.branch.turns = [Turn(0, 1, "a", "", 1e308), Turn(0, 1, "a", "", 1e308)]
    result = result_of(episode, item_of(episode))
    assert result.value is None and result.failure == "bad score" and "inf" in result.detail


def test_metrics_count_turns_and_masked_tokens(pool: EnvironmentPool) -> None:
    [group], _ = play(pool, ["2"])
    metrics = sampling_metrics([group])
    assert metrics["episode/turns_mean"] == metrics["episode/turns_max"] == 2.0
    assert metrics["episode/masked"] == pytest.approx(1 / 3)
    assert metrics["tokens/sampled"] == 4.0
