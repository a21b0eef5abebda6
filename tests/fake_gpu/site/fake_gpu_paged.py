"""vLLM's flash attention 2 and 3: packed queries, keys and values packed or in pages."""

from itertools import pairwise
from typing import Any

import torch
from fake_gpu_attention import attend
from fake_gpu_kernel import DRY, kernel

Tensor = torch.Tensor


def attend_paged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    ends_q: Tensor,
    ends_k: Tensor | None,
    used_k: Tensor | None,
    pages: Tensor | None,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return output and logsumexp [H, T].

    Args:
        k, v: [S, K, D], or [pages, page size, K, D] with `pages` [sequences, most pages of one].
        used_k: number of keys of each sequence.
    """
    out = torch.empty_like(q) if out is None else out
    lse = torch.full((q.shape[1], q.shape[0]), float("-inf"), device=q.device)
    if DRY:
        return out, lse
    ends = ends_q.tolist()
    ends_of_k = None if ends_k is None else ends_k.tolist()
    for index, (first, last) in enumerate(pairwise(ends)):
        if first == last:
            continue
        if pages is not None:
            assert used_k is not None
            num_keys = int(used_k[index])
            own = pages[index, : -(-num_keys // k.shape[1])].long()
            keys, values = (one[own].flatten(0, 1)[:num_keys] for one in (k, v))
        else:
            assert ends_of_k is not None
            span = slice(ends_of_k[index], ends_of_k[index + 1])
            keys, values = k[span], v[span]
        part, of_part = attend(q[first:last], keys, values, causal, scale, *window, softcap, sinks)
        out[first:last], lse[:, first:last] = part.to(out.dtype), of_part
    return out, lse


@kernel("_vllm_fa2_C", "varlen_fwd")
def _fa2(*args: Any) -> Any:
    q, k, v, out, ends_q, ends_k, used_k, left_pad, pages, alibi, _, _, dropout, scale = args[:14]
    _, causal, left, right, softcap = args[14:19]
    if dropout or alibi is not None or left_pad is not None:
        raise NotImplementedError("the fake GPU implements varlen_fwd without dropout, alibi and padding")
    return attend_paged(q, k, v, out, ends_q, ends_k, used_k, pages, scale, causal, (left, right), softcap)


@kernel("_vllm_fa3_C", "fwd")
def _fa3(q: Tensor, k: Tensor, v: Tensor, k_new: Any, v_new: Any, q_v: Any, out: Tensor | None, *args: Any) -> Any:
    ends_q, ends_k, _, _, used_k, _, _, pages, batch, left_pad = args[:10]
    scale, causal, left, right, softcap = args[16:21]
    sinks = args[26] if len(args) > 26 else None
    if any(one is not None for one in (k_new, v_new, q_v, batch, left_pad)) or k.element_size() == 1:
        raise NotImplementedError("the fake GPU implements FA3's fwd without new keys, padding and fp8")
    window = (left, right)
    found = attend_paged(q, k, v, out, ends_q, ends_k, used_k, pages, scale, causal, window, softcap, sinks)
    empty = torch.empty(0, device=q.device)
    return *found, empty, empty


@kernel("_vllm_fa3_C", "get_scheduler_metadata")
def _schedule(batch_size: int, *args: Any) -> Tensor:
    """How a GPU splits the work."""
    used_k = args[7]
    return torch.zeros(batch_size + 1, dtype=torch.int32, device=used_k.device)
