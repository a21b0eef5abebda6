"""Memory that a rank needs to gather its weights, and speed of a checksum over them.

    python -m benchmarks.gather_state --ranks 2

A random Qwen2 with the vocabulary of Qwen2.5-0.5B, bfloat16 with float32 shards (fsdp2), is gathered on every rank as
for a weight sync: tensor by tensor with `full_tensor`, and in buckets. The peak counts live tensors besides the shards
(tests/live_bytes.py), without memory inside collectives. SHA-256 and our checksum are compared on one thread by its CPU
time.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    from torch import multiprocessing

    from tests.unit.models.test_store_address import free_port

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (args.ranks, args.layers, free_port(), Path(folder) / "out")
        multiprocessing.spawn(_measure, arguments, args.ranks)
        found = json.loads((Path(folder) / "out").read_text())
    print("| way | collectives | bytes gathered | peak | s |\n|---|---|---|---|---|")
    for way, (count, size, peak, seconds) in found.items():
        print(f"| {way} | {count} | {size / 1e9:.2f} GB | {peak / 1e9:.2f} GB | {seconds:.1f} |")
    _compare_checksums()


def _measure(rank: int, num_ranks: int, num_layers: int, port: int, out: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.backend import build_backend
    from slurm_rl.models.distributed import init_process_group, leave_process_group

    init_process_group(rank, num_ranks, "127.0.0.1", port, 300)
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=num_layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    backend: Any = build_backend(model, PolicyConfig(num_workers=num_ranks, num_threads=1), OptimConfig(), None)

    def one_by_one() -> Iterator[Any]:
        for held in backend.module.state_dict().values():
            yield held.full_tensor().to(backend.dtype, copy=True)

    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "one by one": one_by_one,
        "in buckets": lambda: (tensor for _, tensor in backend.full_state(place=torch.device("cpu"))),
    }
    found = {way: _watch(gather) for way, gather in ways.items()}
    if rank == 0:
        out.write_text(json.dumps(found))
    torch.distributed.barrier()
    leave_process_group()


def _watch(gather: Callable[[], Iterator[Any]]) -> tuple[int, int, int, float]:
    """Return collectives, bytes gathered, peak of live tensors, seconds."""
    import torch
    from torch.distributed.tensor.debug import CommDebugMode

    from tests.live_bytes import LiveBytes

    begun = time.perf_counter()
    with LiveBytes() as alive:
        for tensor in gather():
            del tensor
    seconds = time.perf_counter() - begun
    sizes: list[int] = []
    original = torch.distributed.all_gather_single

    def count(whole: Any, part: Any, **fields: Any) -> Any:
        sizes.append(whole.nbytes)
        return original(whole, part, **fields)

    torch.distributed.all_gather_single = count
    with CommDebugMode() as functional:
        for tensor in gather():
            if functional.get_total_counts() > len(sizes):  # torch's own, in the dtype of the shards
                sizes.append(2 * tensor.nbytes)
    torch.distributed.all_gather_single = original
    return len(sizes), sum(sizes), alive.peak, seconds


def _compare_checksums() -> None:
    import torch

    from slurm_rl.rollout.weights.checksum import hash_tensor

    torch.set_num_threads(1)
    tensor = torch.randn(2**27, dtype=torch.bfloat16)
    view = tensor.view(torch.uint8).numpy()
    for name, compute in (("SHA-256", lambda: hashlib.sha256(view).digest()), ("ours", lambda: hash_tensor(tensor))):
        compute()
        begun = time.thread_time()
        compute()
        print(f"{name}: {tensor.nbytes / (time.thread_time() - begun) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
