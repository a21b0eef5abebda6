"""Wrong learning rules are refused with the field, the value and what to do; all at once."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["algorithm.correction.kind=tis"], ["algorithm.correction.kind", "token_tis"]),
        (["algorithm.filters.min_tokens=4", "algorithm.filters.max_tokens=3"], ["filters.max_tokens", "3 < 4"]),
        (["algorithm.entropy_bonus=-1"], ["algorithm.entropy_bonus", "-1"]),
        (
            ["+algorithm=dapo", "rollout.max_staleness=1"],
            ["algorithm.dynamic_sampling_rounds", "rollout.max_staleness=0"],
        ),
        (["rollout.continuous=true"], ["rollout.continuous", "rollout.max_staleness=1"]),
        (["rollout.max_staleness=-1"], ["rollout.max_staleness", "-1"]),
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
        load_config(["algorithm.entropy_bonus=-1", "policy.logprob_chunk_tokens=0", "trainer.num_epochs=0"])
    for name in ("algorithm.entropy_bonus", "policy.logprob_chunk_tokens", "trainer.num_epochs"):
        assert name in str(caught.value)
