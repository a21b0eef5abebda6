"""The trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slurm_rl.train.engine.folders import written_beside


def export_model(
    module: PreTrainedModel, state: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write config, safetensors and tokenizer to `folder`, whole or not at all.

    Args:
        module: gives the architecture; its own parameters may be shards and are not read.
        state: whole tensors by `state_dict()` name.
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
