"""Files of scored groups: batches in flight in a checkpoint, dumped rollouts of a step, samples.

Floats are written so that they read back to the same bits.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn, with_calls
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import DataError
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.run_dir.io_errors import annotate_path
from slurm_rl.run_dir.jsonl import read_lines
from slurm_rl.run_dir.run_dir import RunDir, append_row, write_text

ROLLOUTS_FILE = "rollouts.npz"
_COLUMNS = {"prompt": np.int32, "token_ids": np.int32, "logprobs": np.float64, "token_versions": np.int32}
"""Types of the long lists of a group: 0.1 us and 12 bytes per token as arrays, 3.5 us and 61 bytes as JSON."""

Columns = dict[str, list[list[Any]]]


def save_rollouts(folder: Path, batches: dict[int, list[Group]]) -> None:
    """Write rollouts.npz if there are batches in flight."""
    if not batches:
        return
    columns: Columns = {name: [] for name in _COLUMNS}
    rows = {step: [_take_columns(group, columns) for group in groups] for step, groups in batches.items()}
    arrays = {"rows": np.frombuffer(json.dumps(rows, allow_nan=False).encode(), np.uint8)}
    for name, lists in columns.items():
        arrays[name] = np.concatenate([np.zeros(0, _COLUMNS[name]), *(np.array(one, _COLUMNS[name]) for one in lists)])
        arrays[f"{name}/lengths"] = np.array([len(one) for one in lists], np.int64)
    path = folder / ROLLOUTS_FILE
    with annotate_path(path), path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_rollouts(folder: Path) -> dict[int, list[Group]]:
    """Read the batches that `save_rollouts` wrote; every digit of the numbers is kept.

    Raises:
        DataError: the file was written by another version.
    """
    path = folder / ROLLOUTS_FILE
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows = json.loads(arrays["rows"].tobytes())
            columns = {name: iter(_split(arrays[name], arrays[f"{name}/lengths"])) for name in _COLUMNS}
        return {int(step): [_put_columns(parse_group(group), columns) for group in rows[step]] for step in rows}
    except (ValueError, TypeError, KeyError, EOFError, StopIteration, zipfile.BadZipFile) as error:
        raise DataError(
            f"the batches in flight must be of this version of slurm_rl ({type(error).__name__}: {error})",
            seen=str(path),
            action="resume with the version that saved them, or remove this checkpoint to resume from an earlier one",
        ) from error


def _take_columns(group: Group, columns: Columns) -> dict[str, Any]:
    """Return the group as plain values without its long lists, which go to `columns`."""
    columns["prompt"].append(group.prompt.token_ids)
    completions = []
    for one in group.completions:
        details = one.details
        columns["token_ids"].append(one.token_ids)
        columns["logprobs"].append(one.logprobs)
        columns["token_versions"].append(details.token_versions if details else [])
        short = details and replace(details, token_versions=[])
        completions.append(replace(one, token_ids=[], logprobs=[], details=short))
    return asdict(replace(group, prompt=replace(group.prompt, token_ids=[]), completions=completions))


def _put_columns(group: Group, columns: Mapping[str, Iterator[list[Any]]]) -> Group:
    """Return the group with its long lists."""
    completions = []
    for one in group.completions:
        token_ids, logprobs, versions = (next(columns[name]) for name in ("token_ids", "logprobs", "token_versions"))
        details = one.details and replace(one.details, token_versions=versions)
        completions.append(replace(one, token_ids=token_ids, logprobs=logprobs, details=details))
    return replace(group, prompt=replace(group.prompt, token_ids=next(columns["prompt"])), completions=completions)


def _split(values: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> list[list[Any]]:
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])] if len(lengths) else []


def dump_groups(folder: Path, step: int, groups: Sequence[Group]) -> None:
    """Write the scored groups of one step; a repeated step replaces its file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(group), allow_nan=False) + "\n" for group in groups]
    write_text(_file(folder, step), "".join(lines))


def replay_groups(folder: Path, step: int) -> list[Group]:
    """Read the groups that `dump_groups` wrote.

    Raises:
        DataError: the step is missing, or was written by another version.
    """
    path = _file(folder, step)
    try:
        # A damaged line is None and raises a TypeError.
        groups = [parse_group(row) for row in read_lines(path)]  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"rollout.replay must hold a dump of this version of slurm_rl ({type(error).__name__}: {error})",
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


def log_samples(run: RunDir, step: int, groups: Sequence[Group], *, of_set: str | None = None) -> None:
    """Append the first completion of each group to samples.jsonl.

    Args:
        of_set: name of the evaluation set of the prompts; None for training prompts.
    """
    for group in groups:
        completion, result = group.completions[0], group.results[0]
        row = {
            "row": group.prompt.row_id,
            "prompt": group.prompt.text,
            "completion": completion.text,
            "answer": group.prompt.answer,
        }
        turns = {"turns": [asdict(turn) for turn in completion.turns]} if completion.turns else {}
        name = {} if of_set is None else {"set": of_set}
        append_row(run, run.samples, {"step": step, **name, **row, "reward": result.value, **turns})


def parse_group(tree: dict[str, Any]) -> Group:
    """Rebuild a group from `asdict`."""
    results = [RewardResult(**{**result, "item": RewardItem(**result["item"])}) for result in tree["results"]]
    completions = [Trajectory(**{**one, "details": _parse_details(one["details"])}) for one in tree["completions"]]
    images = tuple(ImageSpan(**span) for span in tree["prompt"].get("images", ()))
    return Group(EncodedPrompt(**{**tree["prompt"], "images": images}), completions, results)


def _parse_details(tree: dict[str, Any] | None) -> Details | None:
    if tree is None:
        return None
    turns = [Turn(**with_calls(turn)) for turn in tree["turns"]]
    return Details(**{**with_calls(tree), "turns": turns, "branches": [Branch(**one) for one in tree["branches"]]})


def _file(folder: Path, step: int) -> Path:
    return folder / f"step-{step}.jsonl"
