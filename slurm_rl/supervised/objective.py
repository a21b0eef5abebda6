"""What SFT, reward models and DPO have in common: examples, and what an objective must say.

To add an objective, write a file with a function `build_<name>(config, tokenizer, images) -> Objective` and a row in
config/tasks.py. There is one loop and one engine for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_rl.config.run import RunConfig
from slurm_rl.data.identity import join_parts
from slurm_rl.data.split import Row, RowCounts, Split, count_rows
from slurm_rl.engine.policy import LossFn
from slurm_rl.errors import DataError
from slurm_rl.math.packing import distribute
from slurm_rl.math.sequences import FloatArray, TrainSequence


@dataclass(frozen=True)
class Example:
    """What must not be cut apart: one conversation, or a pair, the chosen answer first."""

    sequences: tuple[TrainSequence, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def num_trained(self) -> int:
        return sum(sequence.num_trained for sequence in self.sequences)

    @property
    def content(self) -> bytes:
        """All that is learned from, whatever the policy is."""
        return join_parts(*(part for sequence in self.sequences for part in _content_of(sequence)))

    def with_reference(self, logprobs: Sequence[FloatArray]) -> Example:
        """The same with the reference's logprobs of each sequence."""
        pairs = zip(self.sequences, logprobs, strict=True)
        return Example(tuple(replace(sequence, ref_logprobs=values) for sequence, values in pairs))


@dataclass(frozen=True)
class Objective:
    """What is learned from which rows."""

    train: list[Example]
    held_out: list[Example]
    counts: RowCounts
    build_loss: Callable[[Sequence[Example]], LossFn]
    """From the whole global batch to the loss of any part of it: constants such as the number of tokens come from
    here. Metrics are shares of the batch, so that their sum over all parts is the value to log."""
    build_eval_loss: Callable[[Sequence[Example]], LossFn]
    """The same for `PolicyEngine.evaluate`, with what tells most of rows that are not trained on."""
    is_reward_model: bool = False
    needs_reference: bool = False


def _content_of(sequence: TrainSequence) -> list[bytes]:
    trained = b"" if sequence.trained is None else sequence.trained.tobytes()
    images = [image.source.encode() for image in sequence.images]
    return [sequence.token_ids.tobytes(), trained, repr(sequence.margin).encode(), *images]


def build_split(
    split: Split[Row], build: Callable[[Sequence[Row]], list[Example]]
) -> tuple[list[Example], list[Example], RowCounts]:
    """Examples to train on, held-out ones, and what became of the rows: as an `Objective` begins."""
    train, held_out = build(split.train), build(split.held_out)
    return train, held_out, count_rows(split, len(train), len(held_out))


def deal(examples: Sequence[Example], num_ranks: int, budget: int, *, packed: bool = True) -> list[list[list[int]]]:
    """Per rank its micro-batches, as indices of examples; as many for every rank, some may be empty.

    Args:
        packed: several sequences share one row; else padding counts in the budget.
    """
    if packed:
        return distribute([example.num_tokens for example in examples], num_ranks, budget)
    rows = max(len(example.sequences) for example in examples)
    longest = [max(len(sequence.token_ids) for sequence in example.sequences) for example in examples]
    return distribute([rows * length for length in longest], num_ranks, budget, padded=True)


def micro_batches_of(examples: Sequence[Example], share: Sequence[Sequence[int]]) -> list[list[TrainSequence]]:
    """One rank's share as the engine takes it."""
    return [[sequence for i in batch for sequence in examples[i].sequences] for batch in share]


def keep_fitting(examples: Sequence[tuple[str, Example]], config: RunConfig) -> list[Example]:
    """Examples whose sequences all fit supervised.max_tokens.

    Args:
        examples: with the name of each one's row.

    Raises:
        DataError: one does not, and rows are not to be left out.
    """
    longest = config.supervised.max_tokens
    kept = []
    for name, example in examples:
        length = max(len(sequence.token_ids) for sequence in example.sequences)
        if length <= longest:
            kept.append(example)
        elif config.data.overlong == "refuse":
            raise DataError(
                f"{name}: prompt and answer must fit in supervised.max_tokens = {longest}",
                seen=f"{length} tokens",
                action=f"raise it to {length}, or set data.overlong=leave_out",
            )
    return kept


def make_sequence(token_ids: Any, trained: Any, **fields: Any) -> TrainSequence:
    """A sequence with these trained positions."""
    return TrainSequence(token_ids=token_ids, trained_from=int(trained[0]), trained=np.asarray(trained), **fields)
