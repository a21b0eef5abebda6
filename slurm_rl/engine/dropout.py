"""A model without dropout.

Reinforcement learning compares logprobs of one policy at two moments, so nothing random may lie between them: with
GPT-2's dropout of 0.1 those of the same weights differ by 0.03 on average. The number stands in three places: in the
config, from which layers take it when they are built and which some read while they run; in layers that name it
themselves; and in the adapters, which have none (see lora.py).
"""

from __future__ import annotations

import re

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

# attention_dropout, resid_pdrop, classifier_dropout, layerdrop, drop_path_rate; router_jitter_noise.
_RANDOM = re.compile("drop|jitter")


def clear_dropout(config: PreTrainedConfig) -> None:
    """Set every share that is dropped, and every strength of noise, to 0, also in the configs inside it."""
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            clear_dropout(value)
        elif _RANDOM.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, 0.0)


def clear_dropout_layers(model: PreTrainedModel) -> None:
    """The same in layers that have a share of their own, whatever the config says."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
