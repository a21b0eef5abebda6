"""Holds a run to the rows it began with: its data position means nothing among others.

The order of the rows is a function of their number and the seed (see split.py), so one row more, or another revision of
a hub data set, would resume elsewhere without a word.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import DataError
from slurm_rl.run_dir import RunDir, read_json, write_json

_NEXT = "bring the old data, tokenizer and slurm_rl back, or start a new run with model.init_from=<run>/export"


def check_same_rows(run: RunDir, num_train: int, num_held_out: int, contents: Iterable[bytes]) -> None:
    """Write number and checksum of the rows the first time; compare with them ever after.

    Args:
        contents: of each row as the model gets it, in order: those to train on, those to evaluate on.

    Raises:
        DataError: data, tokenizer, chat template, or which rows are held out changed since the run began.
    """
    seen = {"num_train": num_train, "num_eval": num_held_out, "sha256": digest_rows(contents)}
    if not run.prompts.is_file():
        if any(run.checkpoints.glob("step-*")):
            raise DataError(
                "a run resumes with the rows it began with, which were written down then",
                seen=f"checkpoints and no {run.prompts.name} in {run.path}: an earlier version began this run",
                action=_NEXT,
            )
        write_json(run.prompts, seen)
        return
    expected = read_json(run.prompts)
    if expected != seen:
        raise DataError(
            "a run resumes with the rows it began with: data, tokenizer, chat template and held-out rows as they were",
            seen=f"{_show(seen)} in place of {_show(expected)}",
            action=_NEXT,
        )


def prompt_content(prompt: EncodedPrompt) -> bytes:
    """Tokens, text, answer, and where the images are."""
    tokens = array("q", prompt.token_ids).tobytes()
    answer, images = prompt.answer.encode("utf-8", "surrogatepass"), [image.source.encode() for image in prompt.images]
    return join_parts(tokens, prompt.text.encode(), answer, *images)


def join_parts(*parts: bytes) -> bytes:
    """The parts with their lengths, so that none can pass for the next one."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def digest_rows(contents: Iterable[bytes]) -> str:
    """SHA-256 of all rows, in order."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _show(rows: dict[str, object]) -> str:
    return f"{rows['num_train']} + {rows['num_eval']} rows {str(rows['sha256'])[:12]}"
