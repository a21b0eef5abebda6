"""Checks at submit time that look at files; nothing is queued before they pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from slurm_rl.cli.model_shape import sees_images
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, MissingLibraryError


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
    from slurm_rl.train.data.images import check_sources
    from slurm_rl.train.data.load import load_data
    from slurm_rl.train.data.placeholders import list_images

    try:
        rows = [row for part in load_data(config.data, config.seed) for row in part]
    except MissingLibraryError as error:
        print(f"slurm_rl: the data are checked on the node only, since here {error}", file=sys.stderr)
        return
    places = [(row, f"row {row.index}") for row in rows]
    images = [(source, where) for row, where in places for source in list_images(row.prompt, where)]
    if (images or config.data.image_key is not None) and sees_images(config.model) is False:
        raise ConfigError(
            "data with images needs a vision-language model",
            seen=f"{len(images)} images, data.image_key={config.data.image_key} and a model of text alone",
            action="set model.path to a Qwen2.5-VL or Qwen3-VL, or data.image_key=null and prompts without images",
        )
    check_sources(images)
