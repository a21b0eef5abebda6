"""Which model is trained, and the shape of one built from nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from slurm_rl.config.section import PositiveFloat, PositiveInt, Section
from slurm_rl.errors import ConfigError


class TinyVLConfig(Section):
    """A small randomly initialised Qwen-VL with one token a byte, for tests and dry runs of an experiment."""

    family: Literal["qwen2_5_vl", "qwen3_vl"] = "qwen2_5_vl"
    """Which architecture."""
    hidden_size: PositiveInt = 64
    """Width of the residual stream; each head has hidden_size / num_heads of it."""
    num_layers: PositiveInt = 2
    """Transformer blocks of the language model."""
    num_heads: PositiveInt = 2
    """Attention heads, of the language model and of the vision tower."""
    num_kv_heads: PositiveInt = 1
    """Key-value heads; num_heads must be a multiple."""
    vision_hidden_size: PositiveInt = 32
    """Width of the vision tower; must be a multiple of 4 * num_heads."""
    vision_num_layers: PositiveInt = 2
    """Blocks of the vision tower."""
    context_length: PositiveInt = 1024
    """Longest sequence, prompt and completion together, in tokens; an image of 56 x 56 pixels is 4."""

    def problems(self) -> Iterator[str]:
        if self.hidden_size % (32 * self.num_heads):
            # Rotary positions of three axes share the head, and kernels want a head of a multiple of 32.
            yield f"hidden_size must be a multiple of 32 * num_heads; got {self.hidden_size} and {self.num_heads}"
        if self.num_heads % self.num_kv_heads:
            yield f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
        if self.vision_hidden_size % (4 * self.num_heads):
            yield (
                "vision_hidden_size must be a multiple of 4 * num_heads; "
                f"got {self.vision_hidden_size} and {self.num_heads}"
            )


_DType = Literal["auto", "float32", "bfloat16"]


def _on_cpu(value: object) -> Callable[[object], object]:
    """What `auto` means where nothing is known of an accelerator; RunConfig knows it, and fills it in before."""
    return lambda given: value if given == "auto" else given


def fill_auto(model: dict[str, Any], *, has_gpus: bool) -> dict[str, Any]:
    """A model section with the values that `auto` stands for on this accelerator.

    >>> fill_auto({"path": "a"}, has_gpus=True)
    {'path': 'a', 'dtype': 'bfloat16'}
    """
    return {**model, "dtype": "bfloat16" if has_gpus else "float32"} if model.get("dtype", "auto") == "auto" else model


class TinyModelConfig(Section):
    """A small randomly initialised Qwen3 with one token a character, for demos and tests."""

    characters: str = "0123456789+="
    """The vocabulary: one token a character, in addition to padding and end of text."""
    chat_template: str | None = None
    """Jinja, as a tokenizer's; null: prompts are plain text. With env.tools the characters must be able to write what
    tools and their errors say: all of ASCII is safe."""
    hidden_size: PositiveInt = 128
    """Width of the residual stream."""
    num_layers: PositiveInt = 3
    """Number of transformer blocks."""
    num_heads: PositiveInt = 4
    """Attention heads; hidden_size must be a multiple."""
    num_kv_heads: PositiveInt = 2
    """Key-value heads; num_heads must be a multiple."""
    context_length: PositiveInt = 64
    """Longest sequence, prompt and completion together, in tokens."""

    def problems(self) -> Iterator[str]:
        if self.hidden_size % self.num_heads:
            yield f"hidden_size must be a multiple of num_heads; got {self.hidden_size} and {self.num_heads}"
        if self.num_heads % self.num_kv_heads:
            yield f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685): W + alpha / rank * B A, B and A trained.

    There is no dropout: it would make the policy's logprobs differ from those of the engine that sampled.
    """

    rank: PositiveInt = 32
    """Width r of A [r, in] and B [out, r]."""
    alpha: PositiveFloat = 64.0
    """The update is scaled by alpha / rank."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Last parts of the names of the linear layers to adapt, such as q_proj. all-linear: all of them, also those of a
    vision tower, except the output head, routers, what state-space kernels read (x_proj, dt_proj, out_proj), and fused
    experts, which are not linear layers; the event trainer/adapters says what share of the weights that is."""
    export: Literal["merged", "adapter"] = "merged"
    """What the run leaves: a whole model with the adapters merged in, or the adapters alone as peft loads them."""

    def problems(self) -> Iterator[str]:
        if not self.target_modules:
            yield "target_modules must name a linear layer; got []. Next: target_modules=all-linear"

    def choose_targets(self, linear: set[str], model: str) -> set[str]:
        """Return those of `linear`, the last parts of the names of a model's linear layers, that get adapters.

        Raises:
            ConfigError: there are none, or a target is not one of them.
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

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


class ModelConfig(Section):
    """The policy's weights, tokenizer and number format."""

    path: str | None = None
    """A Hugging Face model folder or hub name; null builds `tiny`."""
    tiny: TinyModelConfig | None = None
    """Build this model in the run directory instead of loading one."""
    tiny_vl: TinyVLConfig | None = None
    """The same for a vision-language model."""
    init_from: str | None = None
    """A folder with safetensors to start the weights from (never optimizer or data position)."""
    dtype: Annotated[
        Literal["float32", "bfloat16"], BeforeValidator(_on_cpu("float32"), json_schema_input_type=_DType)
    ] = Field(default="auto", validate_default=True)
    """Number format of parameters and activations; auto: bfloat16 on GPUs, float32 on CPU."""
    attention: Literal["auto", "flash_attention_2", "varlen", "sdpa", "eager"] = "auto"
    """Attention of the policy. flash_attention_2 needs the package flash-attn; varlen is torch's own flash kernel, or
    SDPA sequence by sequence, without a mask; sdpa and eager mask packed rows. auto: on GPUs flash_attention_2 where it
    is installed and the model has it, else varlen; on CPU, and for models that have neither, sdpa or eager. The event
    trainer/attention says which."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: less memory, about a third more time; auto: where the plan needs it,
    and for a model on GPUs of which it knows too little."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    min_pixels: PositiveInt | None = None
    """Smaller images are enlarged to so many pixels; null: what the model's image processor says."""
    max_pixels: PositiveInt | None = None
    """Larger images are shrunk to so many pixels, which bounds the tokens of an image; null: likewise."""
    lora: LoraConfig | None = None
    """Train adapters in place of the weights (+lora=all_linear); null trains all weights."""

    def problems(self) -> Iterator[str]:
        # None of them is for slurm_rl/config/reads.py, which asks for everything at once.
        if [self.path, self.tiny, self.tiny_vl].count(None) < 2:
            yield (
                "one of model.path, model.tiny and model.tiny_vl alone must be set; "
                f"got path={self.path!r}, tiny={'set' if self.tiny else 'null'} "
                f"and tiny_vl={'set' if self.tiny_vl else 'null'}. Next: model=hf model.path=..., to load a model"
            )
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            yield (
                f"model.min_pixels must be <= model.max_pixels; got {self.min_pixels} > {self.max_pixels}. "
                "Next: lower model.min_pixels, or raise model.max_pixels"
            )

    def require_tiny(self) -> TinyModelConfig:
        if self.tiny is None:
            raise ConfigError("model.tiny must be set to build a model", seen=self.path)
        return self.tiny
