"""Holds a run to the prompts it began with: its data position means nothing among others.

The order of the prompts is a function of their number and the seed (see order.py), so one row more, or another
revision of a hub data set, would resume elsewhere without a word.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.errors import DataError
from slurm_rl.run_dir import read_json, write_json
from slurm_rl.train.data.tokenize import EncodedPrompt


def check_same_prompts(path: Path, train: Sequence[EncodedPrompt], held_out: Sequence[EncodedPrompt]) -> None:
    """Write the checksum of the prompts to `path` the first time; compare with it ever after.

    Raises:
        DataError: data file, tokenizer or chat template changed since the run began.
    """
    seen = {
        "num_train": len(train),
        "num_eval": len(held_out),
        "sha256": compute_digest([*train, *held_out]),
    }
    if not path.is_file():
        write_json(path, seen)
        return
    expected = read_json(path)
    if expected != seen:
        raise DataError(
            "a run goes on with the prompts it began with: data, tokenizer and chat template as they were",
            seen=f"{_show(seen)} in place of {_show(expected)}",
            action="bring the old data back, or start a new run with model.init_from=<run>/export",
        )


def compute_digest(prompts: Sequence[EncodedPrompt]) -> str:
    """SHA-256 over tokens, text and answer of all prompts, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        tokens = array("q", prompt.token_ids).tobytes()
        for part in (tokens, prompt.text.encode(), prompt.answer.encode("utf-8", "surrogatepass")):
            # With their lengths, so that no text can pass for the next field.
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _show(prompts: dict[str, object]) -> str:
    return f"{prompts['num_train']} + {prompts['num_eval']} prompts {str(prompts['sha256'])[:12]}"
