from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.config.data import CurriculumConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.curriculum import choose_rows, note_scores
from slurm_rl.data.mixing import BLOCK, MixedOrder, Quotas, build_order, list_candidates
from slurm_rl.data.split import PromptOrder
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.trainers.grpo.step_metrics import curriculum_metrics

WEIGHTS = {"sums": 2.0, "games": 1.0, "rare": 0.05}
SIZES = {"sums": 7, "games": 40, "rare": 3}
SOURCES = [name for name, size in SIZES.items() for _ in range(size)]
weights = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60).map(lambda n: n / 10), min_size=1)


@given(weights)
def test_blocks_have_exact_quotas_and_bounded_drift(found: dict[str, float]) -> None:
    quotas, total = Quotas(found), sum(Fraction(str(weight)) for weight in found.values())
    shares = {name: Fraction(str(weight)) / total for name, weight in found.items()}
    for block in range(12):
        of_block = quotas.of(block)
        assert sum(of_block.values()) == BLOCK and min(of_block.values()) >= 0
        for name, share in shares.items():
            assert abs(of_block[name] - BLOCK * share) < 2
            assert abs(quotas.before(block)[name] - block * BLOCK * share) < 1


def test_remainder_of_thirds_is_carried() -> None:
    quotas = Quotas({"a": 1, "b": 1, "c": 1})
    assert [tuple(quotas.of(block).values()) for block in range(3)] == [
        (334, 333, 333),
        (333, 334, 333),
        (333, 333, 334),
    ]
    assert quotas.before(3) == {"a": 1000, "b": 1000, "c": 1000}


def test_order_keeps_quotas_and_covers_sources() -> None:
    order, quotas = MixedOrder(SOURCES, WEIGHTS, seed=5), Quotas(WEIGHTS)
    taken = order.take(0, 3 * BLOCK)
    for block in range(3):
        rows = taken[block * BLOCK : (block + 1) * BLOCK]
        assert Counter(SOURCES[row] for row in rows) == quotas.of(block)
    for name, size in SIZES.items():
        rows = [row for row in taken if SOURCES[row] == name]
        for epoch in range(len(rows) // size):
            assert len(set(rows[epoch * size : (epoch + 1) * size])) == size


@settings(max_examples=30)
@given(st.integers(0, 2500), st.integers(0, 700), st.integers(0, 700), st.integers(0, 9))
def test_resumed_order_is_exact(a: int, n: int, m: int, seed: int) -> None:
    for build in (lambda: MixedOrder(SOURCES, WEIGHTS, seed), lambda: PromptOrder(4 * seed + 1, seed)):
        whole = build().take(a, n + m)
        # New objects, as after a restart.
        assert build().take(a, n) + build().take(a + n, m) == whole and len(whole) == n + m


def test_order_follows_seed_not_table_order() -> None:
    first = MixedOrder(SOURCES, WEIGHTS, seed=1).take(0, 50)
    assert first == MixedOrder(SOURCES, dict(reversed(WEIGHTS.items())), seed=1).take(0, 50)
    assert first != MixedOrder(SOURCES, WEIGHTS, seed=2).take(0, 50)


def test_unnamed_single_source_keeps_plain_order() -> None:
    assert build_order([""] * 50, {}, seed=3).take(17, 90) == PromptOrder(50, 3).take(17, 90)


def test_source_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="at least one row"):
        build_order(["a"], {"a": 1, "b": 1}, seed=0)


rows = st.integers(1, 40)
seeds = st.integers(0, 2**32)


@given(rows, seeds, st.integers(0, 50))
def test_epoch_has_each_row_once(num_rows: int, seed: int, epoch: int) -> None:
    assert sorted(PromptOrder(num_rows, seed).take(epoch * num_rows, num_rows)) == list(range(num_rows))


