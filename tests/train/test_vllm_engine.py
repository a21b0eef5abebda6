"""Sampling and weight updates on a real vLLM engine, which runs in one process for all tests of a subject."""

from typing import Any

import pytest

from tests.tiny_moe import FAMILIES as MIXTURES
from tests.train.conftest import run_script


@pytest.fixture(scope="module", params=["whole", "adapters"])
def sampled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("continuous_script", tmp_path_factory.mktemp("continuous"), request.param)


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


FAMILIES = [name if name == "qwen3_moe" else pytest.param(name, marks=pytest.mark.slow) for name in MIXTURES]


@pytest.fixture(scope="module", params=FAMILIES)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("sync_script", tmp_path_factory.mktemp("sync"), request.param)


@pytest.mark.parametrize("transport", ["store", "gloo", "merged"])
def test_experts_agree_after_each_sync(results: dict[str, Any], transport: str) -> None:
    assert len(results[transport]) == 3
    assert max(results[transport]) < 2e-6, "an engine computed with the experts of an earlier load"


@pytest.mark.parametrize("weights", ["whole", "merged"])
def test_first_sync_raises_if_engine_ignores_weights(results: dict[str, Any], weights: str) -> None:
    assert "must agree with the policy" in results["unused"][weights]
    assert "these are the first weights that it got" in results["unused"][weights]
    assert "weight_check_tolerance=" not in results["unused"][weights].partition("Next: ")[2], (
        "rounding is not the cause"
    )


EOS, SEVEN, STOP_TOKEN = 1, 9, 4


@pytest.fixture(scope="module")
def by_setting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("sampling_script", tmp_path_factory.mktemp("sampling"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["plain", "top_k", "min_p", "top_p", "repetition_penalty", "all", "stop", "stop_token", "greedy"]
)
def test_logprobs_are_of_sampled_distribution(by_setting: dict[str, Any], setting: str) -> None:
    assert max(one["difference"] for one in by_setting[setting]) < 1e-4


def read(tokens: list[int]) -> str:
    """Padding and end of text have no characters."""
    return "".join("0123456789+="[token - 2] for token in tokens if token > 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "last", "absent"), [("stop", SEVEN, ("7", "12")), ("stop_token", STOP_TOKEN, ("2",))]
)
def test_stop_is_in_tokens_not_in_text(
    by_setting: dict[str, Any], setting: str, last: int, absent: tuple[str, ...]
) -> None:
    stopped = [one for one in by_setting[setting] if one["tokens"][-1] == last]
    assert stopped, "none came to it"
    for one in stopped:
        assert not one["truncated"]
        assert one["text"] == read(one["tokens"][:-1])
        assert not any(text in one["text"] for text in absent)


@pytest.mark.slow
def test_completion_without_stop_is_truncated(by_setting: dict[str, Any]) -> None:
    rest = [one for setting in ("stop", "plain") for one in by_setting[setting] if one["truncated"]]
    assert rest
    assert all(len(one["tokens"]) == 24 and one["tokens"][-1] != EOS for one in rest)


@pytest.mark.slow
def test_greedy_decoding_stops_like_sampling(by_setting: dict[str, Any]) -> None:
    for one in by_setting["greedy"]:
        assert one["truncated"] or one["tokens"][-1] in (EOS, SEVEN, STOP_TOKEN)
        assert "7" not in one["text"] and "12" not in one["text"]


@pytest.mark.slow
def test_seed_determines_completion(by_setting: dict[str, Any]) -> None:
    assert by_setting["again"] == by_setting["alone"] == [one["tokens"] for one in by_setting["plain"]]
    first, second = by_setting["one_seed"][:4], by_setting["one_seed"][4:]
    assert first == by_setting["again"][:4]
    assert len({tuple(tokens) for tokens in first + second}) == 8, "two seeds or two completions share their numbers"


@pytest.mark.slow
def test_engine_gets_its_arguments(by_setting: dict[str, Any]) -> None:
    assert by_setting["engine_args"] == 96


@pytest.mark.slow
def test_later_prompts_are_read_in_next_step(by_setting: dict[str, Any]) -> None:
    """If a prompt is prefilled in parts, vLLM fails on CPU random number generators."""
    assert by_setting["crowded"] == by_setting["one_by_one"]
