"""One rank of a large run with fake tensors, which have a shape and no memory.

A fake process group replaces the other ranks. Model, sharding, packing, head, loss, optimizer and saving are the real
code; LiveBytes counts their memory in each phase.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.varlen import varlen_attn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import (
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.models import attention, distributed, fsdp2, head, load_model, meshes, policy
from slurm_rl.models.attention import VARLEN
from slurm_rl.models.context import ContextGroup, OwnReads
from slurm_rl.models.offload import HostMoments
from slurm_rl.models.row_check import RowCheck
from slurm_rl.plan.memory import ModelShape
from tests.live_bytes import LiveBytes

_NUM_SEQUENCES = 4
"""Trained sequences per micro-batch; all their tokens have logits."""
_PROBE_TOKENS = 64
_VISION_3B = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048, "num_heads": 16}


@dataclass(frozen=True)
class Found:
    """Bytes of one rank: the peak of a phase, or the resident size."""

    loading: int
    loading_host: int
    """Read from files and not yet on the final device."""
    training: int
    """Forward and backward passes of two micro-batches."""
    stepping: int
    """The optimizer's step."""
    sampling: int
    """Resident size between two steps, after the probe of new weights."""
    syncing: int
    saving_host: int
    """Host copies for the writer."""


def measure(shape: ModelShape, ranks: int, tokens: int, **changes: Any) -> Found:
    """Run a step of this model shape as rank 0 of `ranks`.

    Args:
        changes: overrides of `PolicyConfig`, and `gradient_checkpointing`.
    """
    model = ModelConfig.model_validate(
        {
            "path": "fake",
            "dtype": "bfloat16",
            "attention": "eager" if shape.num_sliding_layers else "sdpa",  # gpt-oss has no other on CPU; replaced
            "gradient_checkpointing": changes.pop("gradient_checkpointing", True),
        }
    )
    context = changes.get("context_parallel", 1)
    policy_config = PolicyConfig(num_workers=ranks, num_threads=torch.get_num_threads(), **changes)
    to_host = HostMoments._to_host

    def to_host_counted(moments: HostMoments, *arguments: Any) -> Tensor:
        with memory.on_host():
            return to_host(moments, *arguments)

    with _stand_ins(ranks, policy_config), FakeTensorMode(allow_non_fake_inputs=True):
        opened = _open_model(shape, model, VARLEN if context > 1 else "flash_attention_2")
        with (
            _Counted(tokens // _NUM_SEQUENCES) as memory,
            patch.object(policy, "open_model", lambda *_, **__: opened),
            patch.object(HostMoments, "_to_host", to_host_counted),
        ):
            opened[1].memory = memory
            return _run(memory, policy.PolicyEngine("fake", model, policy_config, OptimConfig(), temperature=1.0))


def _run(memory: _Counted, engine: policy.PolicyEngine) -> Found:
    loading, loading_host, length = memory.peak, memory.peaks[True], memory.longest
    zeros = np.zeros(length - 1, np.float32)
    sequence = TrainSequence(token_ids=np.zeros(length, int), trained_from=1, advantages=zeros, old_logprobs=zeros)
    probe = TrainSequence(token_ids=np.zeros(_PROBE_TOKENS, int), trained_from=1)
    peaks: dict[str, int] = {}
    step = engine.backend.step

    def stepped(lr: float) -> float:
        peaks["training"] = memory.peak
        memory.begin()
        norm = step(lr)
        peaks["stepping"] = memory.peak
        return norm

    _fill_gradients(engine)
    engine.backend.step(1e-6)  # allocates the moments
    _fill_gradients(engine)  # of the first micro-batch
    memory.begin()
    with patch.object(engine.backend, "step", stepped):
        engine.train([[sequence] * _NUM_SEQUENCES], build_policy_loss(AlgorithmConfig(), None), 1e-6)
    memory.begin()
    for name, _ in engine.backend.full_state(place=torch.device("cpu")):
        del name, _  # the receiver frees them
    engine.module.eval()
    with torch.no_grad():
        engine.reader.forward(engine.reader.build_batch([probe]), 1.0)
    syncing, sampling = memory.peak, memory.begin()
    with memory.on_host():
        copies = engine.backend.save(Path(), copy=True)
        saving_host = memory.now[True]
        del copies
    return Found(loading, loading_host, **peaks, sampling=sampling, syncing=syncing, saving_host=saving_host)


def _fill_gradients(engine: policy.PolicyEngine) -> None:
    for parameter in engine.module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


class _Counted(LiveBytes):
    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:  # a fake tensor has no value; all are finite
            return 1.0 if args[0].is_floating_point() else args[0].dtype == torch.bool or self.longest
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Files:
    """Replace `WeightFiles`; every tensor has the requested shape."""

    memory: LiveBytes

    def __init__(self, model: PreTrainedModel) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}

    def read(self, name: str, region: tuple[slice, ...] | None = None) -> Tensor:
        shape = self.shapes[name]
        if region is not None:
            shape = tuple(part.stop - part.start for part in region)
        with self.memory.on_host():
            return torch.empty(shape, dtype=torch.bfloat16)


