"""What no default can give: a run must name its model, its data and its reward. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def check_required(config: RunConfig) -> None:
    """Ask for everything that is missing at once.

    Raises:
        ConfigError: naming each missing value, with words that would give it.
    """
    if config.external is not None:  # its program has a model and data of its own
        return
    model = config.model
    named: dict[str, tuple[object, str]] = {
        "model.path": (model.path or model.tiny or model.tiny_vl, "model.path=Qwen/Qwen3-4B"),
        "data.train": (config.data.train, "+data=gsm8k"),
    }
    if config.task == "grpo":
        named["a reward (reward.verifiers, function, model.path or url)"] = (
            config.reward.names_a_scorer,
            "+reward=math",
        )
    missing = {name: words for name, (value, words) in named.items() if not value}
    if missing:
        raise ConfigError(
            f"a run with task={config.task} must be given {_join(missing)}",
            seen="none" if len(missing) == 1 else "none of them",
            action=f"{' '.join(missing.values())}, or an experiment that says all of it: "
            + ("+exp=demo" if config.task == "grpo" else f"+exp={config.task}_tiny"),
        )


def _join(names: dict[str, str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
