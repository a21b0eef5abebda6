"""The policy engine on one GPU: bfloat16 steps, and flash-attn compared with SDPA."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from tests.gpu.layout_rank import CHARACTERS, build_sequences
from tests.tiny_models import TinyModel

LENGTHS = [(3, 20), (10, 5), (40, 17), (2, 1)]
"""(prompt, completion) tokens of each sequence."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import build_tiny_model

    path = tmp_path_factory.mktemp("gpu") / "model"
    # Flash attention requires head sizes that are multiples of 8.
    build_tiny_model(TinyModel(characters=CHARACTERS, hidden_size=256, num_heads=4), 0, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    from benchmarks.trainer_throughput import free_port
    from slurm_rl.models.distributed import init_process_group, leave_process_group

    init_process_group(0, 1, "127.0.0.1", free_port(), timeout_s=60)
    yield
    leave_process_group()


def build_engine(folder: Path, *, offload: Any = "none", **model: Any) -> Any:
    from slurm_rl.models.policy import PolicyEngine

    config = ModelConfig(**{"path": str(folder), **model})
    policy = PolicyConfig(num_workers=1, offload=offload)
    return PolicyEngine(folder, config, policy, OptimConfig(lr=1e-3), temperature=1.0)


def test_bfloat16_step_raises_rewarded_tokens(folder: Path) -> None:
    from slurm_rl.algorithms.policy_loss import build_policy_loss

    engine = build_engine(folder, dtype="bfloat16")
    assert engine.device.type == "cuda"
    batch = [build_sequences(LENGTHS)]
    before = np.concatenate(engine.compute_logprobs(batch)[0]).mean()
    for _ in range(5):
        totals = engine.train(batch, build_policy_loss(AlgorithmConfig(), None), 1e-3)
        assert np.isfinite(totals["loss"]) and totals["grad_norm"] > 0
    assert np.concatenate(engine.compute_logprobs(batch)[0]).mean() > before


@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_offloaded_optimizer_takes_identical_steps(folder: Path, offload: str, tmp_path: Path) -> None:
    from slurm_rl.algorithms.policy_loss import build_policy_loss

    batch, found = [build_sequences(LENGTHS)], []
    for place in ("none", offload):
        engine = build_engine(folder, dtype="float32", offload=place)
        for _ in range(3):
            engine.train(batch, build_policy_loss(AlgorithmConfig(), None), 1e-3)
        moments = [v for state in engine.backend.optimizer.state.values() for v in state.values() if v.ndim]
        assert {v.device.type for v in moments} == {"cuda" if place == "none" else "cpu"}
        engine.save(tmp_path)
        engine.load(tmp_path)
        found.append(np.concatenate(engine.compute_logprobs(batch)[0]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_packed_sequences_are_independent(folder: Path) -> None:
    engine = build_engine(folder, dtype="float32")
    together = engine.compute_logprobs([build_sequences(LENGTHS)])[0]
    alone = [engine.compute_logprobs([[sequence]])[0][0] for sequence in build_sequences(LENGTHS)]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


_NO_FLASH = importlib.util.find_spec("flash_attn") is None


@pytest.mark.parametrize(
    "way", ["varlen", pytest.param("flash_attention_2", marks=pytest.mark.skipif(_NO_FLASH, reason="no flash-attn"))]
)
def test_flash_attention_equals_sdpa(folder: Path, way: str) -> None:
    """Both in bfloat16, which the kernels require; they differ only by rounding."""
    both = [
        np.concatenate(
            build_engine(folder, dtype="bfloat16", attention=attention).compute_logprobs([build_sequences(LENGTHS)])[0]
        )
        for attention in ("sdpa", way)
    ]
    assert np.abs(both[0] - both[1]).mean() < 1e-2
