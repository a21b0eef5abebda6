"""Attention implementation of a model, and `varlen`: packed rows without flash-attn and without a mask.

For a packed row transformers gives SDPA a boolean mask [R, 1, W, W], and CUDA has no flash kernel with a mask. `varlen`
attends within each sequence: by torch's own flash kernel, else by SDPA with the causal flag.
"""

import inspect
import sys
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import is_flash_attn_2_available

from slurm_rl.errors import ConfigError
from slurm_rl.models.distributed import get_device

VARLEN = "varlen"
FLASH = "flash_attention_2"
# Of flash-attn and of torch's own copy of it.
_WIDEST_HEAD, _HEAD_MULTIPLE = 256, 8


@dataclass(frozen=True)
class PackedSequences:
    lengths: list[int]
    ends: Tensor
    """[S + 1] int32 on the row's device: cumulative lengths from 0."""
    exchange: "HeadExchange | None" = None
    """Exchange with the other ranks that have tokens of the row; None: all of them are here."""


class HeadExchange(Protocol):
    """Exchange of tokens for heads; see models/context.py."""

    def to_heads(self, states: Tensor) -> Tensor: ...

    def to_tokens(self, states: Tensor) -> Tensor: ...


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    packed_sequences: PackedSequences | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention function of transformers: query [R, H, W, D], key and value [R, K, W, D] to [R, W, H, D].

    Args:
        attention_mask: mask of shared prompts; replaces the sequence boundaries.
        is_causal: None: the layer's flag; vision towers have False.
        sliding_window: number of visible tokens, including itself; None: all earlier ones.
        packed_sequences: None: each row is one sequence.
    """
    if packed_sequences is not None and packed_sequences.exchange is not None:
        exchange, here = packed_sequences.exchange, replace(packed_sequences, exchange=None)
        query, key, value = (exchange.to_heads(states) for states in (query, key, value))
        groups: Any = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1])
        options = {"scaling": scaling, "sliding_window": sliding_window, "packed_sequences": here, **more}
        return exchange.to_tokens(varlen_attention(groups, query, key, value, None, **options)[0]), None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None or not causal:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=causal, **more
        )
    if packed_sequences is not None and _fits_kernel(query, key, value):
        return _run_kernel(query, key, value, scaling, sliding_window, packed_sequences), None
    lengths = [query.shape[2]] if packed_sequences is None else packed_sequences.lengths
    each = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    parts = [_attend(module, q, k, v, scaling, sliding_window) for q, k, v in each]
    return torch.cat(parts, dim=1), None


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Causal attention within [R, H, n, D], to [R, n, H, D].

    A window shorter than that needs a mask; block by block that is [window, 2 window].
    """
    length = query.shape[2]
    if window is None or length <= window:
        found, _ = sdpa_attention_forward(module, query, key, value, None, scaling=scaling, is_causal=True)
        return found
    parts, places = [], torch.arange(length, device=query.device)
    for start in range(0, length, window):
        own, seen = slice(start, start + window), slice(max(0, start - window + 1), start + window)
        back = places[own, None] - places[seen]
        mask = ((back >= 0) & (back < window))[None, None]
        part = (query[:, :, own], key[:, :, seen], value[:, :, seen])
        parts.append(sdpa_attention_forward(module, *part, mask, scaling=scaling)[0])
    return torch.cat(parts, dim=1)


def _fits_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    half = query.dtype == key.dtype == value.dtype and query.dtype in (torch.bfloat16, torch.float16)
    width = query.shape[-1]
    fits = value.shape[-1] <= width <= _WIDEST_HEAD and width % _HEAD_MULTIPLE == 0
    return half and fits and query.is_cuda and _has_kernel()


@cache
def _has_kernel() -> bool:
    """Return whether torch's flash kernel is available; AMD's build has another, untested kernel under this name."""
    return (
        torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability() >= (8, 0)
    )


def _run_kernel(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, sequences: PackedSequences
) -> Tensor:
    """The same as `_attend` of every sequence of one row, [1, H, T, D] to [1, T, H, D]."""
    from torch.nn.attention.varlen import varlen_attn

    narrower = query.shape[-1] - value.shape[-1]  # the kernel knows one width
    flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, pad(value, [0, narrower]))]
    found = varlen_attn(
        *flat,
        *(sequences.ends, sequences.ends),
        *[max(sequences.lengths)] * 2,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(found, Tensor)
    return found[None, ..., : value.shape[-1]]


AttentionInterface.register(VARLEN, varlen_attention)


# They say that they support flash attention; but a token of GPT-J sees later ones, and HRM's prefix is refused.
_NO_FLASH = {"gptj", "hrm_text"}


def name_to_load(attention: str) -> str | None:
    """Return the implementation to build a model with; None: transformers' choice, sdpa if the model has it, else
    eager."""
    return None if attention in ("auto", VARLEN) else attention


def settle_attention(model: PreTrainedModel, attention: str, *, any_mask: bool) -> None:
    """Resolve `auto` for this model on this device; raise ConfigError if it does not support `varlen`.

    Args:
        any_mask: shared prompts will use a mask, which flash attention does not take.
    """
    if attention == VARLEN and not _takes_varlen(model):
        raise ConfigError(
            "model.attention=varlen and policy.context_parallel need a model of transformers' attention interface, "
            "without caps or sinks",
            seen=type(model).__name__,
            action="set model.attention=auto policy.context_parallel=1",
        )
    chosen = choose_attention(model, get_device().type, any_mask=any_mask) if attention == "auto" else attention
    if chosen is not None and chosen != model.config._attn_implementation:
        model.set_attn_implementation(chosen)


def choose_attention(model: PreTrainedModel, device: str, *, any_mask: bool) -> str | None:
    """Return the implementation for `auto`; None: the model's own.

    On CPU all kernels take a mask, and short rows of SDPA (row_layout.py) are the fastest.
    """
    on_gpu = device == "cuda"
    if on_gpu and not any_mask and is_flash_attn_2_available() and _takes_flash(model):
        return FLASH
    if on_gpu and _takes_varlen(model):
        return VARLEN
    return "eager" if _caps_scores(model) else None  # SDPA leaves the cap out without a word


def _takes_flash(model: PreTrainedModel) -> bool:
    text = model.config.get_text_config()
    if text.model_type in _NO_FLASH:
        return False
    widths = [width for name, width in vars(text).items() if name.endswith("head_dim") and width is not None]
    heads = getattr(text, "num_attention_heads", None)
    widths = widths or [text.hidden_size // heads if heads else _WIDEST_HEAD + 1]
    named = model._compatible_flash_implementations
    return (
        model.dtype in (torch.bfloat16, torch.float16)
        and max(widths) <= _WIDEST_HEAD
        and (named is None or FLASH in named)
        and _all_support(model, "_supports_flash_attn")
        and _tells_window(model)
    )


def _takes_varlen(model: PreTrainedModel) -> bool:
    """Return whether its layers call the registered function like flash attention: causal or with a window."""
    ways = ("_supports_flash_attn", "_supports_sdpa", "_supports_attention_backend")
    return _all_support(model, *ways) and _tells_window(model) and not _caps_scores(model)


def _all_support(model: PreTrainedModel, *ways: str) -> bool:
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(getattr(part, way, False) for part in parts for way in ways)


def _tells_window(model: PreTrainedModel) -> bool:
    """Return whether a window, if any, reaches the attention function; some models have it only in the mask."""
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    return window is None or "sliding_window=" in inspect.getsource(sys.modules[type(model).__module__])


def _caps_scores(model: PreTrainedModel) -> bool:
    return getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None
