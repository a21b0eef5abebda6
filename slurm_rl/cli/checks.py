"""Checks at submit time that look at files; nothing is queued before they pass."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_rl.cli.lora_check import check_lora_targets
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError


def check_inputs(config: RunConfig) -> None:
    """Check the model folder and the data files that this machine can see.

    Raises:
        ConfigError, DataError: naming the field, the file and the line.
    """
    _check_model(config)
    _check_data(config)


def _check_model(config: RunConfig) -> None:
    for field, value in (("model.path", config.model.path), ("model.init_from", config.model.init_from)):
        # A name without a slash in front may be one of the hub; the node looks that up in its cache.
        if value and value.startswith(("/", "./", "../", "~")) and not Path(value).expanduser().is_dir():
            raise ConfigError(f"{field} must be a folder", seen=value, action="fix the path")
    if config.model.path:
        _check_pad_token(Path(config.model.path))
    check_lora_targets(config.model)


def _check_pad_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    if path.is_file() and not json.loads(path.read_text(encoding="utf-8")).get("pad_token"):
        raise ConfigError(
            "model.path must have a tokenizer with a pad token",
            seen=str(path),
            action='add "pad_token" (often the end-of-text token) to tokenizer_config.json',
        )


def _check_data(config: RunConfig) -> None:
    # Reading rows needs no torch; the same function loads them in the trainer.
    from slurm_rl.train.data.load import load_data

    load_data(config.data, config.seed)
