"""Rewards between OpenRLHF's released code and ours, in both directions, over HTTP."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_rl.config.reward import RewardServiceConfig
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.results import RewardItem

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "openrlhf_process.py"


@contextmanager
def our_server() -> Iterator[str]:
    argv = [sys.executable, "-m", "slurm_rl.rewards.server", "--port", "0", "+reward=math_format"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_RL_REWARD_TOKEN": "secret-token"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"at http://(\S+), ", line := server.stdout.readline())
            assert found, line
            yield f"http://any:secret-token@{found[1]}"
        finally:
            server.terminate()


@pytest.mark.parametrize("release", ["flat", "dotted"])
def test_openrlhf_clients_get_our_rewards(release: str, packages: Path) -> None:
    """Right in the right form: 1.5; wrong in the right form: 0.5; right without the form: 1.0."""
    with our_server() as url:
        argv = [sys.executable, str(PROGRAM), str(packages / release), f"ask-{release}", url]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rewards"] == [1.5, 0.5, 1.0]
    assert found["scores"] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("release", ["flat", "dotted"])
def test_our_client_gets_openrlhf_rewards(release: str, packages: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, str(PROGRAM), str(packages / release), "serve", str(port)]
    items = [RewardItem(prompt="3+4=", completion="7" * count, answer="7") for count in (1, 5, 2)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as server:
        try:
            # The client retries until the server is up.
            settings = RewardServiceConfig(deadline_s=300)
            with RewardClient(settings, lambda: [f"http://127.0.0.1:{port}/get_reward"], None) as client:
                results = client.score(items)
        finally:
            server.terminate()
    assert [result.value for result in results] == [5.0, 9.0, 6.0]
    assert [result.parts["scores"] for result in results] == [5.0, 9.0, 6.0]
