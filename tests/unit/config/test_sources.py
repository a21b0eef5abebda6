"""Sources of a mixture in the config: what they take from the data, what is refused, and whose files are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.functions import named_functions
from slurm_rl.config.load import load_config, parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_source, goes_on_from_journal, waits_with_weights
from slurm_rl.errors import ConfigError

GAME = "class Guess: ...\n"
MIXED = ("+exp=demo", "data.train=''", "+data.sources.sums.train=addition", "+data.sources.games.train=games.jsonl")


def load(*words: str) -> RunConfig:
    return load_config([*MIXED, *words])


def test_a_source_has_of_its_rows_what_it_says_and_the_rest_of_the_data() -> None:
    config = load("data.num_eval=7", "data.largest_addend=9", "+data.sources.games.num_eval=2")
    assert list(each_source(config)) == ["games", "sums"]
    games, sums = each_source(config).values()
    assert (sums.data.train, sums.data.num_eval, sums.data.largest_addend) == ("addition", 7, 9)
    assert (games.data.train, games.data.num_eval) == ("games.jsonl", 2)
    assert games.data.sources == {} and games.reward == config.reward
    # As it is saved, and read again by every attempt.
    assert parse_config(config.model_dump(mode="json")) == config


def test_a_run_without_sources_is_one_itself() -> None:
    config = load_config(["+exp=demo"])
    assert each_source(config) == {"": config}


def test_a_source_has_an_environment_a_reward_and_a_length_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("game.py").write_text(GAME)
    Path("games.jsonl").write_text("{}\n")
    config = load(
        "+data.sources.games.env={name: game.py:Guess, turn_tokens: 1}",
        "+data.sources.games.max_tokens=4",
        "+data.sources.sums.reward={verifiers: {format: 1.0}}",
    )
    games, sums = each_source(config).values()
    assert (games.env.turn_tokens, games.rollout.max_tokens) == (1, 4)
    assert sums.env.name is None and sums.reward.verifiers == {"format": 1.0} and sums.rollout.max_tokens == 5
    assert named_functions(config) == {"data.sources.games.env.name": f"{tmp_path}/game.py:Guess"}
    assert games.data.train == f"{tmp_path}/games.jsonl"


WAVES, FREE = "{name: g.py:G, turn_tokens: 1}", "{name: g.py:G, turn_tokens: 1, order: free}"
TOOLS = "{tools: t.py, turn_tokens: 1, order: free}"
PROGRAM = "{program: [python, -m, agent], turn_tokens: 1}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.train=addition"], "data.train and data.eval are not read where there are data.sources"),
        (["+data.sources.more.weight=2"], "data.sources.more.train must say what to train on"),
        (["+data.sources.sums.weight=2000"], "data.sources.games.weight must be at least 0.001 of the sum"),
        (["+data.sources.sums.max_tokens=6"], "data.sources.sums: max_tokens must be at most rollout.max_tokens"),
        (
            ["+data.sources.sums.env={max_turns: 3}"],
            "data.sources.sums: the keys of env are read with env.name, ",
        ),
        (
            ["data.chat_template=false", "+data.sources.sums.system=Hi"],
            "data.sources.sums.system needs data.chat_template=true",
        ),
        (["data.chat_template=false", "data.system=Hi"], "system needs data.chat_template=true"),
        (["+data.sources.sums.wait=1"], "data.sources.sums.wait"),
        ([f"+data.sources.games.env={FREE}", "rollout.max_staleness=1"], "games: environments go in waves with"),
        (
            [f"+data.sources.games.env={WAVES}", "rollout.max_staleness=1", "rollout.continuous=true"],
            "games: environments go in waves .* Next: env.order",
        ),
        (
            [f"+data.sources.games.env={TOOLS}", "rollout.max_staleness=1", "data.chat_template=true"],
            "games: environments go in waves with",
        ),
        (
            [f"+data.sources.games.env={WAVES}", f"+data.sources.sums.env={FREE}"],
            "env.order must be the same for all environments",
        ),
        (
            [f"+data.sources.games.env={PROGRAM}", "rollout.max_staleness=1", "rollout.continuous=true"],
            "games: env.program needs rollout.continuous=false",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*words)


@pytest.mark.parametrize(
    ("words", "waits", "journalled"),
    [
        (["rollout.max_staleness=1"], False, False),
        ([f"+data.sources.games.env={WAVES}", "rollout.max_staleness=1"], True, False),
        ([f"+data.sources.games.env={FREE}"], False, True),
        ([f"+data.sources.games.env={PROGRAM}"], True, True),
        ([f"+data.sources.games.env={PROGRAM}", "rollout.max_staleness=1"], True, False),
        ([f"+data.sources.games.env={PROGRAM}", f"+data.sources.sums.env={WAVES}"], True, False),
    ],
)
def test_who_waits_for_episodes_in_flight(words: list[str], waits: bool, journalled: bool) -> None:
    config = load(*words)
    assert (waits_with_weights(config), goes_on_from_journal(config)) == (waits, journalled)


def test_tasks_that_read_no_sources_refuse_them() -> None:
    with pytest.raises(ConfigError, match=r"task=sft does not read data\.sources"):
        load_config(["+exp=sft_tiny", "data.train=''", "+data.sources.sums.train=addition"])
