"""Order of requests and weights, further prompts, checkpoints, and the scoring of a step. Uses no Ray and no model."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.batch_queue import Batch, BatchQueue, PromptSchedule, collect_groups
from slurm_rl.trainers.grpo.build import build_rollouts
from slurm_rl.trainers.grpo.judges import Judge
from tests.unit.rl.batch_kit import make_group, make_prompt, make_queue


class Fake:
    """An engine that records its requests and their order."""

    def __init__(self, staleness: int, num_steps: int = 6, *, rounds: int = 1, is_journalled: bool = False) -> None:
        self.asked: list[str] = []
        self.ended: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_stopped = False
        self.queue = make_queue(self, staleness, num_steps, rounds=rounds, is_journalled=is_journalled)

    def start(self, step: int, number: int = 0) -> int:
        self.asked.append(f"batch {step + 100 * number}")
        return step + 100 * number

    def finish(self, step: int, within_s: float | None) -> list[Group]:
        if within_s is None:
            self.gate.wait()
            if self.is_stopped:
                raise StopRequested("asked to stop")
        elif within_s == 0:
            raise TrainingError("sampling must end in time")
        self.ended.append(step)
        return [make_group(step, [1.0])]

    def take(self, step: int) -> int:
        return self.queue.take(step, Timer()).sampled[0].prompt.index

    def run(self, steps: range) -> None:
        for step in steps:
            assert self.take(step) == step
            self.asked.append(f"weights {step + 1}")


@pytest.mark.parametrize(
    ("staleness", "asked"),
    [
        (0, ["batch 0", "weights 1", "batch 1", "weights 2", "batch 2", "weights 3", "batch 3", "weights 4"]),
        (2, ["batch 0", "batch 1", "batch 2", "weights 1", "batch 3", "weights 2", "weights 3", "weights 4"]),
    ],
)
def test_batches_are_requested_at_most_staleness_ahead(staleness: int, asked: list[str]) -> None:
    fake = Fake(staleness, num_steps=4)
    fake.run(range(4))
    assert fake.asked == asked


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_resumed_run_repeats_requests(staleness: int) -> None:
    whole = Fake(staleness)
    whole.run(range(6))
    first = Fake(staleness)
    first.run(range(3))
    saved = first.queue.drain(60)
    assert sorted(saved) == list(range(3, min(3 + staleness, 6)))
    second = Fake(staleness)
    second.queue.restore(saved)
    second.run(range(3, 6))
    assert first.asked + second.asked == whole.asked


@pytest.mark.parametrize(("within_s", "saved"), [(60, [0, 1]), (0, [])])
def test_stop_ends_wait_and_checkpoint_gets_batches_in_time(within_s: float, saved: list[int]) -> None:
    fake = Fake(1)
    fake.gate.clear()
    fake.is_stopped = True
    threading.Timer(0.05, fake.gate.set).start()
    with pytest.raises(StopRequested):
        fake.take(0)
    assert sorted(fake.queue.drain(within_s)) == saved


@pytest.mark.parametrize("within_s", [60, 0])
def test_interrupted_batch_ends_or_restarts_before_new_weights(within_s: float) -> None:
    fake = Fake(1)
    fake.take(0)
    fake.queue.wait(lambda: 60)
    fake.gate.clear()
    fake.take(1)
    fake.is_stopped = True
    threading.Timer(0.05, fake.gate.set).start()
    fake.queue.wait(lambda: within_s)
    assert fake.ended == ([0, 1, 2] if within_s else [0, 1]), "before the caller sends weights"
    assert sorted(fake.queue.drain(60)) == ([2] if within_s else [])
    fake.is_stopped = False
    assert fake.take(2) == 2
    assert fake.asked.count("batch 2") == (1 if within_s else 2)


def test_checkpoint_does_not_wait_for_logged_turns() -> None:
    fake = Fake(1, is_journalled=True)
    fake.run(range(1))
    fake.queue.wait(lambda: 60)
    fake.gate.clear()
    fake.take(1)
    assert fake.queue.drain(60) == {}, "batch 2 is under way"
    fake.gate.set()
    assert fake.take(2) == 2 and fake.asked.count("batch 2") == 1


def test_further_prompts_follow_and_change_no_batch() -> None:
    fake, plain = Fake(2, rounds=2), Fake(2)
    plain.run(range(6))
    for step in range(6):
        assert fake.take(step) == step and fake.asked[-1] == f"batch {100 + step}"
        fake.asked.append(f"weights {step + 1}")
    assert [word for word in fake.asked if " 10" not in word] == plain.asked


# Rewards of two groups per round; equal rewards have no signal.
ROUNDS = [[(1.0, 1.0), (1.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)], [(0.0, 1.0), (1.0, 0.0)]]


def draw(number: int) -> list[Group]:
    return [make_group(2 * number + place, values) for place, values in enumerate(ROUNDS[number])]


class Drawn(Fake):
    """Return batches of `ROUNDS`; further ones may be stopped."""

    def finish(self, step: int, within_s: float | None) -> list[Group]:
        number = step // 100
        if number and self.is_stopped and within_s is None:
            raise StopRequested("asked to stop")
        return draw(number)


def test_stop_between_rounds_loses_no_batch() -> None:
    fake, again = Drawn(1, 3), Drawn(1, 3)
    fake.is_stopped = True
    fake.queue, again.queue = (make_queue(one, 1, 3, rounds=3, prompts=2) for one in (fake, again))
    with pytest.raises(StopRequested):
        fake.queue.take(0, Timer())
    saved = fake.queue.drain(60)
    assert sorted(saved) == [0, 1] and saved[0] == draw(0)
    again.queue.restore(saved)
    found = again.queue.take(0, Timer())
    assert [item.prompt.index for item in found.groups] == [1, 4] and found.num_rounds == 3
    assert again.asked == ["batch 100", "batch 200"], "the sampled batches are not requested again"


@pytest.mark.parametrize(
    ("max_rounds", "chosen", "num_rounds"),
    [
        (1, [0, 1], 1),  # unfiltered
        (2, [0, 1], 2),  # at the bound, a group without signal keeps its place in the batch
        (3, [1, 4], 3),
        (9, [1, 4], 3),  # full: no unneeded round
    ],
)
def test_rounds_end_with_full_batch_or_at_bound(max_rounds: int, chosen: list[int], num_rounds: int) -> None:
    found = collect_groups(draw, 2, max_rounds)
    assert [item.prompt.index for item in found.groups] == chosen
    assert found.num_rounds == num_rounds
    assert len(found.sampled) == 2 * num_rounds


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

    def __init__(self, *words: str) -> None:
        sampler: Any = Sampler()
        nowhere: Any = None
        self.rewards = Rewards()
        config = load_config(["+exp=demo", "trainer.prompts_per_step=4", "warmup.num_steps=10", *words])
        rollouts = build_rollouts(config, sampler, {"": Judge(self.rewards, None)}, None, "")
        self.schedule = PromptSchedule(config, [make_prompt(index) for index in range(NUM_PROMPTS)])
        self.queue = BatchQueue(config, nowhere, self.schedule, rollouts)

    def start(self, step: int, number: int = 0) -> Any:
        return self.queue.rollouts.start(*self.schedule.draw(step, number))

    def draw(self, step: int, number: int = 0) -> tuple[list[int], int]:
        """Return prompts and seed of a step."""
        prompts, spec = self.start(step, number)
        return [prompt.index for prompt in prompts], spec.seed

    def finish(self, step: int) -> Batch:
        return self.queue._finish(self.start(step), None)


def test_reward_model_scores_full_batch_in_order_others_score_arrivals(tmp_path: Path) -> None:
    def score(*words: str) -> tuple[list[list[str]], list[str]]:
        source = Source(*words)
        batch = source.finish(0)
        return source.rewards.asked, [group.prompt.text for group in batch.groups]

    asked, texts = score(f"reward.model.path={tmp_path}")
    assert asked == [texts] and len(texts) == 4
    continuous = ("rollout.inflight_weight_updates=true", "rollout.max_off_policy_steps=1")
    for words in ((), ("reward.model.path=/models/reward", *continuous)):
        asked, texts = score(*words)
        assert asked == [texts[1::2], texts[0::2]]


def test_resumed_step_repeats_prompts_and_seeds() -> None:
    first, again = (Source("algorithm.dynamic_sampling_rounds=3") for _ in range(2))
    for step in range(NUM_PROMPTS // 4):
        first.start(step)
    assert first.draw(3) == again.draw(3) and first.draw(3, 2) == again.draw(3, 2)
    asked = [again.draw(step, number) for step in (3, 4) for number in (0, 1, 2)]
    assert len({seed for _, seed in asked}) == len({tuple(rows) for rows, _ in asked}) == 6
    # An epoch uses each prompt once.
    assert sorted(row for step in range(10) for row in again.draw(step)[0]) == list(range(NUM_PROMPTS))


def test_curriculum_depends_only_on_position_and_results() -> None:
    """After a restart from the checkpoint, a step has the same rows."""
    word = "data.curriculum={revisit: 0.0}"
    rows = Source(word).draw(2)[0]
    found = []
    for _ in range(2):
        again = Source(word)
        again.schedule.find_rates = lambda: {str(index): [8.0, 8] for index in rows}
        found.append(again.draw(2)[0])
    assert found[0] == found[1] and not set(found[0]) & set(rows)
    assert len(set(found[0])) == 4 and Source().schedule.find_rates() == {}