def test_epochs_and_seeds_differ() -> None:
    order = PromptOrder(50, seed=0)
    assert order.take(0, 50) != order.take(50, 50)
    assert order.take(0, 50) != PromptOrder(50, seed=1).take(0, 50)
    # Seed 1 must not be seed 0 one epoch later.
    assert order.take(50, 50) != PromptOrder(50, seed=1).take(0, 50)


def test_order_is_same_in_every_process() -> None:
    assert PromptOrder(6, seed=0).take(0, 12) == [4, 3, 1, 2, 5, 0, 0, 4, 5, 2, 3, 1]


def test_order_of_no_rows_is_error() -> None:
    with pytest.raises(DataError, match="got 0"):
        PromptOrder(0, seed=0)


CONFIG = CurriculumConfig(revisit=0.0)
IDS = [str(row) for row in range(6)]
RATES = {"0": [8.0, 8], "1": [0.0, 16], "2": [3.0, 8], "3": [4.0, 4]}


def choose(*candidates: list[int], config: CurriculumConfig = CONFIG, position: int = 0) -> list[int]:
    return choose_rows(candidates, IDS, RATES, config, seed=0, position=position)


def test_first_sometimes_solved_row_is_chosen() -> None:
    # Always solved, never solved, sometimes solved, and too few results.
    assert choose([0, 1, 2, 3]) == [2] and choose([0, 1, 3, 2]) == [3] and choose([0, 5, 2]) == [5]
    assert choose([1, 0]) == [1]
    wide = CurriculumConfig(low=0.4, high=0.9, min_samples=4, revisit=0.0)
    assert choose([2, 3, 4], config=wide) == [4]


def test_step_repeats_no_row_while_others_remain() -> None:
    assert choose([2, 4], [2, 4], [2, 4]) == [2, 4, 2]


def test_share_of_places_is_unfiltered() -> None:
    places = [[0, 2]] * 1
    half = CurriculumConfig(revisit=0.5)
    found = [choose(*places, config=half, position=place)[0] for place in range(2000)]
    assert 0.45 < Counter(found)[0] / 2000 < 0.55
    assert found == [choose(*places, config=half, position=place)[0] for place in range(2000)]
    assert choose(*places, config=CurriculumConfig(revisit=1.0)) == [0]


def test_step_results_are_summed_without_failures() -> None:
    rates: dict[str, list[float]] = {}
    note_scores(rates, [("a", [1.0, 0.0, None]), ("b", [None])])
    note_scores(rates, [("a", [0.5, 3.0])])
    assert rates == {"a": [2.5, 4]}
    assert curriculum_metrics(RATES, CONFIG) == {
        "curriculum/sampled": 4.0,
        "curriculum/too_easy": 1.0,
        "curriculum/too_hard": 1.0,
    }


def test_candidates_of_mixture_keep_shares_and_resume() -> None:
    sources = ["a"] * 9 + ["b"] * 5
    order = MixedOrder(sources, {"a": 2, "b": 1}, seed=3)
    whole = order.candidates(0, 2 * BLOCK, 3)
    assert whole == order.candidates(0, 700, 3) + order.candidates(700, 2 * BLOCK - 700, 3)
    assert all(len({sources[row] for row in rows}) == 1 and len(rows) == 3 for rows in whole)
    counts = Counter(sources[rows[0]] for rows in whole)
    assert counts == {name: Quotas({"a": 2, "b": 1}).before(2)[name] for name in "ab"}
    # One candidate per row gives the plain order.
    assert [rows[0] for rows in order.candidates(50, 400, 1)] == order.take(50, 400)
    assert list_candidates(PromptOrder(5, 0), 2, 2, 2) == [PromptOrder(5, 0).take(4, 2), PromptOrder(5, 0).take(6, 2)]


def test_empty_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.curriculum\.low must be below"):
        load_config(["+exp=demo", "+data.curriculum={low: 0.5, high: 0.5}"])
    assert load_config(["+exp=demo", "data.curriculum={}"]).data.curriculum == CurriculumConfig()
