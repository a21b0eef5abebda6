"""A model that is read and never trained: a reference."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models.distributed import require_equal_counts
from slurm_rl.models.forward import RowReader
from slurm_rl.models.fsdp2 import fill_shards, shard_blocks
from slurm_rl.models.load_model import load_model, open_model
from slurm_rl.models.meshes import Meshes, open_meshes
from slurm_rl.models.row_check import check_rows
from slurm_rl.models.vision import load_image_reader


class FrozenModel:
    """Split over the ranks where the policy is (by FSDP2, whatever splits the policy), else a whole copy on each."""

    def __init__(
        self, folder: str | Path, model: ModelConfig, policy: PolicyConfig, temperature: float, device: torch.device
    ) -> None:
        meshes = open_meshes(policy)
        model = meshes.choose_attention(model)
        self.is_split = meshes.num_parts > 1
        if self.is_split:
            module = _load_part(folder, model, meshes, device, any_mask=policy.prefix_sharing)
        else:
            module = load_model(folder, model, any_mask=policy.prefix_sharing).to(device)
        module.eval()
        images = load_image_reader(folder, model)
        reader = RowReader(module, device, images, policy.chunk_tokens, policy.prefix_sharing)
        reader = replace(reader, context=meshes.open_context(module.config, has_images=images is not None))
        self.rows = check_rows(reader, module.dtype)
        self.reader, self.temperature = replace(reader, packed=self.rows.packed), temperature

    def compute_logprobs(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens, by micro-batch and sequence; where it is split, on all ranks together."""
        if self.is_split:
            require_equal_counts(len(micro_batches))
        return [self.reader.compute_logprobs(batch, self.temperature) for batch in micro_batches]


def _load_part(
    folder: str | Path, model: ModelConfig, meshes: Meshes, device: torch.device, *, any_mask: bool
) -> PreTrainedModel:
    module, files = open_model(folder, model, any_mask=any_mask)
    module.requires_grad_(False)
    shard_blocks(module, module.dtype, meshes, offload=False)
    if files is not None:
        fill_shards(module, files, device, meshes)
    return module.to(device)
