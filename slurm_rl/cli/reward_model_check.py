"""Can the folder of reward.model.path score what this run samples? Told from its small files, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurm_rl.config.paths import expand_user
from slurm_rl.config.reward import RewardModelConfig
from slurm_rl.errors import ConfigError


def check_reward_model(config: RewardModelConfig, chat_template: bool | None) -> None:
    """Refuse a folder that this machine sees and that is no such model; a hub name is looked at on the node.

    Args:
        chat_template: data.chat_template; None where other runs send what is scored.

    Raises:
        ConfigError: more than one output, scores that were never measured, or chats for a model of text.
    """
    folder = expand_user(config.path or "")
    if config.path is None or not (folder / "config.json").is_file():
        return
    model = _read(folder / "config.json")
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
            action="train it with task=rm to its end, which measures them, or set reward.model.normalize=false",
        )
    if chat_template and not (model.get("scores_chats", True) and _has_template(folder)):
        raise ConfigError(
            "data.chat_template=true needs a reward model of chats, with a chat template of its own",
            seen=f"{folder}, trained on text" if _has_template(folder) else f"{folder} without a template",
            action="train it with data.chat_template=true, or set data.chat_template=false for both",
        )


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    tokenizer = folder / "tokenizer_config.json"
    return tokenizer.is_file() and bool(_read(tokenizer).get("chat_template"))


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("reward.model.path must be readable", seen=f"{path} ({error})") from None
    return tree if isinstance(tree, dict) else {}
