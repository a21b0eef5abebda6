"""Whether a run renders its prompts with a chat template, as far as the login node can know."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.config.run import RunConfig
from slurm_rl.runs.model_shape import find_config, find_planned, read_object


def uses_chat_template(config: RunConfig) -> bool | None:
    """Return whether prompts are rendered with a chat template; None if the tokenizer is not on this machine."""
    model, choice = config.model, config.data.chat_template
    if choice != "auto":
        return choice
    if model.path is None:
        return model.tiny is None or model.tiny.chat_template is not None
    if (planned := find_planned(model.path)) is not None:
        return uses_chat_template(config.model_copy(update={"model": planned}))
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


def describe_prompts(config: RunConfig) -> str:
    """Return how prompts become text, for `explain`."""
    chats, auto = uses_chat_template(config), config.data.chat_template == "auto"
    text = "plain text, no chat template" if chats is False else "rendered with the tokenizer's chat template"
    return text + (" if it has one" if chats is None else "") + (" (data.chat_template=auto)" if auto else "")
