"""Sequences into micro-batches, and micro-batches into the rows the model reads.

    lengths 5 3 3 2, budget 6
    pack_by_tokens              [[0], [1, 2], [3]]                             tokens 5 6 2
    distribute, two workers     worker 0: [[0], [3]]   worker 1: [[1], [2]]    tokens 5+2 and 3+3

All of it is deterministic: ties go to the smaller index.

Completions of one prompt that are trained on together may read it once:

    prompt p1 p2 p3, completions a1 a2 and b1      one row   p1 p2 p3 a1 a2 b1
                                                   position   0  1  2  3  4  3

A token attends to the prompt and its own completion, so the results equal those of separate sequences. G completions
of L tokens after a prompt of P take P + G L tokens instead of G (P + L). Prefix Grouper,
https://arxiv.org/abs/2506.05433.
"""

import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.algorithms.sequences import FloatArray, PackedBatch, TrainSequence


def count_shared(sequences: Sequence[TrainSequence]) -> list[int]:
    """Return for each sequence the number of prompt tokens shared with the previous one: all, or 0."""
    return [0] + [
        later.trained_from if _same_prompt(earlier, later) else 0 for earlier, later in itertools.pairwise(sequences)
    ]


def _same_prompt(one: TrainSequence, other: TrainSequence) -> bool:
    length = one.trained_from
    return length == other.trained_from and np.array_equal(one.token_ids[:length], other.token_ids[:length])


def unite(lengths: Sequence[int], shared: Sequence[int], budget: int) -> tuple[list[list[int]], list[int]]:
    """Merge neighbours with the same prompt within the budget; return their indices and tokens.

    >>> unite([5, 5, 5, 4], [0, 3, 3, 0], budget=8)
    ([[0, 1], [2], [3]], [7, 5, 4])
    """
    units: list[list[int]] = []
    tokens: list[int] = []
    for index, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if common and units and tokens[-1] + length - common <= budget:
            units[-1].append(index)
            tokens[-1] += length - common
        else:
            units.append([index])
            tokens.append(length)
    return units, tokens


def pack_by_tokens(lengths: Sequence[int], budget: int, *, padded: bool = False) -> list[list[int]]:
    """First-fit-decreasing: the indices 0..S-1 in bins of at most `budget` tokens.

    A sequence longer than the budget gets its own bin.

    Args:
        padded: each sequence counts as many tokens as the longest of its bin.

    >>> pack_by_tokens([5, 3, 3, 2], 10), pack_by_tokens([5, 3, 3, 2], 10, padded=True)
    ([[0, 1, 3], [2]], [[0, 1], [2, 3]])
    """
    bins: list[list[int]] = []
    room = np.full(len(lengths), budget)
    tops = np.zeros(len(lengths), dtype=np.int64)  # first and longest sequence of each bin
    for index in _longest_first(lengths):
        used, length = len(bins), lengths[index]
        fits = room[:used] >= (tops[:used] if padded else length)
        chosen = int(fits.argmax()) if fits.any() else used
        if chosen == used:
            bins.append([])
            tops[chosen] = length
        room[chosen] -= tops[chosen] if padded else length
        bins[chosen].append(index)
    return [sorted(members) for members in bins]


