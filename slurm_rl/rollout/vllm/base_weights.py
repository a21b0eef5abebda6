"""A vLLM load format that reads the weights of another folder, for adapters on model.init_from."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from slurm_rl.models.lora import read_base

LOAD_FORMAT = "base_weights"


class BaseWeightsLoader(DefaultModelLoader):
    """vLLM's default format with the files of `model_loader_extra_config`."""

    def __init__(self, load_config: Any) -> None:
        self.folder = load_config.model_loader_extra_config.pop("folder")
        super().__init__(load_config)

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        return read_base(self.folder, model_config.dtype)


def register() -> None:
    """Register the format with vLLM in this process."""
    register_model_loader(LOAD_FORMAT)(BaseWeightsLoader)
