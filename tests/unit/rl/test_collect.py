import pytest

from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.batch_queue import collect_groups
from tests.unit.rl.batch_kit import make_queue

# Rewards of two groups per round; equal rewards have no signal.
ROUNDS = [[(1.0, 1.0), (1.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)], [(0.0, 1.0), (1.0, 0.0)]]


def group(index: int, values: tuple[float, float]) -> Group:
    item = RewardItem(completion="7", answer="7")
    prompt = EncodedPrompt(index=index, token_ids=[5], text="3", answer="7")
    results = [RewardResult(item=item, value=value) for value in values]
    return Group(prompt, [Trajectory([9], [-0.5], "7", False, 0)] * 2, results)


def draw(round_number: int) -> list[Group]:
    return [group(2 * round_number + i, values) for i, values in enumerate(ROUNDS[round_number])]


class Source:
    """Return batches of `ROUNDS`; further ones may be stopped."""

    def __init__(self, stops: bool) -> None:
        self.stops, self.asked = stops, list[int]()

    def start(self, step: int, number: int = 0) -> int:
        self.asked.append(number)
        return number

    def finish(self, number: int, within_s: float | None) -> list[Group]:
        if number and self.stops and within_s is None:
            raise StopRequested("asked to stop")
        return draw(number)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_rounds_are_drawn_while_sampling_ahead(staleness: int) -> None:
    source = Source(stops=False)
    found = make_queue(source, staleness, 3, rounds=3, prompts=2).take(0, Timer())
    assert [item.prompt.index for item in found.groups] == [1, 4] and found.num_rounds == 3
    assert source.asked == [0] * (staleness + 1) + [1, 2]


def test_stop_between_rounds_loses_no_batch() -> None:
    source = Source(stops=True)
    queue = make_queue(source, 1, 3, rounds=3, prompts=2)
    with pytest.raises(StopRequested):
        queue.take(0, Timer())
    saved = queue.drain(60)
    assert sorted(saved) == [0, 1] and saved[0] == draw(0)
    again = Source(stops=False)
    queue = make_queue(again, 1, 3, rounds=3, prompts=2)
    queue.restore(saved)
    assert [item.prompt.index for item in queue.take(0, Timer()).groups] == [1, 4]
    assert again.asked == [1, 2], "what was sampled before is not asked for again"


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
