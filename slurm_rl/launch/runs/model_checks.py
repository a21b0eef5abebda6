"""Check the weights and the reward model of a config by their headers and config.json, without torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.config.model import ModelConfig, require_vision_family
from slurm_rl.config.paths import expand_user
from slurm_rl.config.reward import RewardModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_shape import find_config, find_shape, find_shape_at, has_template, read_object
from slurm_rl.launch.runs.tensor_headers import read_shapes
from slurm_rl.plan.known_models import find_known

_POINTER = b"version https://git-lfs.github.com/spec/"
_INDEX = "model.safetensors.index.json"
_EXPERTS = ("gate_up_proj", "down_proj", "up_proj")
"""Names of joined experts in transformers 5; up_proj only in models without a gate, such as Nemotron-H."""
_EXPERTS_OF = {"NemotronHForCausalLM": ("up_proj", "down_proj")}


_WINDOW = "vLLM's sliding window has one token more than transformers'"
_OTHERS = {
    "bloom": "vLLM's loader does not accept its tied output head",
    "cohere2": _WINDOW,
    "cohere2_moe": _WINDOW,
    "deepseek_v2": "their logprobs differ by up to 0.03",
    "ernie4_5_moe": "after new weights arrive their logprobs differ by up to 0.2",
    "gemma3n_text": "after new weights arrive their logprobs differ by up to 0.1, or are NaN",
    "hrm_text": "their logprobs differ by up to 0.04",
    "lfm2_moe": "their logprobs differ by up to 0.8",
    "mamba2": "their logprobs differ by up to 0.5",
    "nemotron_h": "their logprobs differ by up to 0.6",
}
DISAGREEING = {
    ("apertus", "float32"): "vLLM keeps the parameters of its activation in bfloat16",
    **{(name, dtype): reason for name, reason in _OTHERS.items() for dtype in ("float32", "bfloat16")},
}
"""Model types and number formats for which vLLM and the policy differ (docs/reference/model-families.md)."""


def require_agreement(family: str, dtype: str) -> None:
    """Raise ConfigError for a model whose logprobs differ between vLLM and the policy."""
    if (reason := DISAGREEING.get((family, dtype))) is not None:
        raise ConfigError(
            f"task=grpo needs a model on which vLLM and the policy agree: {reason}",
            seen=f"{family} in {dtype}",
            action=(
                "set model.dtype=bfloat16" if (family, "bfloat16") not in DISAGREEING else "choose another model.path"
            )
            + ", or train it with task=sft or dpo",
        )


def check_weight_files(field: str, folder: Path) -> None:
    """Refuse git-lfs pointers, missing shards, and pickles without safetensors."""
    if pointers := [file.name for file in sorted(folder.iterdir()) if _is_pointer(file)]:
        raise ConfigError(
            f"{field} has git-lfs pointers in place of files",
            seen=f"{_some(pointers)} in {folder}",
            action="run `git lfs pull` in that folder",
        )
    if (folder / _INDEX).is_file():
        shards = set(read_object(folder / _INDEX).get("weight_map", {}).values())
        if missing := sorted(name for name in shards if not (folder / name).is_file()):
            raise ConfigError(
                f"{field} lacks {len(missing)} of the {len(shards)} files that its {_INDEX} names",
                seen=f"{_some(missing)} missing in {folder}",
                action="download or copy the folder again",
            )
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{field} must have its weights as safetensors; pickles, which can run code, are never loaded",
            seen=f"{_some(pickles)} in {folder}",
            action="convert it once: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)",
        )


def _is_pointer(file: Path) -> bool:
    if not file.is_file() or file.stat().st_size > 1024:
        return False
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) == _POINTER


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_family(model: ModelConfig, *, is_sampled: bool) -> None:
    """Refuse a model that cannot be trained or sampled, if its config.json is on this machine."""
    found = None if model.source is None else find_config(model.source)
    tree = {} if found is None else read_object(found)
    family = str(tree.get("model_type"))
    if tree.get("vision_config") is not None:
        require_vision_family(family, str(model.source))
    if is_sampled:
        require_agreement(family, model.dtype)


def check_lora_targets(model: ModelConfig) -> None:
    """Refuse targets that are no linear layers or experts, if the weights, or the config.json, are on this machine."""
    if model.lora is None or model.source is None:
        return
    if model.lora.target_parameters:
        _check_expert_names(model.lora.target_parameters, model.source, is_foreign=model.trust_remote_code)
    known = read_linear_names(expand_user(model.source))
    if known is not None:
        model.lora.choose_targets(known, model.source)


def _check_expert_names(targets: Sequence[str], source: str, *, is_foreign: bool) -> None:
    """Refuse targets that are no joined experts in transformers; the code of a foreign model may have other names."""
    shape = find_shape_at(source)
    if shape is not None and shape.num_experts == 1:
        raise ConfigError(
            "model.lora.target_parameters needs a mixture of experts",
            seen=f"{targets[0]} with {source}, a {shape.architecture or 'dense model'}",
            action="leave it out; model.lora.target_modules has the linear layers",
        )
    joined = _EXPERTS if shape is None else _EXPERTS_OF.get(shape.architecture or "", _EXPERTS[:2])
    valid = re.compile(rf"((\w+\.)*experts\.)?({'|'.join(joined)})")
    unknown = [] if is_foreign else [name for name in targets if not valid.fullmatch(name)]
    if unknown:
        raise ConfigError(
            "model.lora.target_parameters must name joined experts of the model",
            seen=f"{', '.join(unknown)} with {source}",
            action=f"choose from {', '.join(f'experts.{name}' for name in joined)}",
        )


def read_linear_names(folder: Path) -> set[str] | None:
    """Last parts of the names of the linear layers inside blocks; None where there are no safetensors.

    Experts are fused when the model is loaded. GPT-2's Conv1D layers are transposed: their bias fits the columns.
    """
    shapes, names, transposed = read_shapes(folder), set(), set()
    for name, shape in shapes.items():
        layer, _, kind = name.rpartition(".")
        parts = layer.split(".")
        if kind != "weight" or len(shape) != 2 or not any(part.isdigit() for part in parts) or "experts" in parts:
            continue
        names.add(parts[-1])
        bias = shapes.get(f"{layer}.bias")
        if bias == shape[1:] != shape[:1]:
            transposed.add(parts[-1])
    return names - transposed if shapes else None


_SHOWN = 3
_EMBEDDING = "embed_tokens.weight"


def check_same_model(field: str, weights: str | None, model: ModelConfig) -> None:
    """Refuse weights with other shapes than the model, as far as this machine sees both."""
    found = {} if weights is None else read_shapes(expand_user(weights))
    wanted = _expected(model)
    # Some models have names of their own once they are loaded; the trainer compares those, too.
    wrong = {name: shape for name, shape in found.items() if (short := _find(wanted, name)) and wanted[short] != shape}
    if wrong:
        told = "; ".join(f"{name} {wrong[name]}" for name in sorted(wrong)[:_SHOWN])
        needed = "; ".join(f"{wanted[_find(wanted, name) or name]}" for name in sorted(wrong)[:_SHOWN])
        raise ConfigError(
            f"the weights of {field} must have the shapes of the model ({needed})",
            seen=f"{told} in {weights}",
            action=f"point {field} at weights of the same architecture and size",
        )


def _find(wanted: dict[str, list[int]], name: str) -> str | None:
    return name if name in wanted else next((key for key in wanted if name.endswith(f".{key}")), None)


def _expected(model: ModelConfig) -> dict[str, list[int]]:
    """Return shapes by name; without visible weights only that of the embedding, which differs between most models."""
    if model.path is not None and (shapes := read_shapes(expand_user(model.path))):
        return shapes
    shape = find_shape(model)
    return {} if shape is None else {_EMBEDDING: [shape.vocab_size, shape.hidden_size]}


def _refuse_generator(name: str) -> None:
    """Refuse the hub name of a known language model, which generates text."""
    if find_known(name) is not None:
        raise ConfigError(
            "reward.model.path must be a sequence classifier with one output",
            seen=f"{name}, which generates text",
            action=f"name a reward model, or let it judge: reward.judge.server.model={name} (docs/judges.md)",
        )


def check_reward_model(config: RewardModelConfig, chat_template: bool | None) -> None:
    """Refuse a folder or hub name that is no such model; a name that this machine does not know is read on the node.

    Args:
        chat_template: Whether prompts are chats; None if unknown, as for a service of several runs.

    Raises:
        ConfigError: more than one output, scores that were never measured, or chats for a model of text.
    """
    found = None if config.path is None else find_config(config.path)
    if found is None:
        _refuse_generator(config.path or "")
        return
    folder, model = found.parent, read_object(found)
    num_outputs = len(model["id2label"]) if "id2label" in model else model.get("num_labels", 2)  # as Hugging Face
    if num_outputs != 1:
        raise ConfigError(
            "reward.model.path must be a sequence classifier with one output",
            seen=f"{num_outputs} in {folder}",
            action="name a folder that task=rm exported",
        )
    if config.normalize and not ("mean" in model and model.get("std", 0) > 0):
        raise ConfigError(
            "reward.model.normalize needs mean and std > 0 of the model's scores in its config.json",
            seen=f"mean={model.get('mean')}, std={model.get('std')} in {folder}",
            action="finish its training with task=rm, which measures them, or set reward.model.normalize=false",
        )
    if chat_template and not (model.get("scores_chats", True) and has_template(folder)):
        raise ConfigError(
            "data.chat_template=true needs a reward model trained on chats, with its own chat template",
            seen=f"{folder}, trained on text" if has_template(folder) else f"{folder} without a template",
            action="train it with data.chat_template=true, or set data.chat_template=false for both",
        )
