"""Tensors of a model folder under all names of a tied weight, which files hold once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor
from transformers import AutoConfig

from slurm_rl.models.load_model import model_class


def find_tied(path: str | Path) -> dict[str, str]:
    """Return tied name -> last two parts of the shared weight's name: lm_head.weight -> embed_tokens.weight."""
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    if not getattr(config.get_text_config(), "tie_word_embeddings", False):
        return {}
    kind = model_class(config)._model_mapping[type(config)]
    return {name: _suffix(source) for name, source in (kind._tied_weights_keys or {}).items()}


def name_tied(tensors: Iterable[tuple[str, Tensor]], tied: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors, and each tied weight under the names that the files leave out."""
    aliases: dict[str, Tensor] = {}
    seen: set[str] = set()
    for name, tensor in tensors:
        seen.add(name)
        aliases |= {alias: tensor for alias, source in tied.items() if _suffix(name) == source}
        yield name, tensor
    yield from ((name, tensor) for name, tensor in aliases.items() if name not in seen)


def _suffix(name: str) -> str:
    return ".".join(name.split(".")[-2:])
