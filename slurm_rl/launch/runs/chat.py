"""Whether a run renders its prompts with a chat template, as far as the login node can know."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_shape import find_config, find_planned, read_object


def uses_chat_template(config: RunConfig) -> bool | None:
    """Return whether prompts are rendered with a chat template; None if the tokenizer is not on this machine."""
    choice = config.data.chat_template
    return choice if choice != "auto" else model_has_template(config.model)


def model_has_template(model: ModelConfig) -> bool | None:
    """Return whether the model's tokenizer has a chat template; None if it is not on this machine."""
    if model.path is None:
        return model.tiny is None or model.tiny.chat_template is not None
    if (planned := find_planned(model.path)) is not None:
        return model_has_template(planned)
    found = find_config(model.path)
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
    """Refuse keys that need a chat template for a tokenizer that is known to have none.

    Raises:
        ConfigError: naming the key.
    """
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
            seen=f"{config.model.path or 'a tiny model'} without one",
            action="choose an instruction-tuned model, or remove the key",
        )


def describe_prompts(config: RunConfig) -> str:
    """Return how prompts become text, for `plan`."""
    chats, auto = uses_chat_template(config), config.data.chat_template == "auto"
    text = "plain text, no chat template" if chats is False else "rendered with the tokenizer's chat template"
    return text + (" if it has one" if chats is None else "") + (" (data.chat_template=auto)" if auto else "")
