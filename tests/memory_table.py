"""Compare planned memory of a policy worker with the real training code on fake tensors, phase by phase.

python -m tests.memory_table             all models of `ROWS`; needs no GPU; 7B on 8 took 39 s
python -m tests.memory_table 7B 8 8192   one model, number of ranks, tokens of a micro-batch
"""

import sys
import warnings
from dataclasses import replace
from typing import Any

from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.policy_memory import RESERVE_GB, PolicyLoad, estimate_policy
from tests.fake_world import measure

MODELS = {
    "0.5B": "Qwen/Qwen2.5-0.5B",
    "1.5B": "Qwen/Qwen2.5-1.5B",
    "3B VL": "Qwen/Qwen2.5-VL-3B-Instruct",
    "7B": "Qwen/Qwen2.5-7B",
    "8B": "meta-llama/Llama-3.1-8B",
    "32B": "Qwen/Qwen2.5-32B",
    "70B": "meta-llama/Llama-3.1-70B",
}
ROWS = [
    (name, ranks)
    for name, most in {"0.5B": 16, "1.5B": 16, "3B VL": 16, "7B": 64, "8B": 64, "32B": 64, "70B": 64}.items()
    for ranks in (1, 8, 16, 64)
    if ranks <= most and (ranks > 1 or name in ("0.5B", "1.5B"))
]
"""Models and numbers of 80 GB GPUs that fit them, with micro-batches of 8192 tokens."""
CHUNK = 2048


def compare(
    name: str, ranks: int, tokens: int, *, num_layers: int | None = None, **options: Any
) -> dict[str, tuple[float, float]]:
    """Return GB by phase, planned and measured, without the plan's reserve."""
    shape = find_known(MODELS[name])
    assert shape is not None
    shape = replace(shape, num_layers=num_layers or shape.num_layers)
    options = {"gradient_checkpointing": True, "logprob_chunk_tokens": CHUNK, **options}
    again, chunk = options["gradient_checkpointing"], options["logprob_chunk_tokens"]
    planned = estimate_policy(shape, PolicyLoad("fsdp2", 2, ranks, 2, again, tokens, logit_rows=chunk))
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
    return {
        **{phase: (planned.phases_gb[phase] - RESERVE_GB, size / 1e9) for phase, size in gpu.items()},
        **{f"host, {phase}": (planned.host_gb[phase], size / 1e9) for phase, size in host.items()},
    }


def main(words: list[str]) -> None:
    rows = [(words[0], int(words[1]), int(words[2]))] if words else [(name, ranks, 8192) for name, ranks in ROWS]
    heads = ["load", "train", "sample", "sync", "host, load", "host, save"]
    print("| model | GPUs | " + " | ".join(heads) + " |")
    print("|" + "---|" * (2 + len(heads)))
    for name, ranks, tokens in rows:
        cells = compare(name, ranks, tokens)
        texts = (f"{planned:.2f} / {found:.2f}" for planned, found in (cells[head] for head in heads))
        print(f"| {name} | {ranks} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
