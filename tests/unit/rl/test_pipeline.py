import threading
from pathlib import Path

import pytest

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.rollout_files import load_rollouts, save_rollouts
from slurm_rl.trainers.grpo.step_metrics import staleness_metrics
from tests.unit.rl.batch_kit import make_queue


def group_of(step: int, version: int = 0) -> Group:
    images = (ImageSpan(source="/data/1.png", start=0, num_tokens=1),)
    prompt = EncodedPrompt(index=step, token_ids=[1, 2], text="1+2=", answer="3", images=images)
    completions = [Trajectory([3, 0], [-0.1, -1.0000001192092896], "3", False, version)]
    item = RewardItem(completion="3", answer="3")
    return Group(prompt, completions, [RewardResult(item=item, value=1.0, parts={"arithmetic": 1.0})])


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
        return [group_of(step)]

    def take(self, step: int) -> int:
        return self.queue.take(step, Timer()).sampled[0].prompt.index

    def run(self, steps: range) -> None:
        for step in steps:
            assert self.take(step) == step
            self.asked.append(f"weights {step + 1}")


def test_synchronous_batches_use_newest_weights() -> None:
    fake = Fake(0, num_steps=3)
    fake.run(range(3))
    assert fake.asked == ["batch 0", "weights 1", "batch 1", "weights 2", "batch 2", "weights 3"]


def test_staleness_2_requests_two_steps_ahead() -> None:
    fake = Fake(2, num_steps=4)
    fake.run(range(4))
    assert fake.asked == [
        *["batch 0", "batch 1", "batch 2", "weights 1", "batch 3", "weights 2", "weights 3", "weights 4"]
    ]


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


def test_settled_batches_are_taken_once() -> None:
    fake = Fake(2)
    fake.run(range(1))
    fake.queue.drain(60)
    fake.run(range(1, 6))
    assert fake.asked.count("batch 1") == fake.asked.count("batch 2") == 1


def test_stop_ends_wait_and_checkpoint_gets_batch() -> None:
    fake = Fake(1)
    fake.gate.clear()
    fake.is_stopped = True
    threading.Timer(0.05, fake.gate.set).start()
    with pytest.raises(StopRequested):
        fake.take(0)
    assert sorted(fake.queue.drain(60)) == [0, 1]


def test_late_batch_is_excluded() -> None:
    fake = Fake(1)
    fake.is_stopped = True
    with pytest.raises(StopRequested):
        fake.take(0)
    assert fake.queue.drain(0) == {}


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


def test_weights_may_wait_for_idle_engines() -> None:
    fake = Fake(1)
    fake.run(range(1))
    fake.queue.wait(lambda: 60)
    fake.gate.clear()
    fake.take(1)
    threading.Timer(0.1, fake.gate.set).start()
    fake.queue.wait(lambda: 60)
    assert fake.gate.is_set()


def test_rollouts_survive_checkpoint_bit_exactly(tmp_path: Path) -> None:
    batches = {7: [group_of(7), group_of(8)], 8: [group_of(9, version=3)]}
    save_rollouts(tmp_path, batches)
    assert load_rollouts(tmp_path) == batches
    assert load_rollouts(tmp_path / "nowhere") == {}


def test_staleness_is_mean_age_of_weights() -> None:
    groups = [group_of(0, version=3), group_of(1, version=5)]
    assert staleness_metrics(groups, 5, mixed=False) == {"rollout/staleness": 1.0}
