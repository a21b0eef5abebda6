"""DPO, and pairs of answers for DPO and reward models."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slurm_rl.algorithms.losses import sum_by_sequence
from slurm_rl.algorithms.preference import LogRatios, compute_dpo_loss
from slurm_rl.algorithms.sequences import PackedBatch, TrainSequence
from slurm_rl.config.run import RunConfig
from slurm_rl.config.supervised import DPOConfig
from slurm_rl.data.answers import PairRow
from slurm_rl.data.chat import open_template
from slurm_rl.data.encode_answers import EncodedAnswer, encode_answer, expand_all
from slurm_rl.data.load_data import load_pairs
from slurm_rl.data.placeholders import ImageCounter
from slurm_rl.data.split import RowCounts
from slurm_rl.errors import DataError
from slurm_rl.models.policy import LossFn
from slurm_rl.trainers.supervised.objective import Example, Objective, build_split, keep_fitting, make_sequence

Encode = Callable[..., EncodedAnswer]
"""(prompt, answer, name=, tools=) -> tokens and trained positions."""


def build_pair_examples(
    config: RunConfig, encode: Encode, images: ImageCounter | None = None
) -> tuple[list[Example], list[Example], RowCounts]:
    """Return the pairs of the data section; see `build_split`."""

    def build(rows: Sequence[PairRow]) -> list[Example]:
        both = [_encode(row, encode) for row in rows]
        answers = expand_all([answer for pair in both for answer in pair], images)
        pairs = zip(rows, answers[::2], answers[1::2], strict=True)
        examples = [(row.name, Example((_make(one, row), _make(two, row)))) for row, one, two in pairs]
        return keep_fitting(examples, config)

    return build_split(load_pairs(config.data), build)


def _make(encoded: EncodedAnswer, row: PairRow) -> TrainSequence:
    return make_sequence(encoded.token_ids, encoded.answered, images=encoded.images, margin=row.margin)


def _encode(row: PairRow, encode: Encode) -> tuple[EncodedAnswer, EncodedAnswer]:
    chosen, rejected = (
        encode(row.prompt, answer, name=row.name, tools=row.tools) for answer in (row.chosen, row.rejected)
    )
    if chosen.token_ids.tolist() == rejected.token_ids.tolist():
        raise DataError(
            f"{row.name}: chosen and rejected must differ in their tokens",
            seen="equal tokens: the chat template drops the difference",
            action="remove the row: an equal pair has no gradient",
        )
    return chosen, rejected


def split_pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split values [S] of sequences into those of chosen [P] and rejected [P] answers.

    A vision-language model may read one more sequence with a blank image, which is ignored.
    """
    chosen, rejected = values[: len(values) // 2 * 2].view(-1, 2).unbind(-1)
    return chosen, rejected


def share(values: Tensor, num_pairs: int) -> float:
    """Return the contribution of these pairs to the mean over the global batch."""
    return float(values.detach().sum()) / num_pairs


def build_dpo(config: RunConfig, tokenizer: Any, images: ImageCounter | None) -> Objective:
    """Return the objective of DPO."""
    template = open_template(tokenizer, config.data)
    encode = partial(encode_answer, tokenizer=tokenizer, template=template, sees_images=images is not None)
    build_loss = partial(build_dpo_loss, config=config.dpo)
    pairs = build_pair_examples(config, encode, images)
    return Objective(*pairs, build_loss, build_loss, needs_reference=config.dpo.reference != "none")


def build_dpo_loss(examples: Sequence[Example], config: DPOConfig) -> LossFn:
    """Return the mean over the pairs of the global batch, plus `sft_coef` times the mean over its chosen tokens.

    Metrics are means over pairs. `margin` and the rewards are beta times log ratios to the reference, or logprobs
    without one; `accuracy` is the share of pairs with a margin above 0; `chosen_logprob` is per answer.
    """

    num_pairs, num_chosen_tokens = len(examples), sum(example.sequences[0].num_trained for example in examples)

    def compute(batch: PackedBatch, logprobs: Tensor, _: Tensor) -> tuple[Tensor, dict[str, float]]:
        ratios = logprobs if batch.ref_logprobs is None else logprobs - batch.ref_logprobs

        def add_up(tokens: Tensor) -> tuple[Tensor, Tensor]:
            return split_pairs(sum_by_sequence(tokens, batch.sequence_ids, batch.num_sequences))

        chosen, rejected = add_up(ratios)
        chosen_lengths, rejected_lengths = add_up(torch.ones_like(logprobs))
        pairs = LogRatios(
            chosen=chosen, rejected=rejected, chosen_lengths=chosen_lengths, rejected_lengths=rejected_lengths
        )
        loss = compute_dpo_loss(pairs, config).sum() / num_pairs
        sft_coef, _ = add_up(-logprobs)
        if config.sft_coef > 0:
            loss = loss + config.sft_coef * sft_coef.sum() / num_chosen_tokens
        rewards = config.beta * chosen.detach(), config.beta * rejected.detach()
        return loss, {
            "accuracy": share((rewards[0] > rewards[1]).float(), num_pairs),
            "margin": share(rewards[0] - rewards[1], num_pairs),
            "chosen_reward": share(rewards[0], num_pairs),
            "rejected_reward": share(rewards[1], num_pairs),
            "chosen_logprob": -share(sft_coef, num_pairs),
        }

    return compute
