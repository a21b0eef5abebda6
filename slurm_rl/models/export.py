"""Export the trained model as a Hugging Face folder, under the published names of its weights.

Safetensors files are written as soon as they are full: memory holds one file, safetensors' copy and one tensor.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from slurm_rl.models.load_model import MAY_BE_ABSENT
from slurm_rl.run_dir.io_errors import written_beside
from slurm_rl.run_dir.run_dir import write_text


def write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> int:
    """Write one file, or several and an index, into an existing folder; return the number of elements."""
    pending: dict[str, Tensor] = {}
    files: list[list[str]] = []
    count = total_bytes = 0

    def write() -> None:
        save_file(pending, folder / f"part-{len(files)}", metadata={"format": "pt"})
        files.append(list(pending))
        pending.clear()

    for name, tensor in tensors:
        if pending and sum(t.nbytes for t in pending.values()) + tensor.nbytes > max_bytes:
            write()
        pending[name] = tensor.contiguous()
        count, total_bytes = count + tensor.numel(), total_bytes + tensor.nbytes
        del tensor  # or it would live until the next one is there
    write()
    if len(files) == 1:
        (folder / "part-0").rename(folder / SAFE_WEIGHTS_NAME)
        return count
    placed: dict[str, str] = {}
    for number, inside in enumerate(files):
        name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        (folder / f"part-{number}").rename(folder / name)
        placed |= dict.fromkeys(inside, name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": placed}
    write_text(folder / SAFE_WEIGHTS_INDEX_NAME, json.dumps(index, indent=2, sort_keys=True) + "\n")
    return count


_READ_JOINED = {"qwen3_moe"}
"""Model types whose joined experts vLLM's loader reads, with far fewer tensors than the published ones."""


def publish(
    module: PreTrainedModel, state: Iterable[tuple[str, Tensor]], shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors as they are published, one by one if the model allows it.

    Args:
        shapes: shapes of all tensors by `state_dict()` name, without adapters.
    """
    apart = goes_one_by_one(module, shapes)
    for given in ({name: tensor} for name, tensor in state) if apart else (dict(state),):
        for name, tensor in revert_weight_conversion(module, given).items():
            yield name, _transpose_expert(module.config.model_type, name, tensor)


def _transpose_expert(model_type: str, name: str, tensor: Tensor) -> Tensor:
    """Return the tensor in the published layout, which vLLM requires.

    transformers 5 reads it, but writes its own: its Transpose(check_dims=True) finds the shapes equal.
    """
    is_expert = name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
    return tensor.transpose(1, 2).contiguous() if is_expert and model_type == "qwen3_vl_moe" else tensor


def publish_for_engine(
    module: PreTrainedModel, state: Iterable[tuple[str, Tensor]], shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors as vLLM's loader reads them: as published if transformers joins tensors of this model."""
    conversions = getattr(module, "_weight_conversions", None) or get_model_conversion_mapping(module)
    joins = any(isinstance(conversion, WeightConverter) for conversion in conversions)
    if not joins or module.config.model_type in _READ_JOINED:
        return iter(state)
    return publish(module, state, shapes)


def goes_one_by_one(module: PreTrainedModel, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Return whether each tensor can be published without the others, so at most renamed or split."""
    if not getattr(module, "_weight_conversions", True):
        return True
    empty = {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}
    try:
        apart = [one for name in empty for one in revert_weight_conversion(module, {name: empty[name]}).items()]
        together = revert_weight_conversion(module, dict(empty))
    except Exception:  # a conversion that misses its other parts, or computes on values
        return False
    shapes_apart, shapes_together = ({n: t.shape for n, t in items} for items in (apart, together.items()))
    return len(apart) == len(together) and shapes_apart == shapes_together


# Hugging Face's default.
MAX_SHARD_BYTES = 5 * 10**9

# How a vision-language model's images are made; a text model has none.
_PROCESSOR_FILES = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
)


def export_model(
    module: PreTrainedModel,
    state: Iterable[tuple[str, Tensor]],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    shapes: Mapping[str, Sequence[int]],
    processors_of: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write config, safetensors and tokenizer to `folder`, whole or not at all, without holding the whole model.

    Args:
        module: the architecture; its own parameters may be shards and are not read.
        state: whole tensors by `state_dict()` name, with their `shapes`.
        processors_of: model whose image processor is copied.
    """
    aliases = module.all_tied_weights_keys  # of a tied parameter one name is written
    kept = ((name, tensor) for name, tensor in state if name not in aliases)
    with written_beside(folder) as staging:
        module.config.use_cache = True  # off only for training
        try:
            module.save_pretrained(staging, state_dict={})
        finally:
            module.config.use_cache = False
        (staging / SAFE_WEIGHTS_NAME).unlink(missing_ok=True)  # it has no tensors
        write_shards(staging, publish(module, kept, shapes), max_shard_bytes)
        tokenizer.save_pretrained(staging)
        copy_processors(processors_of, staging)


def copy_processors(model: str, folder: Path) -> None:
    """Copy the image processor of a model folder or downloaded hub name, if it has one."""
    for name in _PROCESSOR_FILES:
        found = cached_file(model, name, local_files_only=True, **MAY_BE_ABSENT)
        if found is not None:
            shutil.copyfile(found, folder / name)
