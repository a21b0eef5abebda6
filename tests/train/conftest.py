"""Models that several files of this folder read."""

from pathlib import Path

import pytest

from slurm_rl.config.model import TinyModelConfig

SMALL = TinyModelConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Qwen3, which no test may change."""
    from slurm_rl.models.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_model(SMALL, seed=0, folder=folder)
    return folder
