"""Rollouts on disk: written by one run, read in place of sampling by another.

One file a step, one line a group; floats are written so that they read back to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from slurm_rl.errors import DataError
from slurm_rl.jsonl import read_lines
from slurm_rl.rl.groups import Group
from slurm_rl.rl.loop.pipeline import parse_group
from slurm_rl.run_dir import RunDir, append_row, write_text


def dump_groups(folder: Path, step: int, groups: Sequence[Group]) -> None:
    """Write the scored groups of one step; one taken again after a crash replaces its file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(group), allow_nan=False) + "\n" for group in groups]
    write_text(_file(folder, step), "".join(lines))


def replay_groups(folder: Path, step: int) -> list[Group]:
    """The groups that `dump_groups` wrote.

    Raises:
        DataError: there are none of this step, or they were written by another version.
    """
    path = _file(folder, step)
    try:
        # A damaged line, which is None, is a TypeError: a step is replayed whole or not at all.
        groups = [parse_group(row) for row in read_lines(path)]  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"rollout.replay must hold what this version of slurm_rl dumps ({type(error).__name__}: {error})",
            seen=str(path),
            action="dump again with rollout.dump=true",
        ) from error
    if not groups:
        raise DataError(
            "rollout.replay must hold the rollouts of every step",
            seen=f"no {path.name} in {folder}",
            action="replay with the warmup.num_steps of the run that dumped them, and no more steps",
        )
    return groups


def log_samples(run: RunDir, step: int, groups: Sequence[Group]) -> None:
    """The first completion of each group, for people who look at what the policy writes."""
    for group in groups:
        completion, result = group.completions[0], group.results[0]
        row = {"prompt": group.prompt.text, "completion": completion.text, "answer": group.prompt.answer}
        append_row(run, run.samples, {"step": step, **row, "reward": result.value})


def _file(folder: Path, step: int) -> Path:
    return folder / f"step-{step}.jsonl"
