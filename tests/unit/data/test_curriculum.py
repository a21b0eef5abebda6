from collections import Counter

import pytest

from slurm_rl.config.data import CurriculumConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.curriculum import choose_rows, note_scores
from slurm_rl.data.mixing import BLOCK, MixedOrder, Quotas, list_candidates
from slurm_rl.data.split import PromptOrder
from slurm_rl.errors import ConfigError
from slurm_rl.trainers.grpo.step_metrics import curriculum_metrics

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
