"""A hub of this machine's own, and `python -m slurm_rl prepare` pointed at it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.plugins.prepare.hub_server import Hub

ROOT = Path(__file__).parents[4]
Prepare = Callable[..., subprocess.CompletedProcess[str]]
_HEAVY = ("torch", "ray", "vllm", "transformers", "datasets", "numpy", "deepspeed")


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def own_env(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment with our hub, and nothing of the caller's own: no token, no cache, no endpoint."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return base | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def prepare(own_env: dict[str, str], tmp_path: Path) -> Prepare:
    """Runs the verb in a process of its own, since huggingface_hub reads its environment on import.

    The packages that a login node lacks cannot be imported.
    """
    script = f"import sys\nfor n in {_HEAVY!r}: sys.modules[n] = None\n"
    script += "from slurm_rl.__main__ import main\nsys.exit(main(sys.argv[1:]))"

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", script, "prepare", *words]
        return subprocess.run(
            argv, cwd=tmp_path, env={**own_env, **env}, capture_output=True, text=True, timeout=300, check=False
        )

    return run
