"""Random models with the shapes of published ones; nothing is downloaded."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.trainer_throughput import SHAPES, Shape, build_model
from tests.tiny_llama import build_tiny_llama

CONTEXT = 2048
# Qwen2.5-7B with two layers: its embedding (1.09 GB in bfloat16) is larger than the weight-transfer buffer.
WIDE = Shape(3584, 18944, 2, 28, 4, 152064)
TEXT: Final[dict[str, Shape]] = {"0.5b": SHAPES["0.5b"], "1.5b": SHAPES["1.5b"], "wide": WIDE}


def build_text(name: str, folder: Path, *, num_layers: int | None = None) -> Path:
    """Build a Qwen2 with a tokenizer for the characters of the demo and one word for each further token."""
    shape = TEXT[name]
    build_model(replace(shape, num_hidden_layers=num_layers or shape.num_hidden_layers), CONTEXT, folder)
    name_all_tokens(folder / "tokenizer.json", shape.vocab_size)
    return folder


def name_all_tokens(tokenizer: Path, vocab_size: int) -> None:
    """Give every token a text: otherwise samples of a random model would decode to nothing."""
    tree = json.loads(tokenizer.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary |= {f"<{index}>": index for index in range(len(vocabulary), vocab_size)}
    tokenizer.write_text(json.dumps(tree))


def build_llama(folder: Path, *, num_layers: int = 24) -> Path:
    """Build a Llama of half a billion parameters with a byte tokenizer and Llama 3's chat template."""
    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}
    return build_tiny_llama(folder, vocab_size=128256, num_hidden_layers=num_layers, **sizes)


MODELS: Final[dict[str, Callable[[Path], Path]]] = {
    "0.5b": lambda folder: build_text("0.5b", folder),
    "1.5b": lambda folder: build_text("1.5b", folder),
    "wide": lambda folder: build_text("wide", folder),
    "llama": build_llama,
}
