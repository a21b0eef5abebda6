"""Random models of real shapes: nothing is downloaded, and the numbers that matter here do not ask what they say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.trainer_throughput import SHAPES, Shape, build_model
from tests.tiny_llama import build_tiny_llama

CONTEXT = 2048
# Of Qwen2.5-7B, with two layers: its embedding is 1.09 GB in bfloat16, more than the buffer in which weights travel.
WIDE = Shape(3584, 18944, 2, 28, 4, 152064)
TEXT: Final[dict[str, Shape]] = {"0.5b": SHAPES["0.5b"], "1.5b": SHAPES["1.5b"], "wide": WIDE}


def build_text(name: str, folder: Path, *, num_layers: int | None = None) -> Path:
    """A Qwen2 whose tokenizer has the characters of the demo's additions, and a word for each further token."""
    shape = TEXT[name]
    build_model(replace(shape, num_hidden_layers=num_layers or shape.num_hidden_layers), CONTEXT, folder)
    name_all_tokens(folder / "tokenizer.json", shape.vocab_size)
    return folder


def name_all_tokens(tokenizer: Path, vocab_size: int) -> None:
    """What a random model samples is text, too: of tokens without a name nothing would be left to score."""
    tree = json.loads(tokenizer.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary |= {f"<{index}>": index for index in range(len(vocabulary), vocab_size)}
    tokenizer.write_text(json.dumps(tree))


def build_llama(folder: Path, *, num_layers: int = 24) -> Path:
    """A Llama of half a billion parameters, with a tokenizer of bytes and Llama 3's template."""
    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}
    return build_tiny_llama(folder, vocab_size=128256, num_hidden_layers=num_layers, **sizes)


MODELS: Final[dict[str, Callable[[Path], Path]]] = {
    "0.5b": lambda folder: build_text("0.5b", folder),
    "1.5b": lambda folder: build_text("1.5b", folder),
    "wide": lambda folder: build_text("wide", folder),
    "llama": build_llama,
}
