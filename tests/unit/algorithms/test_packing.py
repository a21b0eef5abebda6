from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.algorithms.packing import count_shared, distribute, pack_by_tokens, unite
from slurm_rl.algorithms.sequences import TrainSequence

LENGTHS = st.lists(st.integers(1, 40), max_size=40)
BUDGET = st.integers(1, 60)
WORKERS = st.integers(1, 9)


def test_first_fit_decreasing_by_hand() -> None:
    # Longest first: 5 opens bin 0, 3 opens bin 1, the other 3 fills it to 6, 2 fits in neither.
    assert pack_by_tokens([5, 3, 3, 2], 6) == [[0], [1, 2], [3]]
    # 4 opens bin 0, 3 opens bin 1, 2 goes first into bin 0, the last 2 into bin 1.
    assert pack_by_tokens([2, 4, 3, 2], 6) == [[0, 1], [2, 3]]


def test_work_is_split_between_workers() -> None:
    # First-fit would make bins of 800 and 200 tokens, and one worker would wait for the other.
    workers = distribute([100] * 10, 2, 800)
    assert [[len(m) for m in worker] for worker in workers] == [[5], [5]]


def test_full_bins_are_kept_if_spreading_overflows() -> None:
    # Only 3+3 and 2+2+2 fit two bins of 6; longest into the emptiest gives 3+2+2 and 3+2.
    assert distribute([3, 3, 2, 2, 2], 1, 6) == [[[0, 1], [2, 3, 4]]]


def test_few_bins_are_padded_with_empty_ones() -> None:
    # First-fit makes 6 bins of 3+3 and 6 bins of 2+2+2. Over 13 bins, each 3 gets its own bin with room for one 2: 12
    # of these and three in the last bin hold 15 of the 18.
    workers = distribute([3] * 12 + [2] * 18, 13, 6)
    assert sorted(len(members) for (members,) in workers) == [0] + [2] * 6 + [3] * 6


def test_oversized_sequence_does_not_stop_spreading() -> None:
    # First-fit would put both 2s together and leave the third worker idle.
    assert distribute([9, 2, 2], 3, 4) == [[[0]], [[1]], [[2]]]


@given(lengths=LENGTHS, budget=BUDGET)
def test_pack_properties(lengths: list[int], budget: int) -> None:
    bins = pack_by_tokens(lengths, budget)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(members for members in bins)
    assert all(len(members) == 1 or sum(lengths[i] for i in members) <= budget for members in bins)
    # First-fit: no two bins could be merged.
    loads = sorted(sum(lengths[i] for i in members) for members in bins)
    assert len(loads) < 2 or loads[0] + loads[1] > budget
    assert bins == pack_by_tokens(lengths, budget)


@given(lengths=LENGTHS, budget=BUDGET, padded=st.booleans())
def test_pack_takes_first_bin_with_room(lengths: list[int], budget: int, padded: bool) -> None:
    """The definition, which takes quadratic time in Python."""
    expected: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for members in expected:
            together = [lengths[i] for i in (*members, index)]
            if (max(together) * len(together) if padded else sum(together)) <= budget:
                members.append(index)
                break
        else:
            expected.append([index])
    assert pack_by_tokens(lengths, budget, padded=padded) == [sorted(members) for members in expected]


@given(lengths=LENGTHS, num_workers=WORKERS, budget=BUDGET)
def test_distribute_properties(lengths: list[int], num_workers: int, budget: int) -> None:
    workers = distribute(lengths, num_workers, budget)
    micro_batches = [members for worker in workers for members in worker]
    assert len(workers) == num_workers
    assert sorted(i for members in micro_batches for i in members) == list(range(len(lengths)))
    assert all(len(m) <= 1 or sum(lengths[i] for i in m) <= budget for m in micro_batches)
    assert workers == distribute(lengths, num_workers, budget)

    # Each worker has the same number of rounds, and no more than first-fit needs.
    fewest = -(-len(pack_by_tokens(lengths, budget)) // num_workers)
    assert {len(worker) for worker in workers} == {fewest}

    # Loads differ by at most one micro-batch.
    loads = [[sum(lengths[i] for i in members) for members in worker] for worker in workers]
    totals = [sum(worker) for worker in loads]
    assert max(totals) - min(totals) <= max((load for worker in loads for load in worker), default=0)

    # Rounds are sorted by length: the shortest of a round is at least as long as the longest of the next.
    rounds = list(zip(*loads, strict=True))
    assert all(min(a) >= max(b) for a, b in pairwise(rounds))


@given(LENGTHS, WORKERS, BUDGET)
def test_padding_counts_in_rows_of_one_sequence(lengths: list[int], num_workers: int, budget: int) -> None:
    workers = distribute(lengths, num_workers, budget, padded=True)
    batches = [members for worker in workers for members in worker]
    assert sorted(index for members in batches for index in members) == list(range(len(lengths)))
    assert len({len(worker) for worker in workers}) == 1
    for members in batches:
        assert len(members) <= 1 or len(members) * max(lengths[index] for index in members) <= budget


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
