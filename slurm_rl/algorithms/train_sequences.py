"""Groups to training sequences: one per completion, or one per branch of an episode. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_rl.algorithms.losses import aggregation_weights
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.data.groups import Branch, Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt


def build_plain_sequences(
    groups: Sequence[Group], temperatures: Mapping[str, float] | None = None
) -> list[TrainSequence]:
    """Return one sequence per completion or branch, in the order of groups and completions, without learning targets.

    Args:
        temperatures: sampling temperature by source, if they differ; see `own_temperatures`.
    """
    if temperatures:
        return [
            replace(sequence, temperature=temperatures[group.prompt.source])
            for group in groups
            for sequence in build_plain_sequences([group])
        ]
    return [
        sequence
        for group in groups
        for completion in group.completions
        for sequence in _build_branches(group.prompt, completion)
    ]


def _build_branches(prompt: EncodedPrompt, completion: Trajectory) -> list[TrainSequence]:
    if not completion.branches:
        return [_mask_environment(_join(prompt, completion.token_ids), completion)]
    return [
        TrainSequence(
            token_ids=np.asarray([*branch.context, *completion.token_ids[branch.start : branch.end]], dtype=np.int64),
            trained_from=len(branch.context),
            trained=np.asarray(places, dtype=np.int64) - branch.start + len(branch.context),
        )
        for branch, places in _places_of_branches(completion)
    ]


def _places_of_branches(completion: Trajectory) -> list[tuple[Branch, list[int]]]:
    """Return each branch with the indices of its sampled tokens in `token_ids`."""
    places = completion.sampled_places()
    return [(branch, [it for it in places if branch.start <= it < branch.end]) for branch in completion.branches]


def find_parts(groups: Sequence[Group]) -> list[tuple[int, slice]]:
    """Return for each sequence the index of its completion and the slice of the completion's sampled tokens."""
    parts: list[tuple[int, slice]] = []
    for owner, completion in enumerate(completion for group in groups for completion in group.completions):
        first = 0
        for _, places in _places_of_branches(completion):
            parts.append((owner, slice(first, first + len(places))))
            first += len(places)
        if not completion.branches:
            parts.append((owner, slice(None)))
    return parts


def join_parts(parts: Sequence[tuple[int, slice]], arrays: Sequence[FloatArray]) -> list[FloatArray]:
    """Concatenate the arrays of the sequences of each completion."""
    joined: dict[int, FloatArray] = {}
    for (owner, _), array in zip(parts, arrays, strict=True):
        joined[owner] = np.concatenate([joined[owner], array]) if owner in joined else array
    return [*joined.values()]


def _join(prompt: EncodedPrompt, answer: Sequence[int], weight: float = 0.0) -> TrainSequence:
    token_ids = np.asarray([*prompt.token_ids, *answer], dtype=np.int64)
    return TrainSequence(token_ids=token_ids, trained_from=len(prompt.token_ids), weight=weight, images=prompt.images)


def _mask_environment(sequence: TrainSequence, completion: Trajectory) -> TrainSequence:
    """Exclude the environment's tokens of an episode from training."""
    places = completion.sampled_places()
    if len(places) == len(completion.token_ids):
        return sequence
    return replace(sequence, trained=sequence.trained_from + np.asarray(places, dtype=np.int64))


def build_answer_sequences(prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]]) -> list[TrainSequence]:
    """Return one sequence per reference answer; all answer tokens have the same weight."""
    weights = aggregation_weights("token-mean", [len(answer) for answer in answers], None)
    return [_join(*row) for row in zip(prompts, answers, weights.tolist(), strict=True)]
