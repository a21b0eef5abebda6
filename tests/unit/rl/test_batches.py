"""A step's batch depends only on the step, and is scored in a single call. Uses no Ray and no model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.batch_queue import Batch, BatchQueue, PromptSchedule
from slurm_rl.trainers.grpo.build import build_rollouts
from slurm_rl.trainers.grpo.judges import Judge

NUM_PROMPTS = 40


class Sampler:
    """Return odd positions first."""

    def start(self, prompts: list[EncodedPrompt], spec: SamplingSpec) -> tuple[list[EncodedPrompt], SamplingSpec]:
        return prompts, spec

    def arrivals(self, pending: Any, within_s: float | None) -> Iterator[dict[int, Group]]:
        groups = {
            place: Group(prompt, [Trajectory([9], [-0.5], prompt.text, False, 0)])
            for place, prompt in enumerate(pending[0])
        }
        yield {place: group for place, group in groups.items() if place % 2}
        yield {place: group for place, group in groups.items() if not place % 2}


class Rewards:
    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        self.asked.append([item.prompt for item in items])
        return [RewardResult(item=item, value=1.0) for item in items]


class Source:
    """A batch queue without its thread, from a step to its scored groups."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue, self.schedule = queue, queue.schedule

    def start(self, step: int, round_number: int = 0) -> Any:
        return self.queue.rollouts.start(*self.schedule.draw(step, round_number))

    def finish(self, pending: Any) -> Batch:
        return self.queue._finish(pending, None)


def make_source(*words: str) -> tuple[Source, Rewards]:
    prompts = [EncodedPrompt(index=i, token_ids=[1], text=str(i), answer="1") for i in range(NUM_PROMPTS)]
    rewards = Rewards()
    sampler: Any = Sampler()
    judges = {"": Judge(rewards, None)}
    config = load_config(["+exp=demo", "trainer.prompts_per_step=4", "warmup.num_steps=10", *words])
    nowhere: Any = None
    rollouts = build_rollouts(config, sampler, judges, None, "")
    return Source(BatchQueue(config, nowhere, PromptSchedule(config, prompts), rollouts)), rewards


def test_reward_model_scores_full_batch_in_order(tmp_path: Path) -> None:
    source, rewards = make_source(f"reward.model.path={tmp_path}")
    batch = source.finish(source.start(0))
    assert rewards.asked == [[group.prompt.text for group in batch.groups]]
    assert len(batch.groups) == 4


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("reward.model.path=/models/reward", "rollout.inflight_weight_updates=true", "rollout.max_off_policy_steps=1"),
    ],
)
def test_other_rewards_score_arrivals(words: tuple[str, ...]) -> None:
    source, rewards = make_source(*words)
    batch = source.finish(source.start(0))
    texts = [group.prompt.text for group in batch.groups]
    assert rewards.asked == [texts[1::2], texts[0::2]]


def drawn(pending: Any) -> tuple[list[int], int]:
    prompts, spec = pending
    return [prompt.index for prompt in prompts], spec.seed


def test_resumed_step_repeats_requests() -> None:
    first, again = (make_source("algorithm.dynamic_sampling_rounds=3")[0] for _ in range(2))
    for step in range(NUM_PROMPTS // 4):
        first.start(step)
    assert drawn(first.start(3)) == drawn(again.start(3))
    assert drawn(first.start(3, 2)) == drawn(again.start(3, 2))
    asked = [drawn(again.start(step)) for step in (3, 4)]
    asked += [drawn(again.start(step, round_number)) for step in (3, 4) for round_number in (1, 2)]
    assert len({seed for _, seed in asked}) == len({tuple(rows) for rows, _ in asked}) == 6
    # An epoch uses each prompt once.
    assert sorted(row for step in range(10) for row in drawn(again.start(step))[0]) == list(range(NUM_PROMPTS))


def test_curriculum_depends_only_on_position_and_results() -> None:
    """After a restart from the checkpoint, a step has the same rows."""
    plain, _ = make_source()
    first, _ = make_source("data.curriculum={revisit: 0.0}")
    rows = [group.prompt.index for group in first.finish(first.start(2)).groups]
    known = {str(index): [8.0, 8] for index in rows}
    found = []
    for _ in range(2):
        again, _ = make_source("data.curriculum={revisit: 0.0}")
        again.schedule.find_rates = lambda: known
        found.append([group.prompt.index for group in again.finish(again.start(2)).groups])
    assert found[0] == found[1] and not set(found[0]) & set(rows)
    assert len(set(found[0])) == 4 and plain.schedule.find_rates() == {}
