"""A new run whose sampler is not the policy, and that does not make up for it, is refused."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.sampling import check_sampling


@pytest.mark.parametrize("word", ["rollout.top_p=0.9", "rollout.top_k=20", "rollout.repetition_penalty=1.1"])
def test_what_bends_the_distribution_needs_a_correction(word: str) -> None:
    check_sampling(load_config(["+exp=demo", word]))
    # What began before there was such a rule is read all the same, and goes on.
    config = load_config(["+exp=demo", word, "algorithm.correction.kind=null"])
    name, _, value = word.removeprefix("rollout.").partition("=")
    with pytest.raises(ConfigError, match=rf"correction\.kind must not be null.*{name}={value}.*Next: set .*=auto"):
        check_sampling(config)


def test_a_sampler_that_is_the_policy_needs_none() -> None:
    check_sampling(
        load_config(["+exp=demo", "algorithm.correction.kind=null", "rollout.stop=[x]", "rollout.temperature=0.5"])
    )
