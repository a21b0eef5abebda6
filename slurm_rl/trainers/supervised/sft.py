"""Supervised fine-tuning: likelihood of the assistant's messages."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.algorithms.losses import sum_by_sequence
from slurm_rl.algorithms.sequences import PackedBatch
from slurm_rl.config.run import RunConfig
from slurm_rl.data.answers import AnswerRow
from slurm_rl.data.chat import open_template
from slurm_rl.data.encode_answers import EncodedAnswer, encode_answer, expand_all
from slurm_rl.data.load_data import load_answers
from slurm_rl.data.placeholders import ImageCounter
from slurm_rl.models.policy import LossFn
from slurm_rl.trainers.supervised.objective import Example, Objective, build_split, keep_fitting, make_sequence


def build_sft(config: RunConfig, tokenizer: Any, images: ImageCounter | None) -> Objective:
    """Return the objective of SFT."""

    template = open_template(tokenizer, config.data)
    encode = partial(encode_answer, tokenizer=tokenizer, template=template, sees_images=images is not None)

    def build(rows: Sequence[AnswerRow]) -> list[Example]:
        answers = expand_all([encode(row.prompt, row.answer, name=row.name, tools=row.tools) for row in rows], images)
        pairs = zip(rows, answers, strict=True)
        return keep_fitting([(row.name, make_example(answer, config)) for row, answer in pairs], config)

    return Objective(*build_split(load_answers(config.data), build), build_sft_loss, build_sft_eval)


def make_example(answer: EncodedAnswer, config: RunConfig) -> Example:
    """Return the example of a row; image placeholders are never trained on."""
    trained = answer.answered
    if config.sft.train_on == "all":
        inside = [np.arange(span.start, span.start + span.num_tokens) for span in answer.images]
        trained = np.setdiff1d(np.arange(1, len(answer.token_ids)), np.concatenate([[0], *inside]))
    return Example((make_sequence(answer.token_ids, trained, images=answer.images),))


def build_sft_loss(examples: Sequence[Example]) -> LossFn:
    """Return the mean of `-log policy(token)` over the trained tokens of the global batch; `entropy` is a mean, too."""
    num_tokens = sum(example.num_trained for example in examples)

    def compute(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        return (-logprobs).sum() / num_tokens, {"entropy": float(entropy.sum()) / num_tokens}

    return compute


def build_sft_eval(examples: Sequence[Example]) -> LossFn:
    """Return the loss with `token_accuracy` and `exact_match`, the share of rows that greedy decoding reproduces."""
    num_tokens, num_examples = sum(example.num_trained for example in examples), len(examples)

    def compute(batch: PackedBatch, logprobs: Tensor, hits: Tensor) -> tuple[Tensor, dict[str, float]]:
        missed = sum_by_sequence(1 - hits, batch.sequence_ids, batch.num_sequences)
        is_row = torch.bincount(batch.sequence_ids, minlength=batch.num_sequences) > 0
        return (-logprobs).sum() / num_tokens, {
            "token_accuracy": float(hits.sum()) / num_tokens,
            "exact_match": float((is_row & (missed == 0)).sum()) / num_examples,
        }

    return compute
