"""Pairs of answers as examples: the chosen one first, the rejected one after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from slurm_rl.config.run import RunConfig
from slurm_rl.data.answers import PairRow
from slurm_rl.data.encode_answers import EncodedAnswer, expand_all
from slurm_rl.data.load import load_pairs
from slurm_rl.data.placeholders import ImageCounter
from slurm_rl.data.prompts import Text
from slurm_rl.data.split import RowCounts, count_rows
from slurm_rl.errors import DataError
from slurm_rl.math.sequences import TrainSequence
from slurm_rl.supervised.objective import Example, keep_fitting, make_sequence

Encode = Callable[[Text, Text, str], EncodedAnswer]
"""(prompt, answer, name of the row) -> its tokens, and which of them the loss reads."""


def build_pair_examples(
    config: RunConfig, encode: Encode, images: ImageCounter | None = None
) -> tuple[list[Example], list[Example], RowCounts]:
    """Examples to train on, held-out ones, and what became of the rows."""

    def build(rows: Sequence[PairRow]) -> list[Example]:
        both = [_encode(row, encode) for row in rows]
        answers = expand_all([answer for pair in both for answer in pair], images)
        pairs = zip(rows, answers[::2], answers[1::2], strict=True)
        examples = [(row.name, Example((_make(one, row), _make(two, row)))) for row, one, two in pairs]
        return keep_fitting(examples, config)

    split = load_pairs(config.data)
    train, held_out = build(split.train), build(split.held_out)
    return train, held_out, count_rows(split, len(train), len(held_out))


def _make(encoded: EncodedAnswer, row: PairRow) -> TrainSequence:
    return make_sequence(encoded.token_ids, encoded.answered, images=encoded.images, margin=row.margin)


def _encode(row: PairRow, encode: Encode) -> tuple[EncodedAnswer, EncodedAnswer]:
    chosen, rejected = (encode(row.prompt, answer, row.name) for answer in (row.chosen, row.rejected))
    if chosen.token_ids.tolist() == rejected.token_ids.tolist():
        raise DataError(
            f"{row.name}: chosen and rejected must differ in their tokens",
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
