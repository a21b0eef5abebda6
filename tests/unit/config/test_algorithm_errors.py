"""Wrong learning rules are refused with the field, the value and what to do; all at once."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
from pydantic import ValidationError

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from slurm_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["algorithm.correction.kind=tis"], ["algorithm.correction.kind", "token_tis"]),
        (["algorithm.filters.min_tokens=4", "algorithm.filters.max_tokens=3"], ["filters.max_tokens", "3 < 4"]),
        (["algorithm.entropy_bonus=-1"], ["algorithm.entropy_bonus", "-1"]),
        (["rollout.continuous=true"], ["rollout.continuous", "rollout.max_staleness=1"]),
        (["rollout.max_staleness=-1"], ["rollout.max_staleness", "-1"]),
        (["algorithm.clip_low=1"], ["algorithm.clip_low", "less than 1", "got 1"]),
        (["algorithm.clip_dual=1.0"], ["algorithm.clip_dual", "greater than 1", "got 1.0"]),
        (["optim.lr=inf"], ["optim.lr", "finite", "inf"]),
        (["critic.optim.betas=[0.9,nan]"], ["critic.optim.betas.1", "finite", "nan"]),
        (
            ["algorithm.kl.coefficient=0.1", "algorithm.kl.estimator=k1"],
            ["algorithm.kl.estimator", "k1", "algorithm.kl.where=reward"],
        ),
        (["algorithm.kl.bias_correction=true"], ["algorithm.kl.bias_correction", "coefficient=0.0"]),
        (
            ["+algorithm=ppo", "algorithm.kl.bias_correction=true"],
            ["algorithm.kl.bias_correction", "where='reward'", "estimator='k1'"],
        ),
        (["algorithm.correction.low=1"], ["algorithm.correction.low", "less than 1"]),
        (["algorithm.correction.high=1"], ["algorithm.correction.high", "greater than 1"]),
        (["trainer.num_epochs=0"], ["trainer.num_epochs", "0"]),
        (["policy.logprob_chunk_tokens=0"], ["policy.logprob_chunk_tokens", "0"]),
        (
            ["algorithm.advantage=reinforce_pp", "algorithm.group_size=1", "algorithm.filters.zero_variance=true"],
            ["algorithm.filters.zero_variance", "algorithm.group_size=8"],
        ),
    ],
)
def test_a_wrong_rule_is_named_with_its_remedy(words: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    assert all(name in str(caught.value) for name in names), str(caught.value)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            ["+exp=demo", "algorithm.entropy_bonus=-1", "policy.logprob_chunk_tokens=0", "trainer.num_epochs=0"]
        )
    for name in ("algorithm.entropy_bonus", "policy.logprob_chunk_tokens", "trainer.num_epochs"):
        assert name in str(caught.value)


def sections(model: type[Section]) -> set[type[Section]]:
    """The model and every section below it."""
    hints = [hint for annotation in get_type_hints(model).values() for hint in (annotation, *get_args(annotation))]
    below = {hint for hint in hints if isinstance(hint, type) and issubclass(hint, Section)}
    return {model}.union(*map(sections, below))


def test_no_number_of_the_config_may_be_infinite_or_none_at_all() -> None:
    accepted = []
    for section in sections(RunConfig):
        for name, field in section.model_fields.items():
            hint = field.annotation
            for value in (math.inf, math.nan) if float in (hint, *get_args(hint)) else ():
                try:
                    section.model_validate({name: value})
                except ValidationError as error:
                    accepted += [] if any(item["loc"][:1] == (name,) for item in error.errors()) else [(section, name)]
                else:
                    accepted.append((section, name))
    assert accepted == []


def test_k1_in_the_reward_or_without_weight_is_no_matter() -> None:
    load_config(["+exp=demo", "algorithm.kl.estimator=k1"])
    load_config(["+exp=demo", "algorithm.kl.coefficient=0.1", "algorithm.kl.estimator=k1", "algorithm.kl.where=reward"])