def _open_model(shape: ModelShape, config: ModelConfig, attention: str) -> tuple[PreTrainedModel, _Files]:
    architecture = build_config(shape)
    with unset_fake_temporarily(), init_empty_weights(include_buffers=False):
        model = load_model.model_class(architecture).from_config(architecture, dtype=torch.bfloat16)
    model.tie_weights()
    fakes: dict[Tensor, torch.nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None:
                module._parameters[key] = fakes.setdefault(p, torch.nn.Parameter(torch.empty_like(p)))
    prepared = load_model._prepare(model, config, any_mask=False)
    for part in (prepared.config, prepared.config.get_text_config()):
        part._attn_implementation = attention
    return prepared, _Files(model)


def build_config(shape: ModelShape) -> PreTrainedConfig:
    """Return the config of a Qwen3 of this shape, dense or with experts; of other families where the shape demands it.

    Windows need a gpt-oss, images a Qwen2.5-VL, whose tower is that of the 3B.
    """
    fields: dict[str, Any] = {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
    }
    if shape.vision_parameters:
        text = {**fields, "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}}
        return Qwen2_5_VLConfig(text_config=text, vision_config=_VISION_3B, tie_word_embeddings=shape.is_tied)
    fields |= {"tie_word_embeddings": shape.is_tied}
    if shape.num_experts == 1:
        # Llama and Qwen2 have no norms of queries and keys; the widths of their heads add up to the hidden size.
        is_plain = shape.num_heads * shape.head_dim == shape.hidden_size
        return LlamaConfig(**fields) if is_plain else Qwen3Config(**fields)
    fields |= {"num_experts_per_tok": shape.experts_per_token, "experts_implementation": "grouped_mm"}
    if shape.num_sliding_layers:
        return GptOssConfig(**fields, num_local_experts=shape.num_experts, sliding_window=shape.sliding_window)
    return Qwen3MoeConfig(**fields, num_experts=shape.num_experts, moe_intermediate_size=shape.expert_size)


@contextlib.contextmanager
def _stand_ins(ranks: int, config: PolicyConfig) -> Iterator[None]:
    """Replace values of the machine and other ranks, and kernels that need less memory on a GPU."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    opened = meshes.open_meshes(config)
    _ = opened.parameters, opened.context_group  # need real tensors for their ranks
    deterministic = torch.are_deterministic_algorithms_enabled()
    with contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        stack.callback(torch.use_deterministic_algorithms, deterministic)
        for owner, changes in {
            policy: {
                "load_tokenizer": lambda *_, **__: SimpleNamespace(pad_token_id=0),
                "load_image_reader": lambda *_: None,
                "check_rows": lambda *_, **__: RowCheck(packed=True),  # needs real values
            },
            fsdp2: {
                "gather_objects": lambda value: [value],
                "device_memory": lambda: 0,  # gradients are reduced at once
            },
            distributed: {"gather_objects": lambda value: [value]},
            attention: {"_fits_kernel": lambda *_: True},
            ContextGroup: {"split_reads": _split_reads},
            head._FloatProduct: {"forward": staticmethod(_multiply)},
        }.items():
            for key, value in changes.items():
                stack.enter_context(patch.object(owner, key, value))
        stack.enter_context(patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping, {"flash_attention_2": _attend}))
        yield


def _split_reads(context: ContextGroup, read_at: Tensor, _: int) -> OwnReads:
    """Give each rank an equal number of positions, since fake tensors have no values."""
    parts = read_at.tensor_split(context.size)
    return OwnReads(context, parts[context.rank], [len(part) for part in parts])


def _multiply(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
    """Multiply in one piece, as a GPU does."""
    ctx.save_for_backward(hidden, weight)
    return torch.empty(len(hidden), len(weight), dtype=torch.float32)


def _attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **ends: Any) -> tuple[Tensor, None]:
    """Attention of [1, heads, T, D] by torch's variable-length flash attention.

    It keeps the tensors that flash-attn keeps for the backward pass.
    """
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    cut, longest = ends["cu_seq_lens_q"], ends["max_length_q"]
    found = varlen_attn(q, k, v, cut, cut, longest, longest, window_size=(-1, 0), enable_gqa=True)
    return found.unsqueeze(0), None
