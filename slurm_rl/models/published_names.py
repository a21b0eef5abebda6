"""Map parameters to tensors in the model's files: transformers renames some, and joins others.

visual.blocks.0.norm1.weight                                   model.visual.blocks.0.norm1.weight
model.layers.0.mlp.experts.{0..127}.{gate,up}_proj.weight      model.layers.0.mlp.experts.gate_up_proj
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from slurm_rl.errors import ConfigError


@dataclass(frozen=True)
class Published:
    experts: tuple[tuple[str, ...], ...]
    """Names of the tensors of each expert, in order; a plain tensor has one name."""
    is_joined: bool = False


def find_missing(model: PreTrainedModel, names: Iterable[str]) -> set[str]:
    """Return the parameters without a tensor in the files; empty if files join parameters."""
    (renamings, converters), state = _read_conversions(model), model.state_dict()
    if any(len(converter.target_patterns) > 1 for converter in converters):
        return set()
    prefix = model.base_model_prefix
    held = {rename_source_key(name, renamings, converters, prefix, state)[0] for name in names}
    tied = model.named_parameters(remove_duplicate=False)
    filled = {parameter for name, parameter in tied if name in held}
    return {name for name, parameter in model.named_parameters() if parameter not in filled}


def find_published(model: PreTrainedModel, names: Iterable[str]) -> dict[str, Published] | None:
    """Return the tensors of each parameter; None if they are joined or split in an unsupported way."""
    plain: dict[str, Published] = {}
    joined: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    (renamings, converters), state = _read_conversions(model), model.state_dict()
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


def name_layers_in_files(
    model: PreTrainedModel, state: Mapping[str, Any], layers: Iterable[str], names: Iterable[str]
) -> dict[str, str]:
    """Return the name in the files of each of `layers`, such as `visual.merger.mlp.0` of `model.visual.merger.mlp.0`.

    Raises:
        ConfigError: the files hold the weight of a layer joined with others, or not at all.
    """
    renamings, converters = _read_conversions(model)
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        own, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, dict(state))
        found[own].append(name if pattern is None else "")
    layers = list(layers)
    named = {layer: found[f"{layer}.weight"] for layer in layers}
    if wrong := [layer for layer in layers if len(named[layer]) != 1 or not named[layer][0]]:
        raise ConfigError(
            "the base model's files must contain the weight of every layer that has an adapter, under its own name",
            seen=", ".join(wrong[:4]),
            action="leave these layers out of model.lora.target_modules",
        )
    return {layer: name.removesuffix(".weight") for layer, [name] in named.items()}


def _read_conversions(model: PreTrainedModel) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    return renamings, [change for change in changes if isinstance(change, WeightConverter)]


def _join(converters: list[WeightConverter], parts: dict[str, list[str]]) -> Published | None:
    """Return stacked experts, their parts in the converter's order; None for other conversions."""
    converter = next(one for one in converters if set(parts) <= set(one.source_patterns))
    steps = [(type(step), getattr(step, "dim", None)) for step in converter.operations]
    if steps not in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)]):
        return None
    columns = [sorted(parts.get(pattern, []), key=_numbers) for pattern in converter.source_patterns]
    same = {tuple(map(_numbers, column)) for column in columns}
    return Published(tuple(zip(*columns, strict=True)), is_joined=True) if len(same) == 1 else None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


ADAPTER = "default"
"""peft's name of the adapter."""
PEFT_NAME = re.compile(rf"\.lora_(A|B)\.{ADAPTER}\.weight$")


def plain_name(name: str) -> str:
    """Return the plain model's name of a tensor.

    >>> plain_name("q_proj.base_layer.weight"), plain_name("q_proj.lora_A.default.weight")
    ('q_proj.weight', 'q_proj.lora_A.weight')
    """
    return PEFT_NAME.sub(r".lora_\1.weight", name.replace(".base_layer.", "."))
