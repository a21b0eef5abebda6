from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.rollout.sampling import split_evenly
from slurm_rl.trainers.grpo.step_metrics import accuracy, sampling_metrics
from tests.unit.rl.test_batch import group, result


@given(st.integers(0, 50), st.integers(1, 9))
def test_split_evenly_returns_bounds_of_even_parts(num_items: int, num_parts: int) -> None:
    bounds = split_evenly(num_items, num_parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, num_items, num_parts + 1)
    sizes = [end - start for start, end in pairwise(bounds)]
    assert max(sizes) - min(sizes) <= 1


def test_seeds_differ_by_index_and_repeat() -> None:
    assert derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 3)
    places = [(run, what, step) for run in range(3) for what in ("rollout", "eval") for step in range(50)]
    assert len({derive_seed(*place) for place in places}) == len(places)
    assert all(0 <= derive_seed(*place) < 2**63 for place in places)


def test_sampling_metrics_count_failures_apart_from_zeros() -> None:
    metrics = sampling_metrics([group([1.0, 0.0], [[9, 1], [8]]), group([1.0, None], [[9], [9]])])
    assert metrics["reward/mean"] == 2 / 3
    assert metrics["reward/failed"] == 1.0
    assert metrics["reward/failed_crash"] == 1.0
    assert metrics["tokens/sampled"] == 5.0
    assert metrics["completion/length_mean"] == 1.25


def test_scorer_metrics_are_averaged_where_reported() -> None:
    from dataclasses import replace

    scored = group([1.0, 0.0, None], [[9], [8], [7]])
    results = [replace(scored.results[0], parts={"length": 3.0, "rare": 5.0}), *scored.results[1:]]
    results[1] = replace(results[1], parts={"length": 0.0})
    metrics = sampling_metrics([replace(scored, results=results)])
    assert metrics["score/length"] == 1.5
    assert metrics["score/rare"] == 5.0


def test_accuracy_counts_failure_as_wrong() -> None:
    from dataclasses import replace

    right, failed = replace(result(1.5), parts={"format": 1.0, "math": 1.0}), result(None)
    scored = replace(group([1.0, None], [[9], [8]]), results=[right, failed])
    assert accuracy([scored]) == 0.5
