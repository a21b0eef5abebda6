"""Common parts of SFT, reward models and DPO: examples, and the interface of an objective.

To add an objective, write a file with a function `build_<name>(config, tokenizer, images) -> Objective` and a row in
config/tasks.py. There is one loop and one engine for all of them.

Reference logprobs of DPO are computed once and cached on disk, or computed in every step. The reference is the initial
policy. Cached, it is never in memory together with the policy: the engine computes them before its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.algorithms.packing import distribute
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.run import RunConfig
from slurm_rl.data.load_data import digest_rows, join_parts
from slurm_rl.data.split import Row, RowCounts, Split, count_rows
from slurm_rl.errors import DataError
from slurm_rl.models import distributed
from slurm_rl.models.policy import LossFn, PolicyEngine
from slurm_rl.run_dir.io_errors import written_beside

MicroBatches = list[list[TrainSequence]]
AddReference = Callable[[MicroBatches], MicroBatches]
"""Adds reference logprobs to the micro-batches of this rank."""

_CHUNK = 4096
"""Examples per gathered chunk of logprobs."""


@dataclass(frozen=True)
class Example:
    """Unit of data that is never split: a conversation, or a pair with the chosen answer first."""

    sequences: tuple[TrainSequence, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def num_trained(self) -> int:
        return sum(sequence.num_trained for sequence in self.sequences)

    @property
    def content(self) -> bytes:
        """Bytes of all training data of the example."""
        return join_parts(*(part for sequence in self.sequences for part in _content_of(sequence)))

    def with_reference(self, logprobs: Sequence[FloatArray]) -> Example:
        """Return the example with reference logprobs of each sequence."""
        pairs = zip(self.sequences, logprobs, strict=True)
        return Example(tuple(replace(sequence, ref_logprobs=values) for sequence, values in pairs))


@dataclass(frozen=True)
class Objective:
    """Rows and loss of a supervised task."""

    train: list[Example]
    held_out: list[Example]
    counts: RowCounts
    build_loss: Callable[[Sequence[Example]], LossFn]
    """Returns the loss of any part of the given global batch. Metrics are contributions to the value of the batch."""
    build_eval_loss: Callable[[Sequence[Example]], LossFn]
    """Loss for `PolicyEngine.evaluate`, with the metrics of held-out rows."""
    is_reward_model: bool = False
    is_chat: bool = False
    """The rows were rendered with a chat template."""
    needs_reference: bool = False


def _content_of(sequence: TrainSequence) -> list[bytes]:
    trained = b"" if sequence.trained is None else sequence.trained.tobytes()
    images = [image.source.encode() for image in sequence.images]
    return [sequence.token_ids.tobytes(), trained, repr(sequence.margin).encode(), *images]


def build_split(
    split: Split[Row], build: Callable[[Sequence[Row]], list[Example]]
) -> tuple[list[Example], list[Example], RowCounts]:
    """Return training examples, held-out examples and row counts."""
    train, held_out = build(split.train), build(split.held_out)
    return train, held_out, count_rows(split, len(train), len(held_out))


def deal(examples: Sequence[Example], num_ranks: int, budget: int, *, packed: bool = True) -> list[list[list[int]]]:
    """Return the micro-batches of each rank as indices of examples, the same number for all ranks.

    Args:
        packed: several sequences share a row; otherwise padding counts in the budget.
    """
    if packed:
        return distribute([example.num_tokens for example in examples], num_ranks, budget)
    rows = max(len(example.sequences) for example in examples)
    longest = [max(len(sequence.token_ids) for sequence in example.sequences) for example in examples]
    return distribute([rows * length for length in longest], num_ranks, budget, padded=True)


def micro_batches_of(examples: Sequence[Example], share: Sequence[Sequence[int]]) -> MicroBatches:
    """Return the sequences of one rank's share."""
    return [[sequence for i in batch for sequence in examples[i].sequences] for batch in share]


def keep_fitting(examples: Sequence[tuple[str, Example]], config: RunConfig) -> list[Example]:
    """Return the examples that fit supervised.max_tokens.

    Args:
        examples: row name and example.

    Raises:
        DataError: an example does not fit, and data.overlong_prompts=refuse.
    """
    longest = config.supervised.max_tokens
    kept = []
    for name, example in examples:
        length = max(len(sequence.token_ids) for sequence in example.sequences)
        if length <= longest:
            kept.append(example)
        elif config.data.overlong_prompts == "refuse":
            raise DataError(
                f"{name}: prompt and answer must fit in supervised.max_tokens = {longest}",
                seen=f"{length} tokens",
                action=f"raise it to {length}, or set data.overlong_prompts=leave_out",
            )
    return kept


def make_sequence(token_ids: Any, trained: Any, **fields: Any) -> TrainSequence:
    """Return a sequence with these trained positions."""
    return TrainSequence(token_ids=token_ids, trained_from=int(trained[0]), trained=np.asarray(trained), **fields)


def add_cached_logprobs(examples: Sequence[Example], engine: PolicyEngine, budget: int, folder: Path) -> list[Example]:
    """Return the examples with reference logprobs, cached in `folder`.

    Called on all ranks, with an engine that has not trained yet.
    """
    file = folder / f"logprobs-{digest_rows(example.content for example in examples)[:16]}.npy"
    if not distributed.call_on_rank_0(file.is_file):
        computed = compute_logprobs(examples, engine, budget)
        distributed.call_on_rank_0(lambda: _write(file, computed))
    values: FloatArray = np.load(file)
    lengths = [sequence.num_trained for example in examples for sequence in example.sequences]
    parts = iter(np.split(values, np.cumsum(lengths)[:-1]))
    return [example.with_reference([next(parts) for _ in example.sequences]) for example in examples]


def compute_logprobs(examples: Sequence[Example], engine: PolicyEngine, budget: int) -> list[FloatArray]:
    """Return the policy's logprobs of the trained tokens, one array per sequence, on every rank."""
    found: list[FloatArray] = []
    meshes = engine.meshes
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        shares = deal(chunk, meshes.dims.num_data, budget, packed=engine.rows.packed)
        answers = engine.compute_logprobs(micro_batches_of(chunk, shares[meshes.data_rank]))
        by_example: dict[int, list[FloatArray]] = {}
        gathered = distributed.gather_objects(answers)[:: meshes.dims.context]
        for mine, arrays in zip(shares, gathered, strict=True):
            for batch, values in zip(mine, arrays, strict=True):
                left = iter(values)
                for index in batch:
                    by_example[index] = [next(left) for _ in chunk[index].sequences]
        found += [array for index in range(len(chunk)) for array in by_example[index]]
    return found


def _write(file: Path, arrays: Sequence[FloatArray]) -> None:
    with written_beside(file.parent) as beside:
        np.save(beside / file.name, np.concatenate(arrays))


def load_live_reference(config: RunConfig, model_path: str, engine: PolicyEngine) -> AddReference:
    """Load a frozen copy of the initial model on every rank."""
    from slurm_rl.models.frozen import FrozenModel

    reference = FrozenModel(model_path, config.model, config.policy, engine.temperature, engine.device)

    def add(batches: MicroBatches) -> MicroBatches:
        return [
            [replace(sequence, ref_logprobs=array) for sequence, array in zip(batch, values, strict=True)]
            for batch, values in zip(batches, reference.compute_logprobs(batches), strict=True)
        ]

    return add
