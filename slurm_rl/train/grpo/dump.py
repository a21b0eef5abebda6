"""Rollouts on disk: written by one run, read in place of sampling by another.

One file a round of a step, one line a group; floats are written so that they read back to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError
from slurm_rl.run_dir import read_jsonl, write_text
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.types import Completion, Group
from slurm_rl.train.rewards.types import RewardItem, RewardResult


def dump_groups(folder: Path, step: int, round_number: int, groups: Sequence[Group]) -> None:
    """Write the scored groups of one round; a step taken again after a crash replaces its file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(group), allow_nan=False) + "\n" for group in groups]
    write_text(_file(folder, step, round_number), "".join(lines))


def replay_groups(folder: Path, step: int, round_number: int) -> list[Group]:
    """The groups that `dump_groups` wrote.

    Raises:
        DataError: there are none of this step and round, or they were written by another version.
    """
    path = _file(folder, step, round_number)
    try:
        groups = [_parse(row) for row in read_jsonl(path)]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"rollout.replay must hold what this version of slurm_rl dumps ({type(error).__name__}: {error})",
            seen=str(path),
            action="dump again with rollout.dump=true",
        ) from error
    if not groups:
        raise DataError(
            "rollout.replay must hold the rollouts of every step and round",
            seen=f"no {path.name} in {folder}",
            action="replay with the warmup.num_steps, trainer.num_steps and algorithm.dynamic_sampling_rounds of the "
            "run that dumped them",
        )
    return groups


def _file(folder: Path, step: int, round_number: int) -> Path:
    return folder / f"step-{step}-round-{round_number}.jsonl"


def _parse(row: dict[str, Any]) -> Group:
    results = [RewardResult(**{**result, "item": RewardItem(**result["item"])}) for result in row["results"]]
    completions = [Completion(**completion) for completion in row["completions"]]
    return Group(EncodedPrompt(**row["prompt"]), completions, results)
