"""The trained model as a Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from slurm_rl.checkpoints.folders import written_beside
from slurm_rl.engine.published import publish
from slurm_rl.engine.shard_files import SINGLE, write_shards

# As Hugging Face cuts them.
MAX_SHARD_BYTES = 5 * 10**9

# How a vision-language model's images are made; beside a text model there are none.
_PROCESSOR_FILES = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
)


def export_model(
    module: PreTrainedModel,
    state: Iterable[tuple[str, Tensor]],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    processors_of: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write config, safetensors and tokenizer to `folder`, whole or not at all, without holding the whole model.

    Args:
        module: gives the architecture; its own parameters may be shards and are not read.
        state: whole tensors by `state_dict()` name.
        processors_of: the model whose image processor goes with it.
    """
    aliases = module.all_tied_weights_keys  # of a tied parameter one name is written
    kept = ((name, tensor) for name, tensor in state if name not in aliases)
    with written_beside(folder) as beside:
        module.config.use_cache = True  # off for training only; who generates with the export wants it
        try:
            module.save_pretrained(beside, state_dict={})
        finally:
            module.config.use_cache = False
        (beside / SINGLE).unlink(missing_ok=True)  # of no tensors
        write_shards(beside, publish(module, kept), max_shard_bytes)
        tokenizer.save_pretrained(beside)
        copy_processors(processors_of, beside)


def copy_processors(model: str, folder: Path) -> None:
    """Copy the image processor of a model folder, or of a downloaded hub name, as far as there is one."""
    for name in _PROCESSOR_FILES:
        found = cached_file(
            model,
            name,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is not None:
            shutil.copyfile(found, folder / name)
