"""Time of a sync on CPU: adapters that vLLM swaps, against merged weights, for random models of two sizes.

The time is that of packing, loading and the probe; with merged weights, also that of merging.

python -m benchmarks.adapter_sync /tmp/sync tiny
python -m benchmarks.adapter_sync /tmp/sync 0.5B
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.models.lora import merge_into_base
from slurm_rl.plan.accelerator import accelerator_env

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "vocab_size": 64},
    # Qwen2.5-0.5B
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936},
}
RANK = 32
PROBE = TokenPrompt(token_ids=list(range(8, 40)))


def build(folder: Path, size: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.tiny_models import TinyModel, build_character_tokenizer

    heads = (14, 2) if size == "0.5B" else (4, 4)
    shape = {**SIZES[size], "num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    config = Qwen2Config(**shape, tie_word_embeddings=True, max_position_embeddings=128)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    build_character_tokenizer(TinyModel()).save_pretrained(folder)
    return model


def list_adapters(model: Any) -> list[tuple[str, torch.Tensor]]:
    found = []
    for name, layer in model.named_modules():
        if name.endswith(TARGETS):
            found.append((f"{name}.lora_A.weight", torch.randn(RANK, layer.in_features)))
            found.append((f"{name}.lora_B.weight", 1e-3 * torch.randn(layer.out_features, RANK)))
    return found


def measure(engine: Any, read: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> tuple[int, float]:
    """Return bytes and the median seconds of three syncs after the first, each with its probe."""
    from slurm_rl.rollout.weights.weight_record import pack_weights

    seconds = []
    for version in range(4):
        start = time.perf_counter()
        records, checksum = pack_weights(read())
        assert engine.load_weights(version, records, PROBE).checksums == [checksum]
        seconds.append(time.perf_counter() - start)
    return sum(record.data.nbytes for record in records), statistics.median(seconds[1:])


def main(folder: Path, size: str) -> None:
    os.environ.update({var.name: var.value for var in accelerator_env("cpu")})
    from slurm_rl.rollout.vllm.engine import VLLMEngine

    model = build(folder / size, size)
    lora = LoraConfig(rank=RANK, target_modules=TARGETS)
    config = ModelConfig(path=str(folder / size), lora=lora)
    adapters = list_adapters(model)
    for transfer in ("adapters", "ray"):
        rollout = RolloutConfig(weight_transfer=transfer, max_num_seqs=4)
        engine = VLLMEngine(str(folder / size), config, rollout, 64, 0)
        merged = partial(merge_into_base, model.state_dict().items(), dict(adapters), lora)
        num_bytes, seconds = measure(engine, (lambda: adapters) if transfer == "adapters" else merged)
        print(f"{size} {transfer}: {num_bytes / 1e6:.1f} MB, {seconds:.2f} s", flush=True)
        del engine


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
