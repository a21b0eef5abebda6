"""The model folder of a run, and events about the model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.run_dir import RunDir, append_event

if TYPE_CHECKING:
    from slurm_rl.models.lora_layers import AdaptedLayers
    from slurm_rl.models.row_check import RowCheck


def model_folder(run: RunDir, config: RunConfig) -> str:
    return config.model.path or str(run.model)


def prepare_model(run: RunDir, config: RunConfig) -> str:
    """Return that folder; draw random weights first if `model.from_config` is set."""
    if config.model.path is None and not run.model.is_dir():
        from slurm_rl.models.untrained.draw import draw_model

        draw_model(config.model, config.seed, run.model)
    return model_folder(run, config)


def load_context(model_path: str, model: ModelConfig) -> int:
    """Return the longest sequence in tokens, with `model.rope_scaling`; of state-space models it has no limit."""
    from slurm_rl.config.rope import read_context
    from slurm_rl.models.rope import list_fields, load_architecture

    return read_context(list_fields(load_architecture(model_path, model).get_text_config())) or sys.maxsize


def load_text_config(model_path: str, trust_remote_code: bool) -> Any:
    """Return the config of the language model, with `max_position_embeddings` and `num_hidden_layers`."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code).get_text_config()


def require_same_tokens(field: str, other: str, model_path: str, trust_remote_code: bool) -> None:
    """Raise ConfigError if two tokenizers differ in a token id."""
    from transformers import AutoTokenizer

    own, its = (
        dict(AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code).get_vocab())
        for path in (model_path, other)
    )
    differing = sorted(own.items() ^ its.items(), key=lambda pair: pair[1])
    if differing:
        token = differing[0][0]
        raise ConfigError(
            f"{field} must be a model with the same token ids as the policy",
            seen=f"{token!r} is token {own.get(token)} of the policy and {its.get(token)} of {other}",
            action=f"choose a model of the same family, or {field}=null",
        )


def report_adapters(run: RunDir, adapted: AdaptedLayers | None) -> None:
    if adapted is not None:
        append_event(
            run,
            "trainer/adapters",
            layers=len(adapted.names) + len(adapted.experts),
            targets=[*adapted.kinds, *sorted({name.rpartition(".")[2] for name in adapted.experts})],
            share=round(adapted.share, 3),
            without=adapted.left_out,
        )


def tell_rows(run: RunDir, role: str, check: RowCheck) -> None:
    """Which attention `role` has; and where its sequences are not packed, why, since that costs padding."""
    append_event(run, "trainer/attention", role=role, attention=check.attention)
    if not check.packed:
        append_event(run, "trainer/not_packed", role=role, reason=check.reason)