def distribute(lengths: Sequence[int], num_workers: int, budget: int, *, padded: bool = False) -> list[list[list[int]]]:
    """Return the micro-batches of each worker (lists of indices 0..S-1), the same number for all workers.

    Sharded backends run each micro-batch on all workers at once, so the k-th micro-batches and the totals should have
    similar lengths: bins are distributed in rounds of similar length, the longest to the worker with the fewest tokens.
    For an empty micro-batch the engine runs a dummy of weight zero.

    Args:
        padded: see `pack_by_tokens`.
    """
    packed = pack_by_tokens(lengths, budget, padded=padded)
    num_rounds = -(-len(packed) // num_workers)
    bins = _spread(lengths, num_rounds * num_workers, budget, padded) or packed
    bins += [[] for _ in range(num_rounds * num_workers - len(bins))]
    loads = [sum(lengths[i] for i in members) for members in bins]
    order = _longest_first(loads)

    workers: list[list[list[int]]] = [[] for _ in range(num_workers)]
    totals = [0] * num_workers
    for start in range(0, len(order), num_workers):
        emptiest_first = sorted(range(num_workers), key=lambda w: (totals[w], w))
        for worker, chosen in zip(emptiest_first, order[start : start + num_workers], strict=True):
            workers[worker].append(bins[chosen])
            totals[worker] += loads[chosen]
    return workers


def build_packed_batch(sequences: Sequence[TrainSequence], *, prefix_sharing: bool = False) -> PackedBatch:
    """Concatenate the sequences in one row of T tokens with N trained ones, as CPU tensors.

    Args:
        prefix_sharing: mark shared prompts.
    """
    assert sequences, "a micro-batch without sequences is the engine's dummy, not ours to build"
    lengths = np.array([len(s.token_ids) for s in sequences])
    num_trained = np.array([s.num_trained for s in sequences])
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    seeds = [s.noise_seed for s in sequences if s.noise_seed is not None]
    advantages = _concatenate(num_trained, [s.advantages for s in sequences])
    return PackedBatch(
        token_ids=torch.from_numpy(np.concatenate([s.token_ids for s in sequences])).long(),
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).long(),
        cu_seqlens=torch.from_numpy(cu_seqlens).int(),
        trained_positions=torch.from_numpy(
            np.concatenate([s.positions for s in sequences]) + np.repeat(cu_seqlens[:-1], num_trained)
        ).long(),
        sequence_ids=torch.from_numpy(np.repeat(np.arange(len(sequences)), num_trained)).long(),
        weights=torch.from_numpy(np.repeat([s.weight for s in sequences], num_trained)).float(),
        advantages=torch.zeros(int(num_trained.sum())) if advantages is None else advantages,
        old_logprobs=_concatenate(num_trained, [s.old_logprobs for s in sequences]),
        sampler_logprobs=_concatenate(num_trained, [s.sampler_logprobs for s in sequences]),
        ref_logprobs=_concatenate(num_trained, [s.ref_logprobs for s in sequences]),
        old_values=_concatenate(num_trained, [s.old_values for s in sequences]),
        returns=_concatenate(num_trained, [s.returns for s in sequences]),
        temperatures=_repeat_temperatures(num_trained, sequences),
        # Noise differs from copy to copy of a prompt.
        shared=torch.tensor(count_shared(sequences)) if prefix_sharing and not seeds else None,
        margins=torch.tensor([s.margin for s in sequences], dtype=torch.float32),
        noise_seeds=torch.tensor(seeds, dtype=torch.int64) if len(seeds) == len(sequences) else None,
    )


def _repeat_temperatures(num_trained: npt.NDArray[np.int64], sequences: Sequence[TrainSequence]) -> Tensor | None:
    """Return [N] float32, or None if no sequence has its own temperature."""
    trained = {sequence.temperature for sequence in sequences if sequence.num_trained}
    if trained <= {None}:
        return None
    assert None not in trained, "all sequences of a row must have a temperature, or none"
    return torch.from_numpy(np.repeat([sequence.temperature or 1.0 for sequence in sequences], num_trained)).float()


def split_by_sequence(values: Tensor, sequence_ids: Tensor, num_sequences: int) -> list[FloatArray]:
    """Split values [N] of a packed row into one array [num_trained] per sequence. `sequence_ids` [N] ascends."""
    counts = torch.bincount(sequence_ids, minlength=num_sequences)
    parts = values.detach().float().cpu().split(counts.tolist())
    return [part.numpy() for part in parts]


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _cost(lengths: Sequence[int], members: Sequence[int], index: int, padded: bool) -> int:
    """Return the tokens that `index` adds to a bin; the first member is the longest."""
    return lengths[members[0]] if padded and members else lengths[index]


def _spread(lengths: Sequence[int], num_bins: int, budget: int, padded: bool) -> list[list[int]] | None:
    """Return exactly `num_bins` bins of similar size; None if one overflows.

    First-fit would leave the last bin nearly empty, and its worker idle.
    """
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest_first = [(0, b) for b in range(num_bins)]  # a heap of (tokens, bin)
    for index in _longest_first(lengths):
        load, b = emptiest_first[0]
        load += _cost(lengths, bins[b], index, padded)
        if bins[b] and load > budget:
            return None
        bins[b].append(index)
        heapq.heapreplace(emptiest_first, (load, b))
    return [sorted(members) for members in bins]


def _concatenate(num_trained: npt.NDArray[np.int64], arrays: Sequence[FloatArray | None]) -> Tensor | None:
    """Return [N] float32, or None if no sequence has the field; sequences without trained tokens may lack it."""
    given = [array for array in arrays if array is not None]
    if not given:
        return None
    lengths = [0 if array is None else len(array) for array in arrays]
    assert lengths == num_trained.tolist(), "one value for each trained token of each sequence"
    return torch.from_numpy(np.concatenate(given)).float()
