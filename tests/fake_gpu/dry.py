"""Memory planned and found on dry fake GPUs: `python -m tests.fake_gpu.dry`, in the environment of `make fake-gpu`.

The training code and torch's caching allocator run with real sizes, and vLLM profiles its cache; kernels do nothing and
weights are sparse files. Planned numbers are without the plan's reserves, found ones without a process's context.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lock import ROOT

ROWS = [("0.5B", 1, 8192), ("0.5B", 2, 8192), ("1.5B", 1, 8192), ("1.5B", 2, 8192), ("7B", 1, 4096), ("7B", 2, 4096)]
"""Models of tests.memory_table, devices, tokens of a micro-batch."""
_CONTEXT, _SHARE = 8192, 0.5


def write_sparse_model(name: str, folder: Path) -> Path:
    """Write a model whose weights file has a header and no blocks on disk."""
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    from tests.fake_world import build_config
    from tests.memory_table import find_shape
    from tests.tiny_llama import build_tiny_llama

    build_tiny_llama(folder)
    config = build_config(find_shape(name))
    config.max_position_embeddings, config.dtype = _CONTEXT, "bfloat16"
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    header, end = {}, 0
    for key, value in model.named_parameters():
        begin, end = end, end + 2 * value.numel()
        header[key] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def run_rank(folder: str, ranks: str, tokens: str, rank: str, port: str) -> None:
    """Print the peaks of one rank in GB."""
    import numpy as np
    import torch

    from slurm_rl.algorithms.policy_loss import build_policy_loss
    from slurm_rl.algorithms.sequences import TrainSequence
    from slurm_rl.config.algorithm import AlgorithmConfig
    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models import policy as policy_module
    from slurm_rl.models.distributed import init_process_group
    from slurm_rl.models.row_check import RowCheck
    from tests.memory_table import CHUNK

    torch.cuda.set_device(int(rank))
    init_process_group(int(rank), int(ranks), "127.0.0.1", int(port), timeout_s=300)
    model = ModelConfig.model_validate({"path": folder, "dtype": "bfloat16", "gradient_checkpointing": True})
    policy = PolicyConfig(num_workers=int(ranks), logprob_chunk_tokens=CHUNK)
    found: dict[str, float] = {}

    def note(phase: str) -> None:
        found[phase] = torch.cuda.max_memory_allocated() / 1e9
        found[f"{phase}, reserved"] = torch.cuda.max_memory_reserved() / 1e9
        torch.cuda.reset_peak_memory_stats()

    policy_module.check_rows = lambda *_, **__: RowCheck(packed=True)  # needs real values
    engine = policy_module.PolicyEngine(folder, model, policy, OptimConfig(), temperature=1.0)
    note("load")
    length = int(tokens) // 4
    zeros = np.zeros(length - 1, np.float32)
    one = TrainSequence(token_ids=np.zeros(length, int), trained_from=1, advantages=zeros, old_logprobs=zeros)
    for _ in range(2):  # the first step allocates the moments
        torch.cuda.reset_peak_memory_stats()
        engine.train([[one] * 4, [one] * 4], build_policy_loss(AlgorithmConfig(), None), 1e-6)
    note("train")
    torch.cuda.empty_cache()
    for key, value in engine.backend.full_state(place=engine.device):
        del key, value
    note("sync")
    print("\nFOUND " + json.dumps(found), flush=True)


def run_engine(folder: str) -> None:
    """Print the GB that vLLM leaves for its cache."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    words = {"load_format": "dummy", "dtype": "bfloat16", "enforce_eager": True, "max_model_len": _CONTEXT}
    llm = LLM(folder, gpu_memory_utilization=_SHARE, disable_log_stats=True, **words)  # type: ignore[arg-type]
    cache = llm.llm_engine.vllm_config.cache_config
    print("\nFOUND " + json.dumps({"tokens": cache.num_gpu_blocks * cache.block_size}), flush=True)


def plan_engine(name: str) -> tuple[float, float]:
    """Return the planned GB of the cache, and the bytes of a token in it."""
    from slurm_rl.plan.memory import EngineLoad, estimate_engine
    from tests.fake_gpu.machine import PROFILES
    from tests.memory_table import find_shape

    shape = find_shape(name)
    memory = estimate_engine(shape, EngineLoad(1, 2, _CONTEXT, has_graphs=False))
    budget = _SHARE * PROFILES["h200"].memory_mib * 2**20 / 1e9
    return budget - memory.weights_gb - memory.reserve_gb, shape.cached_values(1) * 2


def measure(name: str, ranks: int, *command: str) -> dict[str, float]:
    """Run a command of `_COMMANDS` on a dry machine; return the largest numbers of its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        write_sparse_model(name, Path(folder))
        words = [sys.executable, "-m", "tests.fake_gpu", "run", "--dry", "--gpus", str(ranks), "--profile", "h200"]
        words += [sys.executable, "-m", "tests.fake_gpu.dry", command[0], folder, *command[1:]]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    rows = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and len(rows) == ranks, done.stdout[-3000:] + done.stderr[-5000:]
    return {key: max(row[key] for row in rows) for key in rows[0]}


def run_ranks(folder: str, ranks: str, tokens: str, port: str) -> int:
    argv = [sys.executable, "-m", "tests.fake_gpu.dry", "rank", folder, ranks, tokens]
    processes = [subprocess.Popen([*argv, str(rank), port]) for rank in range(int(ranks))]
    return max(process.wait(1000) for process in processes)


def plan(name: str, ranks: int, tokens: int) -> dict[str, float]:
    """Return GB without reserves."""
    from slurm_rl.config.parallel import HELD_GRADIENTS
    from slurm_rl.plan.policy_memory import RESERVE_GB, estimate_policy
    from slurm_rl.plan.training_states import PolicyLoad
    from tests.fake_gpu.machine import PROFILES
    from tests.memory_table import CHUNK, find_shape

    held = HELD_GRADIENTS * PROFILES["h200"].memory_mib * 2**20
    load = PolicyLoad("fsdp2", 2, ranks, 2, True, tokens, "none", logit_rows=CHUNK, held_bytes=held)
    planned = estimate_policy(find_shape(name), load)
    tensors = {phase: size - RESERVE_GB for phase, size in planned.phases_gb.items()}
    return {**tensors, "train": planned.tensors_gb, "with reserves": planned.phases_gb["train"]}


def main(words: list[str]) -> None:
    from benchmarks.trainer_throughput import free_port

    rows: list[tuple[str, int, int]] = [(words[0], int(words[1]), int(words[2]))] if words else ROWS
    print("| model | devices | tokens | load | train | sync | reserved in train | engine's cache |")
    print("|---|---|---|---|---|---|---|---|")
    for name, ranks, tokens in rows:
        planned, found = (
            plan(name, ranks, tokens),
            measure(name, ranks, "ranks", str(ranks), str(tokens), str(free_port())),
        )
        cells = [f"{planned[phase]:.2f} / {found[phase]:.2f}" for phase in ("load", "train", "sync")]
        cells.append(f"{planned['with reserves']:.2f} / {found['train, reserved']:.2f}")
        if ranks == 1:
            cache, per_token = plan_engine(name)
            cells.append(f"{cache:.2f} / {measure(name, 1, 'engine')['tokens'] * per_token / 1e9:.2f}")
        print(f"| {name} | {ranks} | {tokens} | {' | '.join(cells)} |", flush=True)


_COMMANDS: dict[str, Any] = {"rank": run_rank, "ranks": run_ranks, "engine": run_engine}

if __name__ == "__main__":
    command = _COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    sys.exit(command(*sys.argv[2:]) if command else main(sys.argv[1:]))
