"""Check the chat template for episodes of several turns, before anything is started."""

from collections.abc import Sequence
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import NO_TEMPLATE, open_template
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.schemas import Schema
from slurm_rl.errors import ConfigError
from slurm_rl.models.model_folder import load_text_config


def check_turns(config: RunConfig, model_path: str, tokenizer: Any, tools: Sequence[Schema]) -> None:
    """Check that a conversation can continue after a reply; no-op for single turns.

    Raises:
        ConfigError: the template cannot continue a conversation (see `TurnRenderer`), or sampling does not stop where
            the template ends a turn.
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
        "multi-turn episodes need sampling to stop where the chat template ends a turn",
        seen=f"{end} {tokenizer.convert_ids_to_tokens(end)!r} ends a turn of {model_path}; sampling ends at {known}",
        action=f"rollout.stop_token_ids=[{end}], also in the stop_token_ids of sources and sets: {end} there",
    )


def find_stops(config: RunConfig, model_path: str, tokenizer: Any) -> set[int]:
    """Return the stop tokens of vLLM: from the tokenizer, generation_config.json and the run."""
    from slurm_rl.models.load_model import load_generation_config

    text = load_text_config(model_path, config.model.trust_remote_code)
    eos = load_generation_config(model_path, text, config.model).eos_token_id
    own = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return {tokenizer.eos_token_id, *own, *config.rollout.stop_token_ids}
