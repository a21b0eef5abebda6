"""Prepare a model: weights, tokenizer and config in a plain folder, so that jobs need no network."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from slurm_rl.errors import ConfigError, DataError
from slurm_rl.plugins.prepare.hf_hub import Wanted, fetch_files
from slurm_rl.plugins.prepare.make_dataset import Say, make_folder
from slurm_rl.plugins.prepare.manifest import Manifest, Output

WANTED = Wanted(
    patterns=("*.safetensors", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py", "LICENSE*"),
    required=("config.json", "*.safetensors"),
    # Folders have copies of the weights for other tools; `consolidated` is Mistral's second copy.
    without=("*/*", "consolidated*"),
)
"""Pickled weights (`.bin`, `.pt`) are excluded: loading them runs code."""
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "tokenizer_config.json")


def prepare_model(repo: str, folder: Path, revision: str, say: Say) -> Manifest:
    """Write the model into `folder`.

    Raises:
        ConfigError, DataError: a wrong name, no safetensors, no tokenizer, a damaged file, offline without the files.
        PrepareError: the download failed; the next call keeps complete files.
    """

    def build(before: Manifest | None) -> Manifest:
        fetched = fetch_files(repo, "model", revision, WANTED, folder, say)
        for name, path in fetched.paths.items():
            if path != folder / name:
                shutil.copyfile(path, folder / name)
        _remove_leftovers(folder, before, set(fetched.paths))
        check_model(folder)
        outputs = [Output(file=source.file, size=source.size) for source in fetched.sources]
        return fetched.make_manifest(repo, folder, revision, outputs)

    return make_folder(folder, revision, say, build)


def check_model(folder: Path) -> None:
    """Raise DataError if config, tokenizer or a shard of the weights is missing or damaged."""
    _read_json(folder / "config.json")
    if not any((folder / name).is_file() for name in TOKENIZER):
        raise ConfigError(
            "the model must come with a tokenizer",
            seen=f"none of {', '.join(TOKENIZER)} in {folder}",
            action="prepare its base model, and set model.path to that",
        )
    index = folder / "model.safetensors.index.json"
    shards = set(_read_json(index).get("weight_map", {}).values()) if index.is_file() else set()
    for name in sorted(shards | {path.name for path in folder.glob("*.safetensors")}):
        check_safetensors(folder / name)


def check_safetensors(path: Path) -> None:
    """Raise DataError unless the header is valid and the file has the length in it.

    Format: 8 bytes, the length N of the header, little-endian; N bytes of JSON, each tensor with its
    `data_offsets`; the data. https://github.com/huggingface/safetensors
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 100_000_000:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except FileNotFoundError:
        raise DataError(
            "every shard in the index must exist", seen=f"no {path}", action="choose another --revision"
        ) from None
    except (struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} must be a safetensors file", seen=str(error) or "no header") from None
    if path.stat().st_size != expected:
        raise DataError(f"{path} must have {expected} bytes by its header", seen=path.stat().st_size)


def _remove_leftovers(folder: Path, before: Manifest | None, names: set[str]) -> None:
    """Remove files of an earlier revision; a second set of shards would be loaded too."""
    for output in before.outputs if before else []:
        if output.file not in names:
            (folder / output.file).unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} must be JSON", seen=str(error)) from None
    if not isinstance(tree, dict):
        raise DataError(f"{path} must be a JSON object", seen=type(tree).__name__)
    return tree
