"""Which tensors of a model's files are each of its parameters: transformers renamed some, and joins others.

    visual.blocks.0.norm1.weight                                   model.visual.blocks.0.norm1.weight
    model.layers.0.mlp.experts.{0..127}.{gate,up}_proj.weight      model.layers.0.mlp.experts.gate_up_proj

A mixture's experts are stacked in the order of their numbers; the tensors of each follow one another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)


@dataclass(frozen=True)
class Published:
    """One parameter in the files."""

    experts: tuple[tuple[str, ...], ...]
    """Of each expert, the tensors that follow one another in its part; of a plain tensor one name."""
    is_joined: bool = False


def find_published(model: PreTrainedModel, names: Iterable[str]) -> dict[str, Published] | None:
    """Parameter to its tensors, of the `names` in the files; None where they are joined or split in another way."""
    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    state, plain = model.state_dict(), {}
    joined: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        own, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if pattern is not None:
            joined[own][pattern].append(name)
        elif own in plain:
            return None  # two for one parameter
        else:
            plain[own] = Published(((name,),))
    found = {own: _join(converters, parts) for own, parts in joined.items()}
    complete = {own: published for own, published in found.items() if published is not None}
    return {**plain, **complete} if len(complete) == len(found) and not plain.keys() & found.keys() else None


def _join(converters: list[WeightConverter], parts: dict[str, list[str]]) -> Published | None:
    """Experts stacked, their parts in the converter's order; None if it does anything else."""
    converter = next(one for one in converters if set(parts) <= set(one.source_patterns))
    steps = [(type(step), getattr(step, "dim", None)) for step in converter.operations]
    if steps not in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)]):
        return None
    columns = [sorted(parts.get(pattern, []), key=_numbers) for pattern in converter.source_patterns]
    same = {tuple(map(_numbers, column)) for column in columns}
    return Published(tuple(zip(*columns, strict=True)), is_joined=True) if len(same) == 1 else None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))
