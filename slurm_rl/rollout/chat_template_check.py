"""What episodes of several turns need of a model's chat template, asked before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import NO_TEMPLATE, open_template
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.schemas import Schema
from slurm_rl.errors import ConfigError
from slurm_rl.models.model_folder import load_text_config


def check_turns(config: RunConfig, model_path: str, tokenizer: Any, tools: Sequence[Schema]) -> None:
    """Nothing where no environment, no tool and no program goes on behind a reply.

    Raises:
        ConfigError: the template cannot be gone on with (see `TurnRenderer`), or sampling does not end where it ends a
            turn: such a reply would go on with what others say.
    """
    if not config.env.is_on:
        return
    template = open_template(tokenizer, config.data, tools)
    if template is None and config.env.context == "rerendered":
        raise ConfigError("env.context=rerendered needs a chat template", seen=NO_TEMPLATE, action="env.context=kept")
    end = TurnRenderer(tokenizer, template).find_end()
    stops = find_stops(config, model_path, tokenizer)
    if end is None or end in stops or config.rollout.stop:
        return
    known = ", ".join(f"{token} {tokenizer.convert_ids_to_tokens(token)!r}" for token in sorted(stops))
    raise ConfigError(
        "episodes of several turns need sampling to end where the chat template ends a turn",
        seen=f"{end} {tokenizer.convert_ids_to_tokens(end)!r} ends a turn of {model_path}; sampling ends at {known}",
        action=f"rollout.stop_token_ids=[{end}], or where a source or a set says its own stop_token_ids, {end} there",
    )


def find_stops(config: RunConfig, model_path: str, tokenizer: Any) -> set[int]:
    """Tokens at which vLLM ends a reply: those of the tokenizer, of generation_config.json and of the run."""
    from slurm_rl.models.load_model import load_generation_config

    text = load_text_config(model_path, config.model.trust_remote_code)
    said = load_generation_config(model_path, text, config.model).eos_token_id
    own = said if isinstance(said, list) else [] if said is None else [said]
    return {tokenizer.eos_token_id, *own, *config.rollout.stop_token_ids}
