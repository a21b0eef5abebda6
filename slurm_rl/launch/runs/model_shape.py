"""The model's shape, from a config.json that this machine can see, or by its name; without torch or a network."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from slurm_rl.config.hub_names import find_snapshot, is_hub_name
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.parse import parse_config
from slurm_rl.config.paths import expand_user
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.rope import extend_rope, read_context
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.tensor_headers import count_parameters
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.run_dir.run_dir import RunDir

_AGAIN = "fetch it again"


def find_shape(model: ModelConfig) -> ModelShape | None:
    """Return the shape; None for an unknown family or hub name. Raises ConfigError for an invalid config.json."""
    planned = find_planned(model.path)
    shape = find_shape(planned) if planned is not None else find_shape_at(model.source)
    return shape if shape is None else replace(shape, context_length=_extend(model, shape.context_length))


def _extend(model: ModelConfig, context: int | None) -> int | None:
    """Return the context with `model.rope_scaling`. Raises ConfigError if a config.json cannot be scaled."""
    scaling, source = model.rope_scaling, model.source or ""
    if scaling is None:
        return context
    if (found := find_config(source)) is not None:
        tree = read_object(found)
        text = tree.get("text_config") or tree
        return read_context({**text, **extend_rope(scaling, text, source)})
    original = scaling.original_max_position_embeddings or context
    return None if original is None else int(scaling.factor * original)


def find_shape_at(path: str | None) -> ModelShape | None:
    """Return the shape of the model in a folder or of this name on the hub; None if unknown or without a path."""
    if path is None:
        return None
    found = find_config(path)
    if found is None:
        return find_known(path)
    config = read_object(found)
    return parse_shape(config, count_parameters(found.parent, config))


def require_shape(config: RunConfig, key: str, path: str | None, shape: ModelShape | None) -> None:
    """Raise ConfigError if GPUs of known memory would be planned for a model of unknown size.

    A folder that only the cluster's machines can see is planned without an estimate.
    """
    cluster, is_seen = config.cluster, path is not None and (is_hub_name(path) or find_config(path) is not None)
    if shape is not None or path is None or not is_seen or not cluster.gpus_per_node or cluster.gpu_mem_gb is None:
        return
    fetch = f"run `python -m slurm_rl prepare model {path}`, then set {key} to the folder that it prints"
    blind = "set cluster.gpu_mem_gb=null to plan without an estimate, and policy.micro_batch_tokens yourself"
    raise ConfigError(
        f"the size of {key} must be known, or the plan would guess the memory that it needs",
        seen=f"{path}, which is neither on this machine nor in slurm_rl/plan/known_models.csv"
        if is_hub_name(path)
        else f"{path}, whose config.json has no sizes that slurm_rl knows",
        action=fetch if is_hub_name(path) and find_config(path) is None else blind,
    )


def find_reward_shape(reward: RewardConfig) -> ModelShape | None:
    """Return the shape of the model on the GPUs of reward services or of a judge's servers."""
    path = reward.judge.server.model or (reward.model.path if reward.models_on_gpus else None)
    found = None if path is None else find_config(path)
    # Quantized weights have other sizes.
    return None if found is not None and "quantization_config" in read_object(found) else find_shape_at(path)


def sees_images(model: ModelConfig) -> bool | None:
    """Return True for a vision-language model; None if its config.json is not on this machine."""
    if (planned := find_planned(model.path)) is not None:
        return sees_images(planned)
    found = None if model.source is None else find_config(model.source)
    if found is not None:
        return "vision_config" in read_object(found)
    shape = find_known(model.source or "")
    return None if shape is None else shape.vision_parameters > 0


def find_planned(path: str | None) -> ModelConfig | None:
    """Return the model that a run will export to this path; None for other paths and existing exports."""
    if path is None:
        return None
    folder = expand_user(path).absolute()
    run = RunDir(folder.parent)
    if folder != run.export or folder.exists() or not run.config.is_file():
        return None
    return parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8"))).model


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model's folder. Raises ConfigError if it is no JSON object."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model's {path.name} must be JSON", seen=f"{path}: {error}", action=_AGAIN) from None
    if not isinstance(tree, dict):
        seen = f"{path}: {type(tree).__name__}"
        raise ConfigError(f"the model's {path.name} must be a JSON object", seen=seen, action=_AGAIN)
    return tree


def find_config(name: str) -> Path | None:
    folder = expand_user(name)
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    snapshot = find_snapshot(name)
    return None if snapshot is None else snapshot / "config.json"


def uses_chat_template(config: RunConfig) -> bool | None:
    """Return whether prompts are rendered with a chat template; None if the tokenizer is not on this machine."""
    choice = config.data.chat_template
    return choice if choice != "auto" else model_has_template(config.model)


def model_has_template(model: ModelConfig) -> bool | None:
    """Return whether the model's tokenizer has a chat template; None if it is not on this machine."""
    if model.source is None:
        return True
    if (planned := find_planned(model.path)) is not None:
        return model_has_template(planned)
    found = find_config(model.source)
    if found is None or not (found.parent / "tokenizer_config.json").is_file():
        return None
    return has_template(found.parent)


def has_template(folder: Path) -> bool:
    """Return whether the tokenizer in a model's folder has a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    tokenizer = folder / "tokenizer_config.json"
    return tokenizer.is_file() and bool(read_object(tokenizer).get("chat_template"))


def check_template(config: RunConfig) -> None:
    """Raise ConfigError for keys that need a chat template if the tokenizer is known to have none."""
    data, env = config.data, config.env
    keys = {
        "data.system": data.system is not None,
        "data.chat_template_kwargs": bool(data.chat_template_kwargs),
        "data.chat_template=true": data.chat_template is True,
        "env.tools": env.tools is not None,
        "env.context=rerendered": env.is_on and env.context == "rerendered",
    }
    needing = [key for key, is_set in keys.items() if is_set]
    if needing and model_has_template(config.model) is False:
        raise ConfigError(
            f"{needing[0]} needs a tokenizer with a chat template",
            seen=f"{config.model.source} without one",
            action="choose an instruction-tuned model, or remove the key",
        )


def describe_prompts(config: RunConfig) -> str:
    """Return how prompts become text, for `plan`."""
    chats, auto = uses_chat_template(config), config.data.chat_template == "auto"
    text = "plain text, no chat template" if chats is False else "rendered with the tokenizer's chat template"
    return text + (" if it has one" if chats is None else "") + (" (data.chat_template=auto)" if auto else "")
