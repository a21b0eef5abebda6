"""Two workers of a vision-language model, one with images and one with text only, equal one worker.

Without a pass of the second worker through the vision tower, the first would wait forever.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import multiprocessing

from slurm_rl.algorithms.policy_loss import build_warmup_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.vision import load_image_reader
from tests.image_kit import build_sequence, write_image
from tests.tiny_models import TinyVL, build_tiny_model
from tests.unit.models.test_store_address import free_port

pytestmark = pytest.mark.slow

LAYOUTS = {
    "fsdp2": PolicyConfig(backend="fsdp2", num_workers=2, num_threads=1),
    "zero-3": PolicyConfig(backend="deepspeed", zero_stage=3, num_workers=2, num_threads=1),
}
NUM_STEPS = 3


def build_sequences(root: Path) -> list[list[TrainSequence]]:
    """Return the sequences of each worker."""
    reader = load_image_reader(root / "model", ModelConfig(path="unused"))
    assert reader is not None
    wide, tall = str(root / "wide.png"), str(root / "tall.png")
    seeing = [build_sequence(reader, 1, [wide, tall], 3, 5), build_sequence(reader, 2, [tall], 2, 4)]
    return [seeing, [build_sequence(reader, 3, [], 4, 6), build_sequence(reader, 4, [], 3, 2)]]


def run_steps(root: Path, policy: PolicyConfig, micro_batches: list[list[TrainSequence]], dtype: str) -> list[float]:
    config = ModelConfig.model_validate({"path": str(root / "model"), "dtype": dtype, "gradient_checkpointing": True})
    engine = PolicyEngine(root / "model", config, policy, OptimConfig(lr=1e-3, eps=1e-6), temperature=1.0)
    return [engine.train(micro_batches, build_warmup_loss(), 1e-3)["loss"] for _ in range(NUM_STEPS)]


def run_worker(rank: int, port: int, root: Path) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, timeout_s=120)
    sequences = [build_sequences(root)[rank]]
    found = {
        f"{name} {dtype}": run_steps(root, policy, sequences, dtype)
        for name, policy in LAYOUTS.items()
        for dtype in ("float32", "bfloat16")
    }
    (root / f"found-{rank}.json").write_text(json.dumps(found))
    leave_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vision")
    build_tiny_model(TinyVL(), seed=0, folder=root / "model")
    write_image(root / "wide.png", 1, 140, 60)
    write_image(root / "tall.png", 2, 60, 110)
    run: Callable[..., object] = multiprocessing.spawn
    run(run_worker, args=(free_port(), root), nprocs=2)
    return root


def test_layouts_give_losses_of_one_worker(root: Path) -> None:
    expected = run_steps(root, PolicyConfig(num_threads=1), build_sequences(root), "float32")
    assert expected[-1] < expected[0]
    for rank in range(2):
        found = json.loads((root / f"found-{rank}.json").read_text())
        for name, losses in found.items():
            # bfloat16 has about three digits.
            assert losses == pytest.approx(expected, rel=1e-4 if "float32" in name else 2e-2), name
