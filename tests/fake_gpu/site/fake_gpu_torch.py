"""CUDA's operators of torch by their CPU kernels, and those that only CUDA has by plain torch."""

import ctypes
import os
from typing import Any

import torch

ctypes.CDLL(os.environ["FAKE_GPU_OPERATORS"]).fake_gpu_install()

from fake_gpu_attention import attend_packed, attend_packed_backward  # noqa: E402
from fake_gpu_kernel import DRY, kernel  # noqa: E402

# SDPA chooses its kernel below the dispatcher; the plain one has CPU kernels.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)
Tensor = torch.Tensor


@kernel("aten", "mm.dtype")
def _mm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    if DRY:
        return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype)
    return (a.float() @ b.float()).to(out_dtype)


@kernel("aten", "bmm.dtype")
def _bmm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    if DRY:
        return a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=out_dtype)
    return torch.bmm(a.float(), b.float()).to(out_dtype)


@kernel("aten", "addmm.dtype")
def _addmm(c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if DRY:
        return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype)
    return torch.addmm(c.float(), a.float(), b.float(), beta=beta, alpha=alpha).to(out_dtype)


@kernel("aten", "_flash_attention_forward")
def _flash_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor | None,
    ends_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    if ends_q is None or ends_k is None or dropout or not (seqused_k is alibi_slopes is block_table is None):
        raise NotImplementedError("the fake GPU implements _flash_attention_forward of packed rows without dropout")
    out, lse = attend_packed(q, k, v, ends_q, ends_k, causal, scale, window_size_left, window_size_right)
    none = torch.empty(0, dtype=torch.int64)
    return out, lse, none, none, torch.empty(0, device=q.device)


@kernel("aten", "_flash_attention_backward")
def _flash_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    seed: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Any:
    return attend_packed_backward(gradient, q, k, v, ends_q, ends_k, causal, scale, window_size_left, window_size_right)
