"""Pairs of answers as examples: the chosen one first, the rejected one after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import DataError
from slurm_rl.train.data.answers import PairRow, load_pairs
from slurm_rl.train.data.encode_answers import EncodedAnswer, encode_answer, expand_all
from slurm_rl.train.data.placeholders import ImageCounter
from slurm_rl.train.supervised.types import Example, keep_fitting
from slurm_rl.train.types import TrainSequence

MakeSequence = Callable[[EncodedAnswer, float], TrainSequence]
"""(one answer after its prompt, the pair's margin) -> what the engine reads."""


def build_pair_examples(
    config: RunConfig, tokenizer: Any, make: MakeSequence, images: ImageCounter | None = None
) -> tuple[list[Example], list[Example], int]:
    """Examples to train on, held-out ones, and how many rows to train on were too long."""

    def encode(rows: Sequence[PairRow]) -> tuple[list[Example], int]:
        both = [_encode(row, tokenizer, config, images is not None) for row in rows]
        answers = expand_all([answer for pair in both for answer in pair], images)
        pairs = zip(rows, answers[::2], answers[1::2], strict=True)
        examples = [(row.index, Example((make(one, row.margin), make(two, row.margin)))) for row, one, two in pairs]
        return keep_fitting(examples, config)

    train, held_out = load_pairs(config.data, config.seed)
    kept, num_left_out = encode(train)
    return kept, encode(held_out)[0], num_left_out


def _encode(row: PairRow, tokenizer: Any, config: RunConfig, sees_images: bool) -> tuple[EncodedAnswer, EncodedAnswer]:
    chosen, rejected = (
        encode_answer(
            row.prompt,
            answer,
            tokenizer,
            chat_template=config.data.chat_template,
            name=f"row {row.index}",
            sees_images=sees_images,
        )
        for answer in (row.chosen, row.rejected)
    )
    if chosen.token_ids.tolist() == rejected.token_ids.tolist():
        raise DataError(
            f"row {row.index}: chosen and rejected must differ in their tokens",
            seen="equal tokens: they differ in what the chat template leaves out",
            action="take the row out: an equal pair teaches nothing",
        )
    return chosen, rejected


def split_pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [S] of sequences to those [P] of the chosen and [P] of the rejected ones.

    Behind pairs of text alone a vision-language model reads one sequence more, of a blank image, which is in no pair.
    """
    chosen, rejected = values[: len(values) // 2 * 2].view(-1, 2).unbind(-1)
    return chosen, rejected


def share(values: Tensor, num_pairs: int) -> float:
    """What these pairs add to the mean over all pairs of the global batch."""
    return float(values.detach().sum()) / num_pairs
