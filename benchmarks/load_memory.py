"""Peak memory of a rank while it loads a policy: whole model per rank compared with only its shard.

    python -m benchmarks.load_memory --gb 4 --ranks 2 4

A random Qwen2 of the given size in bfloat16 is written and loaded by local ranks: into float32 shards (fsdp2), or
bfloat16 ones (zero-3, until DeepSpeed makes master weights and moments). Numbers are the increase of the process's
resident set (VmHWM, which also counts mapped files) in GB.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

BACKENDS: dict[str, dict[str, Any]] = {
    "fsdp2": {"backend": "fsdp2"},
    "zero-3": {"backend": "deepspeed", "zero_stage": 3},
}


@dataclasses.dataclass(frozen=True)
class LoadPeak:
    """Peak of one rank, in bytes."""

    peak: int
    shard: int
    """Its part of the parameters after loading."""
    largest: int
    """The largest tensor, in its stored dtype."""

    @property
    def over_shard(self) -> float:
        """Ratio of the peak, without one tensor, to the shard."""
        return (self.peak - self.largest) / self.shard


def write_model(folder: Path, gb: float, *, hidden_size: int = 1024, vocab_size: int = 32_000) -> None:
    """Write a random Qwen2 with a tokenizer of a few letters, in files of at most a GB."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.tiny_models import TinyModel, build_character_tokenizer

    config = Qwen2Config(
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=vocab_size,
        tie_word_embeddings=False,
    )
    layer = 16 * hidden_size**2 + 5 * hidden_size
    config.num_hidden_layers = max(1, round((gb * 1e9 / 2 - 2 * vocab_size * hidden_size) / layer))
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    model.save_pretrained(folder, max_shard_size="1GB")
    build_character_tokenizer(TinyModel()).save_pretrained(folder)


def measure(folder: Path, backend: str, num_ranks: int, *, whole: bool = False) -> list[LoadPeak]:
    """Load the model in `num_ranks` processes; return the peak of each.

    Args:
        whole: use Hugging Face's own loading on each rank, for comparison.
    """
    from torch import multiprocessing

    from tests.unit.models.test_store_address import free_port

    with tempfile.TemporaryDirectory() as out:
        arguments = (num_ranks, folder, BACKENDS[backend], whole, free_port(), Path(out))
        multiprocessing.spawn(_load, arguments, num_ranks)
        return [LoadPeak(**json.loads((Path(out) / str(rank)).read_text())) for rank in range(num_ranks)]


def _load(rank: int, num_ranks: int, folder: Path, backend: dict[str, Any], whole: bool, port: int, out: Path) -> None:
    import torch

    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.backend import build_backend
    from slurm_rl.models.distributed import init_process_group, leave_process_group
    from slurm_rl.models.load_model import load_model, open_model

    init_process_group(rank, num_ranks, "127.0.0.1", port, 300)
    model = ModelConfig(path=str(folder), dtype="bfloat16")
    policy = PolicyConfig(num_workers=num_ranks, num_threads=1, **backend)
    peaks: list[int] = []
    if "zero_stage" in backend:
        _look_before_states(peaks, whole)
    Path("/proc/self/clear_refs").write_text("5")
    before = read_peak()
    module, files = (load_model(folder, model), None) if whole else open_model(folder, model)
    assert whole or files is not None
    build = build_backend(module, policy, OptimConfig(), files)
    kept = [getattr(p, "ds_tensor", p) for p in build.module.parameters()]
    shard = sum(t.to_local().nbytes if hasattr(t, "to_local") else t.nbytes for t in kept)
    sizes = [getattr(p, "ds_numel", p.numel()) * p.element_size() for p in build.module.parameters()]
    found = LoadPeak([*peaks, read_peak()][0] - before, shard, max(sizes))
    (out / str(rank)).write_text(json.dumps(dataclasses.asdict(found)))
    torch.distributed.barrier()
    leave_process_group()


def _look_before_states(peaks: list[int], whole: bool) -> None:
    """Measure when the parameters exist, before DeepSpeed makes the states (on a GPU machine they are on the GPU).

    A whole model would go there whole too, so it must be sharded by then.
    """
    import deepspeed

    initialize = deepspeed.initialize

    def look(**fields: Any) -> Any:
        peaks.append(read_peak())
        assert whole or all(hasattr(parameter, "ds_tensor") for parameter in fields["model"].parameters())
        return initialize(**fields)

    deepspeed.initialize = look


def read_peak() -> int:
    """Return the largest resident set in bytes since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.0, help="of the files")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    args = parser.parse_args()
    print("| backend | ranks | shard | largest tensor | peak, whole on each | peak, its own part |")
    print("|" + "---|" * 6)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), args.gb)
        for backend in args.backends:
            for num_ranks in args.ranks:
                part = worst(measure(Path(folder), backend, num_ranks))
                sizes = [part.shard, part.largest, part.peak]
                # In float32 it is twice as large as its files, which exist as well.
                if num_ranks * 3 * args.gb < available_gb():
                    sizes.insert(2, worst(measure(Path(folder), backend, num_ranks, whole=True)).peak)
                cells = [f"{size / 1e9:.2f} GB" for size in sizes]
                if len(cells) == 3:
                    cells.insert(2, "more than this machine has")
                print(f"| {backend} | {num_ranks} | {' | '.join(cells)} |", flush=True)


def available_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1e6


def worst(peaks: list[LoadPeak]) -> LoadPeak:
    return max(peaks, key=lambda found: found.peak)


if __name__ == "__main__":
    main()
