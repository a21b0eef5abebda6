"""The names under which a model's weights are published, which for some models are not those of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def publish(module: PreTrainedModel, state: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors as they are published, one by one where the model allows that, else all at once."""
    if not goes_one_by_one(module, {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}):
        yield from revert_weight_conversion(module, dict(state)).items()
        return
    for name, tensor in state:
        yield from revert_weight_conversion(module, {name: tensor}).items()


def goes_one_by_one(module: PreTrainedModel, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether each tensor is published without knowing the others, as all are that are at most renamed or split."""
    if not getattr(module, "_weight_conversions", True):
        return True
    empty = {name: torch.empty(*shape, device="meta") for name, shape in shapes.items()}
    try:
        apart = [one for name in empty for one in revert_weight_conversion(module, {name: empty[name]}).items()]
        together = revert_weight_conversion(module, dict(empty))
    except Exception:  # a conversion that misses its other parts, or computes on values
        return False
    return [(name, tensor.shape) for name, tensor in sorted(apart, key=_name)] == [
        (name, tensor.shape) for name, tensor in sorted(together.items(), key=_name)
    ]


def _name(item: tuple[str, Tensor]) -> str:
    return item[0]
