"""Models shared by tests of this folder."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.plan.accelerator import accelerator_env
from slurm_rl.run_dir.run_dir import RunDir
from tests import tiny_models
from tests.tiny_models import TinyModel

SMALL = TinyModel(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1)
ROOT = Path(__file__).parents[2]


def run_script(name: str, folder: Path, *words: str) -> dict[str, Any]:
    """Run a module of this folder with a real vLLM engine; return the found.json that it writes to `folder`."""
    env = {var.name: var.value for var in accelerator_env("cpu")}
    command = [sys.executable, "-m", f"tests.train.{name}", str(folder), *words]
    env = {**os.environ, **env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def make_run(folder: Path, words: Sequence[str]) -> tuple[RunDir, RunConfig]:
    """Return a new run directory with its config, for training in this process."""
    run, config = RunDir(folder), load_config(list(words))
    folder.mkdir(parents=True, exist_ok=True)
    run.config.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return run, config


def build_reward_model(folder: Path) -> Path:
    """Return the folder of a reward model: the tests' tiny model with a random head."""
    from slurm_rl.models.policy import PolicyEngine

    tiny_models.build_tiny_model(tiny_models.SMALL, 0, folder / "model")
    config, policy = ModelConfig(path=str(folder / "model")), PolicyConfig(num_threads=1)
    engine = PolicyEngine(folder / "model", config, policy, OptimConfig(), temperature=1.0, score_seed=1)
    engine.export(folder / "rm")
    return folder / "rm"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Qwen3, which tests must not change."""
    from tests.tiny_models import build_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_model(SMALL, seed=0, folder=folder)
    return folder
