"""What DPO's reference says of each answer: asked once and kept on disk, or asked in every step.

The reference is the policy as the run found it. Asked once, it is never in memory together with the policy: the engine
answers before its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from slurm_rl.checkpoints.folders import written_beside
from slurm_rl.config.run import RunConfig
from slurm_rl.data.identity import digest_rows
from slurm_rl.engine import distributed
from slurm_rl.engine.policy import PolicyEngine
from slurm_rl.math.sequences import FloatArray, TrainSequence
from slurm_rl.supervised.objective import Example, deal, micro_batches_of

MicroBatches = list[list[TrainSequence]]
AddReference = Callable[[MicroBatches], MicroBatches]
"""This rank's micro-batches to the same with the reference's logprobs."""

# Examples asked of at once, whose logprobs go over the network together.
_CHUNK = 4096


def add_cached_logprobs(examples: Sequence[Example], engine: PolicyEngine, budget: int, folder: Path) -> list[Example]:
    """The examples with the logprobs in `folder`; computes and writes them when those of these rows are not there yet.

    Called on all ranks, with an engine that has not trained yet.
    """
    file = folder / f"logprobs-{digest_rows(example.content for example in examples)[:16]}.npy"
    if not distributed.call_on_rank_0(file.is_file):
        computed = compute_logprobs(examples, engine, budget)
        distributed.call_on_rank_0(lambda: _write(file, computed))
    values: FloatArray = np.load(file)  # no pickle in it
    lengths = [sequence.num_trained for example in examples for sequence in example.sequences]
    parts = iter(np.split(values, np.cumsum(lengths)[:-1]))
    return [example.with_reference([next(parts) for _ in example.sequences]) for example in examples]


def compute_logprobs(examples: Sequence[Example], engine: PolicyEngine, budget: int) -> list[FloatArray]:
    """What the engine's policy says of each learned token, one array a sequence, on every rank."""
    found: list[FloatArray] = []
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        shares = deal(chunk, distributed.get_world_size(), budget, packed=engine.rows.packed)
        answers = engine.compute_logprobs(micro_batches_of(chunk, shares[distributed.get_rank()]))
        by_example: dict[int, list[FloatArray]] = {}
        for mine, arrays in zip(shares, distributed.gather_objects(answers), strict=True):
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
    """A frozen copy of the model the run began with, whole on every rank."""
    from slurm_rl.engine.frozen import FrozenModel

    reference = FrozenModel(model_path, config.model, config.policy, engine.temperature, engine.device)

    def add(batches: MicroBatches) -> MicroBatches:
        return [
            [replace(sequence, ref_logprobs=array) for sequence, array in zip(batch, values, strict=True)]
            for batch, values in zip(batches, reference.compute_logprobs(batches), strict=True)
        ]

    return add
