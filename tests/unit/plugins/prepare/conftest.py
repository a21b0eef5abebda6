"""A local hub, and `python -m slurm_rl prepare` with it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
from huggingface_hub import constants

from slurm_rl.__main__ import main
from slurm_rl.errors import DataError
from slurm_rl.plugins.prepare import dataset
from slurm_rl.rewards import check_references
from slurm_rl.rewards.math_answer import check_reference
from tests.unit.plugins.prepare.hub_server import COMMIT, Hub

ROOT = Path(__file__).parents[4]
_HEAVY = ("torch", "ray", "vllm", "transformers", "datasets", "numpy", "deepspeed")


@dataclass(frozen=True)
class Done:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


Prepare = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def prepare_on_login_node(hub: Hub, tmp_path: Path) -> Prepare:
    """Run the verb in its own process without the caller's token and cache, and without packages of other nodes."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    script = f"import sys\nfor n in {_HEAVY!r}: sys.modules[n] = None\n"
    script += "from slurm_rl.__main__ import main\nsys.exit(main(sys.argv[1:]))"

    def run(*words: str) -> Done:
        argv = [sys.executable, "-c", script, "prepare", *words]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def prepare(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Run the verb in this process, with the hub's settings that the library reads from HF_* on import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    settings = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hf/hub"),
        "HF_TOKEN_PATH": str(tmp_path / "hf/token"),
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    for module in (dataset, check_references):
        monkeypatch.setattr(module, "find_unscorable", find_unscorable)

    def run(*words: str, offline: bool = False, token: str | None = None) -> Done:
        out, err = StringIO(), StringIO()
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(constants, "HF_HUB_OFFLINE", offline)
            if token:
                patch.setenv("HF_TOKEN", token)
            code = main(["prepare", *words])
        return Done(code, out.getvalue(), err.getvalue())

    return run


def find_unscorable(answers: Iterable[str], check: str = "", total_s: float = 0.0) -> dict[str, str]:
    """Check in this process; test_text_sets.py covers the process pool."""
    found = {}
    for answer in answers:
        try:
            check_reference(answer)
        except DataError as error:
            found[answer] = str(error)
    return found


def fill_cache(cache: Path, files: dict[str, bytes]) -> None:
    """Write a repository into the cache of huggingface_hub."""
    for name, content in files.items():
        path = cache / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)
