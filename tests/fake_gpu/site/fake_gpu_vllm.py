"""vLLM's own CUDA operators, as far as dense models of one precision need them."""

import torch
from fake_gpu_kernel import kernel

Tensor = torch.Tensor


def _normalise(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return wide if weight is None else wide * weight.float()


@kernel("_C", "rms_norm")
def _rms_norm(result: Tensor, x: Tensor, weight: Tensor | None, epsilon: float) -> None:
    result.copy_(_normalise(x, weight, epsilon))


@kernel("_C", "fused_add_rms_norm")
def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float) -> None:
    residual.add_(x)
    x.copy_(_normalise(residual, weight, epsilon))


@kernel("_C", "silu_and_mul")
def _silu_and_mul(result: Tensor, x: Tensor) -> None:
    gate, up = x.chunk(2, -1)
    result.copy_(torch.nn.functional.silu(gate.float()) * up.float())


@kernel("_C", "gelu_and_mul")
def _gelu_and_mul(result: Tensor, x: Tensor) -> None:
    gate, up = x.chunk(2, -1)
    result.copy_(torch.nn.functional.gelu(gate.float()) * up.float())


@kernel("_C", "gelu_tanh_and_mul")
def _gelu_tanh_and_mul(result: Tensor, x: Tensor) -> None:
    gate, up = x.chunk(2, -1)
    result.copy_(torch.nn.functional.gelu(gate.float(), approximate="tanh") * up.float())


@kernel("_C", "rotary_embedding")
def _rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    if rope_dim_offset or inverse:
        raise NotImplementedError("the fake GPU implements rotary_embedding without offset and inverse")
    cos, sin = cos_sin_cache[positions.flatten()].float().chunk(2, -1)
    width = 2 * cos.shape[-1]
    for x in (query, key):
        if x is None:
            continue
        heads = x.view(positions.numel(), -1, head_size)
        rotated = heads[..., :width].float()
        one, other = rotated.chunk(2, -1) if is_neox else (rotated[..., 0::2], rotated[..., 1::2])
        c, s = cos[:, None], sin[:, None]
        turned = (one * c - other * s, other * c + one * s)
        heads[..., :width] = (torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)).to(x.dtype)


@kernel("_C", "weak_ref_tensor")
def _weak_ref_tensor(x: Tensor) -> Tensor:
    return x.detach()


@kernel("_C_cache_ops", "reshape_and_cache_flash")
def _reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """Caches [pages, page size, K, D]; a negative slot is padding."""
    if kv_cache_dtype != "auto":
        raise NotImplementedError(f"the fake GPU implements a KV cache in the model's type; got {kv_cache_dtype}")
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    page, place = slots // key_cache.shape[1], slots % key_cache.shape[1]
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache[page, place] = new[: slot_mapping.shape[0]][kept].to(cache.dtype)
