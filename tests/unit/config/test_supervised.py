"""Combinations that supervised runs refuse."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+exp=rm_tiny", "data.image_key=image"], "data.image_key is not for task=rm"),
        (["+exp=sft_tiny", "supervised.max_tokens=65"], "supervised.max_tokens must be <= model.tiny.context_length"),
        (
            ["+exp=dpo_tiny", "dpo.loss=ipo", "dpo.label_smoothing=0.1"],
            "dpo.label_smoothing is for dpo.loss=",
        ),
        (["+exp=dpo_tiny", "dpo.loss=exo_pair"], "needs dpo.label_smoothing > 0"),
        (["+exp=dpo_tiny", "dpo.loss=bco_pair", "dpo.reference=none"], "dpo.reference=none adds to both answers"),
        (["+exp=dpo_tiny", "dpo.loss=apo_zero", "dpo.divergence=forward_kl"], "dpo.divergence adds to both answers"),
        (["+exp=dpo_tiny", "dpo.reference=none", "dpo.divergence=js_divergence"], "is a distance to a reference"),
        (["+exp=rm_tiny", "rm.centering=-1"], "rm.centering"),
        (["+exp=rm_tiny", "reward.model.normalize=true"], "reward.model.normalize is for reward.model.path"),
        (["+exp=dpo_tiny", "dpo.label_smoothing=0.5"], "dpo.label_smoothing"),
        (["+exp=sft_tiny", "supervised.patience=1", "data.num_eval=0"], "patience counts evaluations.*got 50 and 0"),
        (["+exp=sft_tiny", "supervised.patience=1", "eval.every=0"], "patience counts evaluations.*got 0 and 500"),
        (
            ["+exp=sft_tiny", "data.chat_template=false", "+data.chat_template_kwargs.a=1"],
            r"chat_template_kwargs needs data\.chat_template=true",
        ),
    ],
)
def test_what_cannot_be_is_said(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(words)
