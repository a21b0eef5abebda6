"""All sampling settings on a real vLLM engine: logprobs of the sampled distribution, and stops."""

from typing import Any

import pytest

from tests.train.conftest import run_script

pytestmark = pytest.mark.slow
EOS, SEVEN, STOP_TOKEN = 1, 9, 4


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("sampling_script", tmp_path_factory.mktemp("sampling"))


@pytest.mark.parametrize(
    "setting", ["plain", "top_k", "min_p", "top_p", "repetition_penalty", "all", "stop", "stop_token", "greedy"]
)
def test_logprobs_are_of_sampled_distribution(sampled: dict[str, Any], setting: str) -> None:
    assert max(one["difference"] for one in sampled[setting]) < 1e-4


def read(tokens: list[int]) -> str:
    """Padding and end of text have no characters."""
    return "".join("0123456789+="[token - 2] for token in tokens if token > 1)


@pytest.mark.parametrize(
    ("setting", "last", "absent"), [("stop", SEVEN, ("7", "12")), ("stop_token", STOP_TOKEN, ("2",))]
)
def test_stop_is_in_tokens_not_in_text(
    sampled: dict[str, Any], setting: str, last: int, absent: tuple[str, ...]
) -> None:
    stopped = [one for one in sampled[setting] if one["tokens"][-1] == last]
    assert stopped, "none came to it"
    for one in stopped:
        assert not one["truncated"]
        assert one["text"] == read(one["tokens"][:-1])
        assert not any(text in one["text"] for text in absent)


def test_completion_without_stop_is_truncated(sampled: dict[str, Any]) -> None:
    rest = [one for setting in ("stop", "plain") for one in sampled[setting] if one["truncated"]]
    assert rest
    assert all(len(one["tokens"]) == 24 and one["tokens"][-1] != EOS for one in rest)


def test_greedy_decoding_stops_like_sampling(sampled: dict[str, Any]) -> None:
    for one in sampled["greedy"]:
        assert one["truncated"] or one["tokens"][-1] in (EOS, SEVEN, STOP_TOKEN)
        assert "7" not in one["text"] and "12" not in one["text"]


def test_seed_determines_completion(sampled: dict[str, Any]) -> None:
    assert sampled["again"] == sampled["alone"] == [one["tokens"] for one in sampled["plain"]]
    first, second = sampled["one_seed"][:4], sampled["one_seed"][4:]
    assert first == sampled["again"][:4]
    assert len({tuple(tokens) for tokens in first + second}) == 8, "two seeds or two completions share their numbers"


def test_engine_gets_its_arguments(sampled: dict[str, Any]) -> None:
    assert sampled["engine_args"] == 96


def test_later_prompts_are_read_in_next_step(sampled: dict[str, Any]) -> None:
    """If a prompt is prefilled in parts, vLLM fails on CPU random number generators."""
    assert sampled["crowded"] == sampled["one_by_one"]
