"""Sampling of each source of a mixture: what it may say, what is refused, and which correction follows."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config, parse_config
from slurm_rl.config.sources import each_set, each_source, own_temperatures
from slurm_rl.config.ways import WaysConfig
from slurm_rl.errors import ConfigError
from tests.unit.config.test_sources import load

GAMES = "+data.sources.games"
WAYS = {
    "temperature": 0.5,
    "max_tokens": 3,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "stop": ("x",),
    "stop_token_ids": (3,),
}
WORDS = {"stop": "[x]", "stop_token_ids": "[3]"}
BENDING = ("top_p", "top_k", "min_p", "repetition_penalty")


def word(key: str, prefix: str = GAMES) -> str:
    return f"{prefix}.{key}={WORDS.get(key, WAYS[key])}"


@pytest.mark.parametrize("key", WAYS)
def test_a_source_and_a_set_have_the_sampling_that_they_say_and_the_rest_of_the_run(key: str) -> None:
    config = load(word(key), "+eval.sets.big.data=addition", word(key, "+eval.sets.big"))
    games, sums = each_source(config).values()
    assert sums.rollout == config.rollout
    for one in (games, each_set(config)["big"]):
        assert one.rollout == config.rollout.model_copy(update={key: WAYS[key]})
    assert parse_config(config.model_dump(mode="json")) == config


def test_all_keys_are_tried_here() -> None:
    assert {*WaysConfig.model_fields, "temperature"} - {"env", "reward"} == set(WAYS)


def test_a_source_may_have_no_stops_where_the_run_has_some() -> None:
    config = load("rollout.stop=[x]", "rollout.stop_token_ids=[3]", f"{GAMES}.stop=[]", f"{GAMES}.stop_token_ids=[]")
    games, sums = (one.rollout for one in each_source(config).values())
    assert (games.stop, games.stop_token_ids) == ((), ()) and (sums.stop, sums.stop_token_ids) == (("x",), (3,))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {}),
        (["rollout.temperature=0.7"], {}),
        (["rollout.temperature=0.7", f"{GAMES}.temperature=0.7", "+data.sources.sums.temperature=0.7"], {}),
        ([f"{GAMES}.temperature=0.7"], {"games": 0.7, "sums": 1.0}),
        ([f"{GAMES}.temperature=0.7", "+data.sources.sums.temperature=0.7"], {"games": 0.7, "sums": 0.7}),
    ],
)
def test_sequences_say_their_temperature_where_not_all_have_that_of_the_run(
    words: list[str], found: dict[str, float]
) -> None:
    assert own_temperatures(load(*words)) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["temperature=0"], "data.sources.games.temperature.*greater than 0.*got 0"),
        (["temperature=-1"], "data.sources.games.temperature.*greater than 0.*got -1"),
        (["temperature=nan"], "data.sources.games.temperature.*finite.*got nan"),
        (["temperature=inf"], "data.sources.games.temperature.*finite.*got inf"),
        (["temperature=warm"], "data.sources.games.temperature.*number.*got .?warm"),
        (["temperature=0.005"], "data.sources.games: temperature must be at least 0.01.*got 0.005. Next"),
        (["top_p=0"], "data.sources.games.top_p"),
        (["min_p=1"], "data.sources.games.min_p"),
        (["top_k=-1"], "data.sources.games.top_k"),
        (["repetition_penalty=0"], "data.sources.games.repetition_penalty"),
        (["stop=x"], "data.sources.games.stop"),
        (["num_samples=2"], "data.sources.games.num_samples"),
    ],
)
def test_wrong_sampling_is_named_with_its_source(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*(f"{GAMES}.{one}" for one in words))


def test_a_temperature_that_engines_would_not_sample_with_is_refused_everywhere() -> None:
    for words in (["rollout.temperature=0.005"], ["+eval.sets.big.data=addition", "++eval.sets.big.temperature=0.005"]):
        with pytest.raises(ConfigError, match=r"temperature must be at least 0\.01"):
            load_config(["+exp=demo", *words])


@pytest.mark.parametrize("key", BENDING)
def test_a_source_that_bends_the_distribution_is_corrected_or_refused_as_a_run_is(key: str) -> None:
    assert load(word(key)).correction_kind == "token_tis"
    # What no source is sampled with bends nothing.
    own = [f"+data.sources.{name}.{key}={load().rollout.model_dump()[key]}" for name in ("games", "sums")]
    assert load(f"rollout.{key}={WAYS[key]}", *own).correction_kind is None
    with pytest.raises(ConfigError, match=r"data\.sources\.games: a KL term needs.*Next"):
        load(word(key), "algorithm.kl.coefficient=0.1")
    with pytest.raises(ConfigError, match=r"correction\.kind must not be null.*of data\.sources\.games"):
        load(word(key), "algorithm.correction.kind=null")


def test_a_temperature_bends_nothing() -> None:
    config = load(word("temperature"), "algorithm.kl.coefficient=0.1", "algorithm.correction.kind=null")
    assert config.correction_kind is None
