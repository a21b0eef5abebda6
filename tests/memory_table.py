"""Compare planned memory of a policy worker with the real training code on fake tensors, phase by phase.

python -m tests.memory_table             all rows of `ROWS`; needs no GPU
python -m tests.memory_table 7B 8 8192   one model, number of ranks, tokens of a micro-batch; then the context's ranks
"""

import sys
import warnings
from dataclasses import replace
from typing import Any

from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.policy_memory import RESERVE_GB, estimate_policy
from slurm_rl.plan.training_states import PolicyLoad
from tests.fake_world import measure

MODELS = {
    "0.5B": "Qwen/Qwen2.5-0.5B",
    "1.5B": "Qwen/Qwen2.5-1.5B",
    "3B VL": "Qwen/Qwen2.5-VL-3B-Instruct",
    "7B": "Qwen/Qwen2.5-7B",
    "8B": "meta-llama/Llama-3.1-8B",
    "70B": "meta-llama/Llama-3.1-70B",
    "Qwen3-4B": "Qwen/Qwen3-4B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "30B-A3B": "Qwen/Qwen3-30B-A3B",
    "235B-A22B": "Qwen/Qwen3-235B-A22B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
ROWS = [
    ("0.5B", 1, 8192, 1),
    ("1.5B", 8, 8192, 1),
    ("3B VL", 8, 8192, 1),
    ("7B", 8, 8192, 1),
    ("8B", 8, 8192, 1),
    ("8B", 64, 65536, 1),
    ("Qwen3-4B", 8, 8192, 1),
    ("Qwen3-4B", 8, 65536, 1),
    ("Qwen3-32B", 16, 8192, 1),
    ("Qwen3-32B", 64, 32768, 1),
    ("70B", 64, 16384, 1),
    ("8B", 8, 131072, 4),
    ("70B", 64, 131072, 8),
    ("30B-A3B", 8, 8192, 1),
    ("30B-A3B", 16, 32768, 1),
    ("30B-A3B", 16, 131072, 8),
    ("gpt-oss-120b", 64, 16384, 1),
    ("235B-A22B", 128, 16384, 1),
    ("235B-A22B", 256, 8192, 1),
]
"""Models, numbers of GPUs, tokens of a micro-batch and ranks that share them."""
CHUNK = 2048


def find_shape(name: str, num_layers: int | None = None) -> ModelShape:
    """Return the shape of a model of `MODELS`, with fewer layers if wanted."""
    shape = find_known(MODELS[name])
    assert shape is not None
    layers = num_layers or shape.num_layers
    sliding = shape.num_sliding_layers * layers // shape.num_layers
    return replace(shape, num_layers=layers, num_sliding_layers=sliding)


def compare(
    name: str, ranks: int, tokens: int, *, num_layers: int | None = None, **options: Any
) -> dict[str, tuple[float, float]]:
    """Return GB by phase, planned and measured, without the reserve and fragmentation of the plan."""
    shape = find_shape(name, num_layers)
    options = {"gradient_checkpointing": True, "logprob_chunk_tokens": CHUNK, **options}
    again, chunk = options["gradient_checkpointing"], options["logprob_chunk_tokens"]
    own = tokens // options.get("context_parallel", 1)
    load = PolicyLoad("fsdp2", 2, ranks, 2, again, own, options.get("offload", "none"), logit_rows=chunk)
    planned = estimate_policy(shape, load)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(shape, ranks, tokens, **options)
    gpu = {
        "load": found.loading,
        "train": max(found.training, found.stepping),
        "sample": found.sampling,
        "sync": found.syncing,
    }
    host = {"load": found.loading_host, "save": found.saving_host}
    tensors = {phase: size - RESERVE_GB for phase, size in planned.phases_gb.items()} | {"train": planned.tensors_gb}
    return {
        **{phase: (tensors[phase], size / 1e9) for phase, size in gpu.items()},
        **{f"host, {phase}": (planned.host_gb[phase], size / 1e9) for phase, size in host.items()},
    }


def main(words: list[str]) -> None:
    rows = [(words[0], *map(int, [*words[1:], 1][:3]))] if words else ROWS
    heads = ["load", "train", "sample", "sync", "host, load", "host, save"]
    print("| model | GPUs | tokens | context | " + " | ".join(heads) + " |")
    print("|" + "---|" * (4 + len(heads)))
    for name, ranks, tokens, context in rows:
        cells = compare(name, ranks, tokens, context_parallel=context)
        texts = (f"{planned:.2f} / {found:.2f}" for planned, found in (cells[head] for head in heads))
        print(f"| {name} | {ranks} | {tokens} | {context} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
