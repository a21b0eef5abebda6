"""Apply `model.rope_scaling` to a model's config, and to vLLM's copy of it."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.rope import extend_rope
from slurm_rl.errors import ConfigError


def load_architecture(path: str | Path, model: ModelConfig) -> PreTrainedConfig:
    """Return the config of a model's folder or hub name, with `model.rope_scaling`."""
    # A folder is complete: no look at the network, which on a compute node costs a time-out.
    source = {"trust_remote_code": model.trust_remote_code, "local_files_only": Path(path).is_dir()}
    architecture: PreTrainedConfig = AutoConfig.from_pretrained(path, **source)
    if model.rope_scaling is not None:
        text = architecture.get_text_config()
        for name, value in extend_rope(model.rope_scaling, list_fields(text), str(path)).items():
            setattr(text, name, value)
    return architecture


def list_fields(text: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of a language model's config; GPT-2, for example, has another name for the context."""
    return {**text.to_dict(), "max_position_embeddings": getattr(text, "max_position_embeddings", None)}


def build_overrides(path: str | Path, model: ModelConfig) -> dict[str, Any]:
    """Return the `hf_overrides` with which vLLM's positions equal the policy's."""
    if model.rope_scaling is None:
        return {}
    text = load_architecture(path, model).get_text_config()
    return extend_rope(model.rope_scaling, list_fields(text), str(path))


def require_scaled(model: PreTrainedModel, config: ModelConfig) -> None:
    """Raise ConfigError if no layer of the model has the scaling that its config has."""
    wanted = config.rope_scaling
    if wanted is None or any(getattr(module, "rope_type", None) == wanted.rope_type for module in model.modules()):
        return
    raise ConfigError(
        "model.rope_scaling needs a family of models whose positions transformers scales",
        seen=f"{wanted.rope_type} for {model.config.model_type}, which computes its positions itself",
        action="set model.rope_scaling=null, or choose another model",
    )
