"""Let vLLM choose flash attention in float32, which only our kernels have: to compare with a CPU."""

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

FlashAttentionBackend.supported_dtypes = [*FlashAttentionBackend.supported_dtypes, torch.float32]
