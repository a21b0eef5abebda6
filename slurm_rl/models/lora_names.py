"""Names of adapted tensors: peft's, and those of the plain model."""

from __future__ import annotations

import re

ADAPTER = "default"
"""peft's name of the adapter."""
PEFT_NAME = re.compile(rf"\.lora_(A|B)\.{ADAPTER}\.weight$")


def plain_name(name: str) -> str:
    """Return the plain model's name of a tensor.

    >>> plain_name("q_proj.base_layer.weight"), plain_name("q_proj.lora_A.default.weight")
    ('q_proj.weight', 'q_proj.lora_A.weight')
    """
    return PEFT_NAME.sub(r".lora_\1.weight", name.replace(".base_layer.", "."))
