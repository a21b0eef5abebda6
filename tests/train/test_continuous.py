"""Weight updates during completions on a real vLLM engine, in one process for all tests."""

from typing import Any

import pytest

from tests.train.conftest import run_script


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("continuous_script", tmp_path_factory.mktemp("continuous"))


def test_token_logprob_matches_its_weight_version(sampled: dict[str, Any]) -> None:
    assert sampled["difference"] < 1e-4
    assert sampled["probe"] < 1e-4


def test_completions_in_flight_continue_with_new_weights(sampled: dict[str, Any]) -> None:
    versions = [[version for version, _ in runs] for runs in sampled["versions"]]
    assert [sum(count for _, count in runs) for runs in sampled["versions"]] == sampled["lengths"]
    assert all(of == sorted(of) for of in versions), "an older version came back"
    assert any({0, 1} <= set(of) for of in versions[:6]), "no completion saw the first update"
    assert any({1, 2} <= set(of) for of in versions), "no completion saw the second update"


def test_second_batch_starts_before_first_ends(sampled: dict[str, Any]) -> None:
    first, second = sampled["versions"][:6], sampled["versions"][6:]
    assert min(runs[0][0] for runs in second) < max(runs[-1][0] for runs in first)
