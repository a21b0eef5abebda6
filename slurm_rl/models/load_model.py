"""Load a model ready for packed rows, and its tokenizer.

Dropout is off in the config, in layers with an own value and in adapters: reinforcement learning compares logprobs of
one policy at two moments, and GPT-2's dropout of 0.1 would change them by 0.03 on average.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, logging

from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import ConfigError, first_line
from slurm_rl.models.attention import name_to_load, settle_attention
from slurm_rl.models.distributed import get_rank
from slurm_rl.models.published_names import find_missing
from slurm_rl.models.reward_model import allow_new_head, draw_head, score_every_token
from slurm_rl.models.rope import load_architecture, require_scaled
from slurm_rl.models.vision import has_vision
from slurm_rl.models.weight_files import WeightFiles, find_weights, require_fit
from slurm_rl.run_dir.meter import measure

# attention_dropout, resid_pdrop, classifier_dropout, layerdrop, drop_path_rate; router_jitter_noise.
_RANDOM = re.compile("drop|jitter")


def clear_dropout(config: PreTrainedConfig) -> None:
    """Set all dropout and noise values to 0, also in nested configs."""
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            clear_dropout(value)
        elif _RANDOM.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, 0.0)


def clear_dropout_layers(model: PreTrainedModel) -> None:
    """Set the dropout of layers with a value of their own to 0."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


# In transformers' error for files that lack a tensor that it joins, such as one of a mixture's experts.
_NO_CONVERSION = "automatic conversion"
MAY_BE_ABSENT = {
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
}


def load_model(
    path: str | Path, config: ModelConfig, *, score_seed: int | None = None, any_mask: bool = False
) -> PreTrainedModel:
    """Load the model of `path` on CPU in training mode, with weights of `config.init_from` if set.

    Args:
        score_seed: load a reward model, with a head drawn from this seed if the weights have none.
        any_mask: the attention must take any mask.

    Raises:
        ConfigError: no model, attention kernel not installed, or weights that do not fit.
    """
    logging.disable_progress_bar()  # a log file is no terminal
    weights, field = _weights(path, config)
    with _naming(config, weights, field):
        kind, fields = _describe(path, config, is_reward_model=score_seed is not None)
        # The caller's random state is left as it was: Hugging Face draws a head that is missing.
        shown = measure(f"loading weights of {weights}", is_shown=get_rank() == 0)
        with torch.random.fork_rng(devices=[]), shown:
            model, loaded = kind.from_pretrained(
                weights,
                **fields,
                generation_config=load_generation_config(path, fields["config"], config),
                use_safetensors=True,  # never a pickle
                ignore_mismatched_sizes=True,  # reported below, with names
                output_loading_info=True,
                **_source(weights, config),
            )
    if score_seed is not None:
        if allow_new_head(loaded):
            draw_head(model, score_seed)
        score_every_token(model)
    require_fit(loaded, field, str(weights))
    return _prepare(model, config, any_mask)


def open_model(
    path: str | Path, config: ModelConfig, *, score_seed: int | None = None, any_mask: bool = False
) -> tuple[PreTrainedModel, WeightFiles | None]:
    """Return the model with parameters on the meta device, and the files to fill them from.

    If the files cannot be read tensor by tensor, return the result of `load_model`, and None.
    """
    weights, field = _weights(path, config)
    with _naming(config, weights, field):
        kind, fields = _describe(path, config, is_reward_model=score_seed is not None)
        # Buffers are computed as ever: they are small, and not in the files.
        with init_empty_weights(include_buffers=False):
            model = kind.from_config(**fields, trust_remote_code=config.trust_remote_code)
        model.tie_weights()
        model.generation_config = load_generation_config(path, fields["config"], config)
    files = find_weights(model, weights)
    if score_seed is not None:
        if files is None:
            draw_head(model, score_seed)
            files = find_weights(model, weights, unused="lm_head.")
        score_every_token(model)
    if files is None:
        return load_model(path, config, score_seed=score_seed, any_mask=any_mask), None
    return _prepare(model, config, any_mask), files


def _weights(path: str | Path, config: ModelConfig) -> tuple[str | Path, str]:
    return (path, "model.path") if config.init_from is None else (config.init_from, "model.init_from")


