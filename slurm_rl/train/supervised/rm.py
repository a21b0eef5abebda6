"""Reward models: a score after the last token, higher for the chosen answer (Bradley-Terry)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from slurm_rl.config.run import RunConfig
from slurm_rl.train.data.encode_answers import EncodedAnswer
from slurm_rl.train.data.placeholders import ImageCounter
from slurm_rl.train.engine.policy import LossFn
from slurm_rl.train.math.preference import bradley_terry
from slurm_rl.train.supervised.pairs import build_pair_examples, share, split_pairs
from slurm_rl.train.supervised.types import Example, Objective, make_sequence
from slurm_rl.train.types import PackedBatch, TrainSequence


def build_rm(config: RunConfig, tokenizer: Any, _: ImageCounter | None) -> Objective:
    """Pairs of text, each answer with its last token as the one that is scored."""
    train, held_out, num_left_out = build_pair_examples(config, tokenizer, make_scored)
    return Objective(
        train=train,
        held_out=held_out,
        build_loss=build_rm_loss,
        build_eval_loss=build_rm_loss,
        num_left_out=num_left_out,
        is_reward_model=True,
    )


def make_scored(encoded: EncodedAnswer, margin: float) -> TrainSequence:
    """The score is read where Hugging Face's classifiers read it: at the last token of the text."""
    return make_sequence(encoded.token_ids, np.array([len(encoded.token_ids) - 1]), margin=margin)


def build_rm_loss(examples: Sequence[Example]) -> LossFn:
    """Mean over the pairs of the global batch; `accuracy` is the share of pairs in the right order."""
    num_pairs = len(examples)

    def compute(batch: PackedBatch, scores: Tensor, _: Tensor) -> tuple[Tensor, dict[str, float]]:
        assert batch.margins is not None
        chosen, rejected = split_pairs(scores)
        margins, _ = split_pairs(batch.margins)
        loss = bradley_terry(chosen, rejected, margins).sum() / num_pairs
        return loss, {
            "accuracy": share((chosen > rejected).float(), num_pairs),
            "margin": share(chosen - rejected, num_pairs),
            "chosen_score": share(chosen, num_pairs),
            "rejected_score": share(rejected, num_pairs),
        }

    return compute
