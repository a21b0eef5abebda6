from pathlib import Path

import pytest

from slurm_rl.config.load import compose, load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.rows import SamplingConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import blocks_on_weights, each_set, each_source, own_temperatures, resumes_from_log
from slurm_rl.config.user_parts import named_functions

GAMES = "+data.sources.games"
MIXED = ("+exp=demo", "data.train=''", "+data.sources.sums.train=addition", f"{GAMES}.train=games.jsonl")
SAMPLING = {
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


def load(*words: str) -> RunConfig:
    return load_config([*MIXED, *words])


def word(key: str, prefix: str = GAMES) -> str:
    return f"{prefix}.{key}={WORDS.get(key, SAMPLING[key])}"


def test_source_inherits_unset_columns() -> None:
    config = load("data.num_eval=7", "data.largest_addend=9", "+data.sources.games.num_eval=2")
    assert list(each_source(config)) == ["games", "sums"]
    games, sums = each_source(config).values()
    assert (sums.data.train, sums.data.num_eval, sums.data.largest_addend) == ("addition", 7, 9)
    assert (games.data.train, games.data.num_eval) == ("games.jsonl", 2)
    assert games.data.sources == {} and games.reward == config.reward
    assert parse_config(config.model_dump(mode="json")) == config


def test_source_has_own_environment_reward_and_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("game.py").write_text("class Guess: ...\n")
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


WAVES, FREE = "{name: g.py:G, turn_tokens: 1}", "{name: g.py:G, turn_tokens: 1, schedule: async}"
PROGRAM = "{agent_command: [python, -m, agent], turn_tokens: 1}"


@pytest.mark.parametrize(
    ("words", "blocks", "resumes"),
    [
        (["rollout.max_off_policy_steps=1"], False, False),
        ([f"{GAMES}.env={WAVES}", "rollout.max_off_policy_steps=1"], True, False),
        ([f"{GAMES}.env={FREE}"], False, True),
        ([f"{GAMES}.env={PROGRAM}"], True, True),
        ([f"{GAMES}.env={PROGRAM}", "rollout.max_off_policy_steps=1"], True, False),
        ([f"{GAMES}.env={PROGRAM}", f"+data.sources.sums.env={WAVES}"], True, False),
    ],
)
def test_episodes_in_flight_block_weights_or_resume(words: list[str], blocks: bool, resumes: bool) -> None:
    config = load(*words)
    assert (blocks_on_weights(config), resumes_from_log(config)) == (blocks, resumes)


@pytest.mark.parametrize("key", SAMPLING)
def test_source_and_set_override_one_sampling_key(key: str) -> None:
    config = load(word(key), "+eval.sets.big.data=addition", word(key, "+eval.sets.big"))
    games, sums = each_source(config).values()
    assert sums.rollout == config.rollout
    for one in (games, each_set(config)["big"]):
        assert one.rollout == config.rollout.model_copy(update={key: SAMPLING[key]})
    assert parse_config(config.model_dump(mode="json")) == config


def test_sampling_table_covers_all_keys() -> None:
    assert {*SamplingConfig.model_fields, "temperature"} - {"env", "reward"} == set(SAMPLING)


def test_source_can_remove_stops_of_run() -> None:
    config = load("rollout.stop=[x]", "rollout.stop_token_ids=[3]", f"{GAMES}.stop=[]", f"{GAMES}.stop_token_ids=[]")
    games, sums = (one.rollout for one in each_source(config).values())
    assert (games.stop, games.stop_token_ids) == ((), ()) and (sums.stop, sums.stop_token_ids) == (("x",), (3,))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["rollout.temperature=0.7"], {}),
        (["rollout.temperature=0.7", f"{GAMES}.temperature=0.7", "+data.sources.sums.temperature=0.7"], {}),
        ([f"{GAMES}.temperature=0.7"], {"games": 0.7, "sums": 1.0}),
        ([f"{GAMES}.temperature=0.7", "+data.sources.sums.temperature=0.7"], {"games": 0.7, "sums": 0.7}),
    ],
)
def test_own_temperatures_lists_sources_that_differ(words: list[str], found: dict[str, float]) -> None:
    assert own_temperatures(load(*words)) == found


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], None),
        (["rollout.stop=[x]", "rollout.stop_token_ids=[3]", "rollout.temperature=0.7"], None),
        (["model.dtype=bfloat16"], "token_tis"),
        (["model.dtype=bfloat16", "+algorithm=gspo"], "geometric_mask"),
        (["model.dtype=bfloat16", "algorithm.loss=gspo_token"], "geometric_mask"),
        (["rollout.max_off_policy_steps=1"], "token_tis"),
        (["+rollout.engine_args.kv_cache_dtype=fp8"], "token_tis"),
        *(([f"rollout.{key}={SAMPLING[key]}"], "token_tis") for key in ("top_p", "top_k", "min_p")),
        (["model.dtype=bfloat16", "algorithm.correction.kind=null"], None),
        (["algorithm.correction.kind=icepop"], "icepop"),
    ],
)
def test_correction_is_chosen_if_sampler_differs(words: list[str], kind: str | None) -> None:
    assert load_config(["+exp=demo", *words]).correction_kind == kind


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p", "repetition_penalty"])
def test_correction_depends_on_sampling_of_sources(key: str) -> None:
    assert load(word(key)).correction_kind == "token_tis"
    own = [f"+data.sources.{name}.{key}={load().rollout.model_dump()[key]}" for name in ("games", "sums")]
    assert load(f"rollout.{key}={SAMPLING[key]}", *own).correction_kind is None


def test_parse_config_skips_rules_of_new_runs_for_saved_configs() -> None:
    words = ["+exp=demo", "rollout.top_k=20", "algorithm.correction.kind=null"]
    assert parse_config(compose(words)).algorithm.correction.kind is None