def _describe(path: str | Path, config: ModelConfig, *, is_reward_model: bool) -> tuple[Any, dict[str, Any]]:
    architecture = load_architecture(path, config)
    clear_dropout(architecture)
    if is_reward_model:
        _require_classifier(architecture, path)
        architecture.num_labels = 1
    kind = AutoModelForSequenceClassification if is_reward_model else model_class(architecture)
    dtype = getattr(torch, config.dtype)
    return kind, {"config": architecture, "dtype": dtype, "attn_implementation": name_to_load(config.attention)}


def _require_classifier(architecture: PreTrainedConfig, path: str | Path) -> None:
    """Raise ConfigError if transformers cannot build a sequence classifier of this architecture."""
    own = getattr(architecture, "auto_map", None) or {}
    if (
        type(architecture) in AutoModelForSequenceClassification._model_mapping
        or "AutoModelForSequenceClassification" in own
    ):
        return
    raise ConfigError(
        "a critic or a reward model needs an architecture for which transformers has a sequence classifier",
        seen=f"{architecture.model_type} in {path}",
        action="choose another model, or an algorithm without a critic, such as +algorithm=grpo",
    )


@contextmanager
def _naming(config: ModelConfig, weights: str | Path, field: str) -> Iterator[None]:
    """Convert errors of Hugging Face into errors of the config key."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"the kernel of model.attention must be installed ({error})",
            seen=config.attention,
            action="set model.attention=auto",
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and _NO_CONVERSION not in str(error):
            raise
        raise ConfigError(
            f"{field} must be a Hugging Face folder with config.json and safetensors, or a downloaded hub name "
            f"({first_line(error)})",
            seen=str(weights),
            action=f"correct {field}, or download it with `python -m slurm_rl prepare`",
        ) from error


def build_empty(path: str | Path, config: ModelConfig) -> PreTrainedModel:
    """Return the model of a folder's config with all tensors on the meta device."""
    architecture = load_architecture(path, config)
    with torch.device("meta"):
        model: PreTrainedModel = model_class(architecture).from_config(
            architecture, trust_remote_code=config.trust_remote_code
        )
    return model


def require_whole_files(path: str, config: ModelConfig) -> None:
    """Raise ConfigError if the files lack a parameter, which vLLM would leave random; skip quantized files."""
    model = build_empty(path, config)
    if hasattr(model.config, "quantization_config"):
        return
    missing = find_missing(model, WeightFiles(path).file_of)
    require_fit({"missing_keys": missing, "unexpected_keys": (), "mismatched_keys": ()}, "model.path", path)


def model_class(architecture: PreTrainedConfig) -> Any:
    return AutoModelForImageTextToText if has_vision(architecture) else AutoModelForCausalLM


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the model's folder; raise ConfigError if it has no padding or end-of-text token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_remote_code, local_files_only=Path(path).is_dir()
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path must hold a tokenizer ({first_line(error)})",
            seen=str(path),
            action="put tokenizer.json and tokenizer_config.json there",
        ) from error
    for name in ("pad_token", "eos_token"):
        if getattr(tokenizer, name) is None:
            raise ConfigError(
                f"the tokenizer of model.path must have a {name}",
                seen=str(path),
                action=f"name one of its special tokens as {name} in tokenizer_config.json",
            )
    # Where a vision-language model has its template in a file of its own, that one knows of images.
    template = cached_file(path, "chat_template.json", local_files_only=True, **MAY_BE_ABSENT)
    if template is not None:
        tokenizer.chat_template = json.loads(Path(template).read_text(encoding="utf-8"))["chat_template"]
    return tokenizer


def _source(path: str | Path, config: ModelConfig) -> dict[str, Any]:
    # A folder is complete: no look at the network, which on a compute node costs a time-out.
    return {"trust_remote_code": config.trust_remote_code, "local_files_only": Path(path).is_dir()}


def load_generation_config(path: str | Path, architecture: PreTrainedConfig, config: ModelConfig) -> GenerationConfig:
    """Return the model's sampling defaults, including end-of-text tokens."""
    # From `path`, like the tokenizer: the export must not have end-of-text ids of `init_from`.
    try:
        return GenerationConfig.from_pretrained(path, **_source(path, config))
    except OSError:
        return GenerationConfig.from_model_config(architecture)


def _prepare(model: PreTrainedModel, config: ModelConfig, any_mask: bool) -> PreTrainedModel:
    require_scaled(model, config)
    clear_dropout_layers(model)
    settle_attention(model, config.attention, any_mask=any_mask)
    # With a cache, sequences of a packed row see each other without a word.
    model.config.use_cache = False
    if config.gradient_checkpointing is True:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()
