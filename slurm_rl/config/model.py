"""Config of the model: weights, tokenizer, number format, attention, adapters."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from slurm_rl.config.section import PositiveFloat, PositiveInt, Section
from slurm_rl.errors import ConfigError

_UNTRAINED = Path(__file__).parents[1] / "models" / "untrained"
MAX_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's max_lora_rank."""
_DType = Literal["auto", "float32", "bfloat16"]


VISION_FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Values of model_type in the config.json of vision-language models that can be trained."""


def require_vision_family(family: str, source: str) -> None:
    """Raise ConfigError for a vision-language model that cannot be trained."""
    if family not in VISION_FAMILIES:
        raise ConfigError(
            "a vision-language model must be of a family whose image tokens and positions are known: "
            + ", ".join(VISION_FAMILIES),
            seen=f"{family} in {source}",
            action="choose another model.path, such as the family's text model",
        )


def _on_cpu(value: object) -> Callable[[object], object]:
    """Resolve `auto` without an accelerator; RunConfig resolves it earlier from cluster.accelerator."""
    return lambda given: value if given == "auto" else given


def fill_auto(model: dict[str, Any], *, has_gpus: bool) -> dict[str, Any]:
    """Return the model section with `auto` resolved for the accelerator.

    >>> fill_auto({"path": "a"}, has_gpus=True)
    {'path': 'a', 'dtype': 'bfloat16'}
    """
    return {**model, "dtype": "bfloat16" if has_gpus else "float32"} if model.get("dtype", "auto") == "auto" else model


class LoraConfig(Section):
    """Low-rank adapters (https://arxiv.org/abs/2106.09685): W + alpha / rank * B A, with B and A trained.

    There is no dropout, which would make the policy's logprobs differ from the engine's.
    """

    rank: PositiveInt = 32
    """Rank r of A [r, in] and B [out, r]."""
    alpha: PositiveFloat = 64.0
    """Scale: the update is multiplied by alpha / rank."""
    rank_pattern: dict[str, PositiveInt] = Field(default={})
    """Other ranks, by end of a layer's name or regular expression as in peft; the first match wins, such as
    {down_proj: 8}."""
    alpha_pattern: dict[str, PositiveFloat] = Field(default={})
    """The same for alpha."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Linear layers to adapt, by the last part of their names, such as q_proj. all-linear: all, also in a vision tower,
    except the output head, routers, inputs of state-space kernels (x_proj, dt_proj, out_proj) and fused experts; the
    event trainer/adapters reports the share of the weights."""
    target_parameters: tuple[str, ...] = ()
    """Joined experts of a mixture to adapt, by the end of their names as in peft, such as experts.gate_up_proj and
    experts.down_proj. Engines get merged weights. Needs fsdp2 or a zero_stage below 3, and export=merged."""
    export: Literal["merged", "adapter"] = "merged"
    """Export of the run: the model with merged adapters, or only the adapters in peft's format."""

    def problems(self) -> Iterator[str]:
        if not self.target_modules:
            yield "target_modules must name a linear layer; got []. Next: model.lora.target_modules=all-linear"
        for key in ("target_modules", "target_parameters"):
            if not all(name.strip() for name in getattr(self, key)):
                yield f"{key} must not have blank names; got {list(getattr(self, key))}. Next: remove the blank name"
        if self.target_parameters and self.export == "adapter":
            yield (
                "model.lora.target_parameters needs model.lora.export=merged, since peft names adapters of joined "
                "experts in another way; got 'adapter'. Next: model.lora.export=merged"
            )
        for pattern in {**self.rank_pattern, **self.alpha_pattern}:
            try:
                re.compile(pattern)
            except re.error as error:
                yield (
                    f"rank_pattern and alpha_pattern must have regular expressions as keys; got {pattern!r} ({error}). "
                    "Next: write the end of a layer's name, such as q_proj"
                )

    def choose_targets(self, linear: set[str], model: str) -> set[str]:
        """Return the layers of `linear` (last parts of names) that get adapters.

        Raises:
            ConfigError: `linear` is empty, or a target is not in it.
        """
        if not linear:
            raise ConfigError(
                "model.lora needs linear layers (torch's nn.Linear), which this model does not have",
                seen=model,
                action="train all weights with model.lora=null, or choose another model.path",
            )
        wanted = linear if self.target_modules == "all-linear" else set(self.target_modules)
        if unknown := sorted(wanted - linear):
            raise ConfigError(
                "model.lora.target_modules must name linear layers of the model other than its output head",
                seen=", ".join(unknown),
                action=f"choose from {', '.join(sorted(linear))}, or all-linear",
            )
        return wanted

    def adapts_parameter(self, name: str) -> bool:
        """Return whether `target_parameters` has this joined expert."""
        return any(f".{name}".endswith(f".{one}") for one in self.target_parameters)

    def rank_of(self, layer: str) -> int:
        return _find_match(self.rank_pattern, layer, self.rank)

    def alpha_of(self, layer: str) -> float:
        return _find_match(self.alpha_pattern, layer, self.alpha)

    def scaling_of(self, layer: str) -> float:
        """Return the factor of B A in a layer.

        >>> LoraConfig(rank=8, alpha=8, rank_pattern={"down_proj": 2}).scaling_of("layers.0.mlp.down_proj")
        4.0
        """
        return self.alpha_of(layer) / self.rank_of(layer)

    @property
    def max_rank(self) -> int:
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank


_Number = TypeVar("_Number", int, float)


def _find_match(patterns: Mapping[str, _Number], layer: str, default: _Number) -> _Number:
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", layer)), default)


class RopeScalingConfig(Section):
    """Scaling of rotary position embeddings. The export's config.json has it, so other programs need no option."""

    rope_type: Literal["yarn", "linear", "longrope", "dynamic"] = "yarn"
    """yarn (https://arxiv.org/abs/2309.00071), linear (https://arxiv.org/abs/2306.15595) or longrope
    (https://arxiv.org/abs/2402.13753), as in transformers and vLLM. dynamic is refused: its logprobs depend on the
    longest sequence of a batch in transformers and on max_model_len in vLLM."""
    factor: Annotated[float, Field(gt=1)]
    """The new context is factor * original_max_position_embeddings."""
    original_max_position_embeddings: PositiveInt | None = None
    """Context that the model was trained with; null: that of its config.json. Qwen3-8B, for example, has a
    max_position_embeddings of 40960 and was trained with 32768."""
    beta_fast: PositiveFloat | None = None
    """YaRN: rotations in the original context from which on a dimension is not scaled; null: 32."""
    beta_slow: PositiveFloat | None = None
    """YaRN: rotations in the original context up to which a dimension is fully scaled; null: 1."""
    attention_factor: PositiveFloat | None = None
    """YaRN: factor of the rotated queries and keys; null: 0.1 * ln(factor) + 1."""
    long_factor: tuple[PositiveFloat, ...] | None = None
    """LongRoPE: divisor of each frequency, for sequences of every length; null: that of the model's config.json."""

    def problems(self) -> Iterator[str]:
        if self.rope_type == "dynamic":
            yield (
                "model.rope_scaling.rope_type=dynamic is refused: transformers scales by the longest sequence of a "
                "batch and vLLM by max_model_len, so policy and engine would disagree; got 'dynamic'. Next: yarn"
            )
        owners = {**dict.fromkeys(("beta_fast", "beta_slow", "attention_factor"), "yarn"), "long_factor": "longrope"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.rope_type != owner:
                yield (
                    f"model.rope_scaling.{name} is for rope_type={owner}; got rope_type={self.rope_type}. "
                    "Next: leave it out"
                )


class ModelConfig(Section):
    """Weights, tokenizer and number format of the policy."""

    path: str | None = None
    """Hugging Face model folder or hub name."""
    from_config: str | None = None
    """Start from random weights, drawn with `seed`: a folder with config.json and tokenizer, or tiny_qwen3 or
    tiny_qwen2_5_vl of this package. Instead of `path`."""
    init_from: str | None = None
    """Folder with safetensors that replace the initial weights; optimizer state and data position are not loaded."""
    dtype: Annotated[
        Literal["float32", "bfloat16"], BeforeValidator(_on_cpu("float32"), json_schema_input_type=_DType)
    ] = Field(default="auto", validate_default=True)
    """Number format of parameters and activations; auto: bfloat16 on GPUs, float32 on CPU."""
    attention: Literal["auto", "flash_attention_2", "varlen", "sdpa", "eager"] = "auto"
    """Attention of the policy. flash_attention_2: package flash-attn; varlen: torch's flash kernel, or SDPA per
    sequence; sdpa, eager: masked packed rows. auto: on GPUs flash_attention_2 if installed and supported by the model,
    else varlen; on CPU, and for models that support neither, sdpa or eager. The event trainer/attention reports the
    choice."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: less memory, about a third more time; auto: if the plan needs it, or
    cannot estimate memory on GPUs."""
    trust_remote_code: bool = False
    """Run Python code that is distributed with the model."""
    min_pixels: PositiveInt | None = None
    """Pixels that smaller images are upscaled to; null: the image processor's default."""
    max_pixels: PositiveInt | None = None
    """Pixels that larger images are downscaled to, which bounds the tokens of an image; null: the image processor's
    default."""
    rope_scaling: RopeScalingConfig | None = None
    """Extend the context of the policy, critic, reference and engines; null: the context of the model's config.json."""
    lora: LoraConfig | None = None
    """Train low-rank adapters (+lora=all_linear); null: train all weights."""

    def problems(self) -> Iterator[str]:
        # rules/task.py reports a missing model together with other missing keys.
        if self.path is not None and self.from_config is not None:
            yield (
                f"only one of model.path and model.from_config can be set; got {self.path!r} and {self.from_config!r}. "
                "Next: model=hf model.path=..., to load a model"
            )
        if self.rope_scaling is not None and self.lora is not None and self.lora.export == "adapter":
            yield (
                "model.rope_scaling needs model.lora.export=merged, whose config.json has the scaling; got 'adapter'. "
                "Next: model.lora.export=merged"
            )
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            yield (
                f"model.min_pixels must be <= model.max_pixels; got {self.min_pixels} > {self.max_pixels}. "
                "Next: lower model.min_pixels, or raise model.max_pixels"
            )

    @property
    def source(self) -> str | None:
        """Folder or hub name whose config.json and tokenizer the model has."""
        if self.path is not None or self.from_config is None:
            return self.path
        shipped = _UNTRAINED / self.from_config
        return str(shipped) if shipped.is_dir() else self.from_config
