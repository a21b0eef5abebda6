"""Dynamic sampling over rounds made by hand."""

from __future__ import annotations

import pytest

from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rl.groups import Completion, Group
from slurm_rl.rl.loop.collect import collect_groups

# Rewards of the two groups of each round: equal ones carry no signal.
ROUNDS = [[(1.0, 1.0), (1.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)], [(0.0, 1.0), (1.0, 0.0)]]


def group(index: int, values: tuple[float, float]) -> Group:
    item = RewardItem(completion="7", answer="7")
    prompt = EncodedPrompt(index=index, token_ids=[5], text="3", answer="7")
    results = [RewardResult(item=item, value=value) for value in values]
    return Group(prompt, [Completion([9], [-0.5], "7", False, 0)] * 2, results)


def draw(round_number: int) -> list[Group]:
    return [group(2 * round_number + i, values) for i, values in enumerate(ROUNDS[round_number])]


@pytest.mark.parametrize(
    ("max_rounds", "chosen", "num_rounds"),
    [
        (1, [0, 1], 1),  # as it came
        (2, [0, 1], 2),  # the bound: one without signal fills the batch, in its place
        (3, [1, 4], 3),
        (9, [1, 4], 3),  # full: no round more than needed
    ],
)
def test_rounds_end_when_the_batch_is_full_or_at_the_bound(max_rounds: int, chosen: list[int], num_rounds: int) -> None:
    found = collect_groups(draw, 2, max_rounds)
    assert [item.prompt.index for item in found.groups] == chosen
    assert found.num_rounds == num_rounds
    assert len(found.sampled) == 2 * num_rounds
