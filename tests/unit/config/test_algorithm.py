"""Wrong learning rules are refused with the field, the value and what to do; all at once."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["algorithm.correction.kind=icepop"], ["algorithm.old_logprobs=policy", "icepop"]),
        (["algorithm.correction.low=1.5"], ["algorithm.correction.low", "1.5"]),
        (["algorithm.correction.kind=tis"], ["algorithm.correction.kind", "token_tis"]),
        (["algorithm.filters.min_tokens=4", "algorithm.filters.max_tokens=3"], ["filters.max_tokens", "3 < 4"]),
        (["algorithm.overlong.share=1.5"], ["algorithm.overlong.share", "1.5"]),
        (["algorithm.entropy_bonus=-1"], ["algorithm.entropy_bonus", "-1"]),
        (["algorithm.dynamic_sampling_rounds=0"], ["algorithm.dynamic_sampling_rounds", "0"]),
        (["trainer.num_epochs=0"], ["trainer.num_epochs", "0"]),
        (
            ["algorithm=reinforce_pp", "algorithm.group_size=1", "algorithm.dynamic_sampling_rounds=2"],
            ["algorithm.dynamic_sampling_rounds", "algorithm.group_size=8"],
        ),
        (["algorithm=dapoo"], ["dapoo", "dapo", "rloo"]),
    ],
)
def test_a_wrong_rule_is_named_with_its_remedy(words: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    assert all(name in str(caught.value) for name in names), str(caught.value)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["algorithm.entropy_bonus=-1", "algorithm.overlong.share=2", "trainer.num_epochs=0"])
    for name in ("algorithm.entropy_bonus", "algorithm.overlong.share", "trainer.num_epochs"):
        assert name in str(caught.value)


def test_single_keys_replace_what_the_preset_says() -> None:
    chosen = load_config(["algorithm=dapo", "algorithm.clip_high=0.3"]).algorithm
    assert (chosen.clip_high, chosen.dynamic_sampling_rounds, chosen.group_size) == (0.3, 4, 8)
