"""Attention in float32, one sequence at a time: [T, H, D] queries, [S, K, D] keys and values."""

from itertools import pairwise

import torch
from fake_gpu_kernel import DRY

Tensor = torch.Tensor


def mask_of(num_q: int, num_k: int, causal: bool, left: int | None, right: int | None, device: torch.device) -> Tensor:
    """Return [T, S], True where a query must not look; the last query is at the last key."""
    query = torch.arange(num_q, device=device)[:, None] + (num_k - num_q)
    key = torch.arange(num_k, device=device)[None]
    mask = torch.zeros(num_q, num_k, dtype=torch.bool, device=device)
    if causal:
        right = 0
    if right is not None and right >= 0:
        mask |= key > query + right
    if left is not None and left >= 0:
        mask |= key < query - left
    return mask


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output in the type of `q` and the logsumexp [H, T] of the scores."""
    repeats = q.shape[1] // k.shape[1]
    wide_k, wide_v = (one.float().repeat_interleave(repeats, 1) for one in (k, v))
    scores = torch.einsum("thd,shd->hts", q.float(), wide_k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    mask = mask_of(q.shape[0], k.shape[0], causal, left, right, q.device)
    scores = scores.masked_fill(mask, float("-inf"))
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat([scores, column], -1)
        wide_v = torch.cat([wide_v, torch.zeros_like(wide_v[:1])])
    lse = torch.logsumexp(scores, -1)
    weights = torch.nan_to_num(scores.softmax(-1))  # a query that sees nothing
    return torch.einsum("hts,shd->thd", weights, wide_v).to(q.dtype), lse


def _spans(ends: Tensor) -> list[slice]:
    numbers = ends.tolist()
    return [slice(first, last) for first, last in pairwise(numbers)]


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
) -> tuple[Tensor, Tensor]:
    if DRY:
        return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    parts = [
        attend(q[a], k[b], v[b], causal, scale, left, right)
        for a, b in zip(_spans(ends_q), _spans(ends_k), strict=True)
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], 1)


def attend_packed_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if DRY:
        return grads
    for a, b in zip(_spans(ends_q), _spans(ends_k), strict=True):
        parts = _attend_backward(gradient[a], q[a], k[b], v[b], causal, scale, left, right)
        for whole, span, part in zip(grads, (a, b, b), parts, strict=True):
            whole[span] = part
    return grads


def _attend_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    heads = k.shape[1]
    factor, repeats = scale or q.shape[-1] ** -0.5, q.shape[1] // heads
    wide_k, wide_v = (one.float().repeat_interleave(repeats, 1) for one in (k, v))
    wide_q, wide_gradient = q.float(), gradient.float()
    scores = torch.einsum("thd,shd->hts", wide_q, wide_k) * factor
    mask = mask_of(q.shape[0], k.shape[0], causal, left, right, q.device)
    weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
    of_v = torch.einsum("hts,thd->shd", weights, wide_gradient)
    of_weights = torch.einsum("thd,shd->hts", wide_gradient, wide_v)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) * factor
    of_q = torch.einsum("hts,shd->thd", of_scores, wide_k)
    of_k = torch.einsum("hts,thd->shd", of_scores, wide_q)
    folded = (one.unflatten(1, (heads, repeats)).sum(2).to(k.dtype) for one in (of_k, of_v))
    return (of_q.to(q.dtype), *folded)  # type: ignore[return-value]
