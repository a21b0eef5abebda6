"""Throughput of the trainer on random data: tokens/s, model FLOPs utilisation and memory of steps on packed rows.

    python -m benchmarks.trainer_throughput --shape 0.5b 1.5b --tokens 16384      on a GPU
    python -m benchmarks.trainer_throughput --shape tiny --tokens 2048 --steps 2  anywhere

Weights are random; sequences of 2,048 tokens (or --length), half of each a prompt, fill one micro-batch. FLOPs per
token are 6 N + 6 L h s for N parameters without the input embedding, L layers of width h and causal attention over s/2
tokens on average (Chowdhery et al. 2022, appendix B, halved for causality); the second forward pass of checkpointing
does not count. MFU is relative to the dense bfloat16 peak in the vendor's data sheet, for GPUs in the table below.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.node.gpu_peaks import find_peak


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a Qwen2.5 model, as in its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int


SHAPES = {
    "tiny": Shape(128, 384, 3, 4, 2, 1000),
    "0.5b": Shape(896, 4864, 24, 14, 2, 151936),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151936),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["0.5b", "1.5b"])
    parser.add_argument("--tokens", type=int, default=16384, help="of one micro-batch, which is one step")
    parser.add_argument("--length", type=int, default=2048, help="of one sequence")
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after two that are not")
    parser.add_argument("--attention", default="auto", choices=["auto", "flash_attention_2", "varlen", "sdpa"])
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--chunk-tokens", type=int, help="policy.logprob_chunk_tokens")
    args = parser.parse_args()
    if args.length > args.tokens:
        parser.error(f"--length must be <= --tokens; got {args.length} > {args.tokens}")
    print("| model | device | tokens/s | TFLOP/s | MFU | peak GB | loss |\n|---|---|---|---|---|---|---|")
    for name in args.shape:
        print(render(name, measure(SHAPES[name], args)), flush=True)
    return 0


def measure(shape: Shape, args: argparse.Namespace) -> dict[str, Any]:
    """Train a random model of this shape for a few steps."""
    import torch

    from slurm_rl.algorithms.policy_loss import build_policy_loss
    from slurm_rl.config.algorithm import AlgorithmConfig
    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.distributed import init_process_group, leave_process_group
    from slurm_rl.models.policy import PolicyEngine

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        build_model(shape, args.length, Path(folder))
        model = ModelConfig(
            path=folder,
            dtype="bfloat16" if on_gpu else "float32",
            attention=args.attention,
            gradient_checkpointing=args.gradient_checkpointing,
        )
        init_process_group(0, 1, "127.0.0.1", free_port(), timeout_s=60)
        policy = PolicyConfig(num_workers=1, logprob_chunk_tokens=args.chunk_tokens)
        engine = PolicyEngine(folder, model, policy, OptimConfig(lr=1e-6), temperature=1.0)
    batch = [build_sequences(shape, args.tokens, args.length)]
    loss_fn, seconds, totals = build_policy_loss(AlgorithmConfig(), None), [], {"loss": 0.0}
    for _ in range(args.steps + 2):
        begin = time.perf_counter()
        totals = engine.train(batch, loss_fn, 1e-6)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    found = {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "tokens_per_s": args.tokens / statistics.median(seconds[2:]),
        "flops_per_token": flops_per_token(shape, args.length),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None,
        "loss": totals["loss"],
    }
    leave_process_group()
    return found


def build_model(shape: Shape, length: int, folder: Path) -> None:
    """Build random weights and a minimal tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from tests.tiny_models import TinyModel, build_character_tokenizer

    config = Qwen2Config(**dataclasses.asdict(shape), tie_word_embeddings=True, max_position_embeddings=length)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    build_character_tokenizer(TinyModel()).save_pretrained(folder)


def build_sequences(shape: Shape, num_tokens: int, length: int) -> list[Any]:
    """Return sequences of `length` that fill the micro-batch; the second half of each is trained."""
    from slurm_rl.algorithms.sequences import TrainSequence

    random = np.random.default_rng(0)
    count, trained = num_tokens // length, length - length // 2
    return [
        TrainSequence(
            token_ids=random.integers(2, shape.vocab_size, length),
            trained_from=length // 2,
            weight=1 / (count * trained),
            advantages=np.full(trained, random.normal(), np.float32),
            old_logprobs=np.full(trained, -np.log(shape.vocab_size), np.float32),
        )
        for _ in range(count)
    ]


def flops_per_token(shape: Shape, length: int) -> float:
    """Return FLOPs of forward and backward; logits are only computed for the trained half."""
    head = shape.hidden_size // shape.num_attention_heads
    attention = shape.hidden_size * head * 2 * (shape.num_attention_heads + shape.num_key_value_heads)
    block = attention + 3 * shape.hidden_size * shape.intermediate_size
    logits = shape.vocab_size * shape.hidden_size * (length - length // 2) / length
    scores = 6 * shape.num_hidden_layers * shape.hidden_size * length
    return 6 * (shape.num_hidden_layers * block + logits) + scores


def render(name: str, found: dict[str, Any]) -> str:
    tflops = found["tokens_per_s"] * found["flops_per_token"] / 1e12
    peak = find_peak(found["device"])
    mfu = f"{tflops / peak.tflops:.0%}" if peak else "-"
    memory = f"{found['peak_gb']:.1f}" if found["peak_gb"] else "-"
    speed = f"{found['tokens_per_s']:.0f} | {tflops:.2f}"
    return f"| {name} | {found['device']} | {speed} | {mfu} | {memory} | {found['loss']:.4f} |"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
