"""The trained model as a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from slurm_rl.train.engine.folders import written_beside

# How a vision-language model's images are made; beside a text model there are none.
_PROCESSOR_FILES = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
)


def export_model(
    module: PreTrainedModel,
    state: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    processors_of: str,
) -> None:
    """Write config, safetensors and tokenizer to `folder`, whole or not at all.

    Args:
        module: gives the architecture; its own parameters may be shards and are not read.
        state: whole tensors by `state_dict()` name.
        processors_of: the model whose image processor goes with it.
    """
    # Names of one parameter must share one tensor, or the copy is written as well.
    tied = {alias: state[name] for alias, name in module.all_tied_weights_keys.items()}
    with written_beside(folder) as beside:
        module.config.use_cache = True  # off for training only; who generates with the export wants it
        try:
            module.save_pretrained(beside, state_dict=state | tied)
        finally:
            module.config.use_cache = False
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
