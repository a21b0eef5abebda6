"""Reward models: a score after the last token, higher for the chosen answer (Bradley-Terry)."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from slurm_rl.algorithms.preference import bradley_terry, center_scores
from slurm_rl.algorithms.sequences import PackedBatch
from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import ChatTemplate, open_template
from slurm_rl.data.encode_answers import EncodedAnswer, encode_scored, tokenize_text
from slurm_rl.data.placeholders import ImageCounter
from slurm_rl.data.prompts import Text
from slurm_rl.errors import DataError
from slurm_rl.models.policy import LossFn, PolicyEngine
from slurm_rl.models.reward_model import ScoreStatistics
from slurm_rl.trainers.supervised.dpo import build_pair_examples, share, split_pairs
from slurm_rl.trainers.supervised.objective import Example, MicroBatches, Objective


def build_rm(config: RunConfig, tokenizer: Any, _: ImageCounter | None) -> Objective:
    """Return the objective of reward models, which score the last token of each answer."""
    template = open_template(tokenizer, config.data)
    pairs = build_pair_examples(config, partial(encode_for_training, tokenizer=tokenizer, template=template))
    build_loss = partial(build_rm_loss, centering=config.rm.center_rewards_coef)
    return Objective(*pairs, build_loss, build_loss, is_reward_model=True, is_chat=template is not None)


def encode_for_training(
    prompt: Text,
    answer: Text,
    name: str,
    *,
    tokenizer: Any,
    template: ChatTemplate | None,
    tools: Sequence[dict[str, Any]] = (),
) -> EncodedAnswer:
    """Encode a conversation as for scoring.

    Raises:
        DataError: the row has tools, or text that the tokenizer cannot encode.
    """
    if tools:
        raise DataError(
            f"{name}: a reward model scores conversations without tools",
            seen=f"{len(tools)} tools (data.tools_key)",
            action="set data.tools_key=null to train without them",
        )

    def tokenize(text: str, special: bool) -> list[int]:
        return tokenize_text(text, tokenizer, name, add_special_tokens=special)[0]

    token_ids = encode_scored(prompt, answer, tokenizer, template=template, name=name, tokenize=tokenize)
    return EncodedAnswer(np.array(token_ids, dtype=np.int64), np.array([len(token_ids) - 1]), name)


def build_rm_loss(examples: Sequence[Example], centering: float = 0.0) -> LossFn:
    """Return the mean over the pairs of the global batch; `accuracy` is the share of pairs in the right order.

    Args:
        centering: weight of `center_scores`.
    """
    num_pairs = len(examples)

    def compute(batch: PackedBatch, scores: Tensor, _: Tensor) -> tuple[Tensor, dict[str, float]]:
        assert batch.margins is not None
        chosen, rejected = split_pairs(scores)
        margins, _ = split_pairs(batch.margins)
        loss = bradley_terry(chosen, rejected, margins).sum() / num_pairs
        if centering > 0:
            loss = loss + centering * center_scores(chosen, rejected).sum() / num_pairs
        return loss, {
            "accuracy": share((chosen > rejected).float(), num_pairs),
            "margin": share(chosen - rejected, num_pairs),
            "chosen_score": share(chosen, num_pairs),
            "rejected_score": share(rejected, num_pairs),
        }

    return compute


def measure_scores(
    engine: PolicyEngine, objective: Objective, share_of: Callable[[Sequence[Example]], MicroBatches]
) -> ScoreStatistics:
    """Return mean and deviation of the scores of held-out answers, or of training answers without held-out rows.

    Called on all ranks.

    Args:
        share_of: returns this rank's micro-batches of examples.
    """

    def add_up(_: PackedBatch, scores: Tensor, __: Tensor) -> tuple[Tensor, dict[str, float]]:
        exact = scores.double()
        sums = {"count": float(len(scores)), "sum": float(exact.sum()), "squares": float(exact.square().sum())}
        return scores.sum() * 0.0, sums

    found = engine.evaluate(share_of(objective.held_out or objective.train), add_up)
    count, mean = found["count"], found["sum"] / found["count"]
    return ScoreStatistics(mean, math.sqrt(max(found["squares"] - count * mean**2, 0.0) / (count - 1)))
