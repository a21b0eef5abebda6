"""A vLLM load format that starts an engine with random weights; the policy sends the real ones.

If an engine ignores the weights that it receives, the probe of the first sync fails. An engine started with the model's
own weights would pass until training has moved the policy by more than the tolerance.
"""

from typing import Any

from torch import nn
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

LOAD_FORMAT = "random_weights"


class RandomWeightsLoader(DummyModelLoader):
    """vLLM's `dummy` format, except that buffers keep their values.

    `dummy` also overwrites constants that the policy does not send, such as the pixel statistics of Qwen-VL's vision
    tower.
    """

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        constants = {name: buffer.clone() for name, buffer in model.named_buffers()}
        super().load_weights(model, model_config)
        for name, buffer in model.named_buffers():
            if name in constants and not constants[name].is_meta:
                buffer.copy_(constants[name])


def register() -> None:
    """Register the format with vLLM in this process."""
    register_model_loader(LOAD_FORMAT)(RandomWeightsLoader)
