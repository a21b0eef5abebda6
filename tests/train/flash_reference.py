"""Reference implementations of flash-attn 2.8.3 and of torch's varlen kernel on any device.

They check the kernels' requirements on arguments.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import varlen
from transformers import modeling_flash_attention_utils
from transformers.integrations import flash_attention

_UTILS = modeling_flash_attention_utils
_SIGNATURE = inspect.signature(varlen.varlen_attn)


def attend_exactly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    window: int | None,
    softcap: float = 0.0,
    causal: bool = True,
) -> Tensor:
    """Compute attention within [n, H, D] by its definition, in float32; `window` includes the token itself."""
    groups, length = query.shape[1] // key.shape[1], len(query)
    key, value = (tensor.repeat_interleave(groups, dim=1).float() for tensor in (key, value))
    scores = torch.einsum("ihd,jhd->hij", query.float(), key) * (scale or query.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    back = torch.arange(length)[:, None] - torch.arange(length)
    seen = (back >= 0) & (back < (window or length))
    weights = (scores.masked_fill(~seen, -torch.inf) if causal else scores).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, value).to(query.dtype)


def _attend_each(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, *rest: Any) -> Tensor:
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert ends.dtype == torch.int32 and ends[0] == 0 and ends[-1] == len(query) == len(key)
    lengths = ends.diff().tolist()
    assert max(lengths) == longest
    parts = zip(*(tensor.split(lengths) for tensor in (query, key, value)), strict=True)
    return torch.cat([attend_exactly(*part, *rest) for part in parts])


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """https://github.com/Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py."""
    assert dropout_p == 0.0 and torch.equal(cu_seqlens_q, cu_seqlens_k) and max_seqlen_q == max_seqlen_k
    window = None if window_size[0] < 0 else window_size[0] + 1
    return _attend_each(q, k, v, cu_seqlens_q, int(max_seqlen_q), softmax_scale, window, softcap, causal)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """The same for rows [R, W, H, D] of one sequence each."""
    window = None if window_size[0] < 0 else window_size[0] + 1
    rows = zip(q, k, v, strict=True)
    return torch.stack([attend_exactly(*row, softmax_scale, window, softcap, causal) for row in rows])


def varlen_attn(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **more: Any) -> Tensor:
    """Stand-in for torch.nn.attention.varlen.varlen_attn with the original signature."""
    given = _SIGNATURE.bind(query, key, value, *arguments, **more)
    given.apply_defaults()
    fields = given.arguments
    assert fields["window_size"][1] == 0  # causal
    assert fields["cu_seq_q"] is fields["cu_seq_k"] and fields["max_q"] == fields["max_k"]
    assert fields["enable_gqa"] or query.shape[1] == key.shape[1]
    window = None if fields["window_size"][0] < 0 else fields["window_size"][0] + 1
    return _attend_each(query, key, value, fields["cu_seq_q"], fields["max_q"], fields["scale"], window)


@contextmanager
def flash_attn_installed() -> Iterator[None]:
    """Make transformers import these functions as flash-attn's and accept float32."""
    functions = (flash_attn_func, flash_attn_varlen_func, None, _UTILS._pad_input, _UTILS._unpad_input)
    with (
        mock.patch.object(_UTILS, "_loaded_implementation", None),
        mock.patch.object(_UTILS, "_lazy_imports", lambda *_, **__: functions),
        mock.patch.object(flash_attention, "get_target_dtype", lambda *_: None),
    ):
        yield
