"""From the data section to the rows to train on and the rows to evaluate on."""

from __future__ import annotations

import hashlib
import json

from slurm_rl.config.data import DataConfig
from slurm_rl.train.data.addition import build_addition_rows
from slurm_rl.train.data.hold_out import hold_out
from slurm_rl.train.data.prompts import Columns, PromptRow, load_rows


def load_data(config: DataConfig, seed: int) -> tuple[list[PromptRow], list[PromptRow]]:
    """Return (train rows, eval rows); the same for the same config, files and seed.

    Without `data.eval`, `num_eval` rows drawn by `seed` are held out. A prompt that is held out is
    in no row that stays, also when the file has it twice.

    Raises:
        DataError: a file is wrong (see `load_rows`), or holding out leaves nothing to train on.
    """
    rows = _load_train(config, seed)
    if config.eval is not None:
        return rows, _load(config, config.eval, config.eval_split)[: config.num_eval]
    return hold_out(rows, config.num_eval, seed, _identity)


def _load_train(config: DataConfig, seed: int) -> list[PromptRow]:
    if config.train == "addition":
        return build_addition_rows(config.largest_addend, seed)
    return _load(config, config.train, config.train_split)


def _load(config: DataConfig, name: str, split: str) -> list[PromptRow]:
    columns = Columns(input=config.input_key, label=config.label_key, image=config.image_key)
    return load_rows(name, columns, subset=config.subset, revision=config.revision, split=split)


def _identity(row: PromptRow) -> str:
    # Images inside the rows by their checksum.
    return json.dumps(row.prompt, sort_keys=True, default=lambda value: hashlib.sha256(value).hexdigest())
