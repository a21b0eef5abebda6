import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.algorithms.packing import count_shared, unite
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.models.row_layout import build_shared_layout


def sequence(prompt: list[int], completion: list[int]) -> TrainSequence:
    return TrainSequence(token_ids=np.asarray([*prompt, *completion]), trained_from=len(prompt))


GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4)), min_size=1)


def build(groups: list[tuple[int, list[int]]]) -> list[TrainSequence]:
    return [sequence([i + 7] * n, [3] * length) for i, (n, lengths) in enumerate(groups) for length in lengths]


def test_prompt_prefix_is_not_shared() -> None:
    items = [sequence([1, 2], [5]), sequence([1, 2], [6, 7]), sequence([1], [2]), sequence([1, 2], [5])]
    assert count_shared(items) == [0, 2, 0, 0]


@given(GROUPS, st.integers(4, 40))
def test_units_share_one_prompt_within_budget(groups: list[tuple[int, list[int]]], budget: int) -> None:
    items = build(groups)
    lengths, shared = [len(item.token_ids) for item in items], count_shared(items)
    units, tokens = unite(lengths, shared, budget)
    assert [index for unit in units for index in unit] == list(range(len(items)))
    for unit, count in zip(units, tokens, strict=True):
        prompts = {tuple(items[i].token_ids[: items[i].trained_from]) for i in unit}
        assert len(prompts) == 1
        assert count == len(next(iter(prompts))) + sum(lengths[i] - items[i].trained_from for i in unit)
        assert count <= budget or len(unit) == 1


@given(GROUPS)
def test_token_sees_only_its_own_past(groups: list[tuple[int, list[int]]]) -> None:
    items = build(groups)
    layout = build_shared_layout([len(item.token_ids) for item in items], count_shared(items))
    assert layout.mask is not None
    starts = np.cumsum([0, *(len(item.token_ids) for item in items)])
    for start, end in itertools.pairwise(starts):
        places = layout.places[start:end]
        row, columns = places[0] // layout.width, places % layout.width
        assert layout.position_ids[row, columns].tolist() == list(range(end - start))
        for index, column in enumerate(columns):
            seen = layout.mask[row, 0, column].nonzero()[:, 0].tolist()
            assert seen == columns[: index + 1].tolist()
    assert len(layout.places.unique()) == sum(n + sum(lengths) for n, lengths in groups)
