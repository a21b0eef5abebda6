import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from tests.lock import ROOT

TABLE = {"arithmetic": "tests.unit.rewards.bad_verifiers:obey"}


def build_pool(**options: Any) -> RewardPool:
    return RewardPool(
        RewardConfig(**{"num_workers": 2, "timeout_s": 1.0, "verifiers": {"arithmetic": 1.0}, **options}), TABLE
    )


def build_items(num: int, deeds: dict[int, str]) -> list[RewardItem]:
    """Return items that misbehave by `deeds`; by default item i scores i / 1000."""
    return [RewardItem(completion=deeds.get(i, "fine"), answer=str(i)) for i in range(num)]


def workers() -> list[psutil.Process]:
    """Return living children of this process, without multiprocessing's tracker and fork server.

    Children of other tests may be among them, and may exit at any time.
    """
    return [p for p in psutil.Process().children(recursive=True) if _is_worker(p)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
        # A worker has the fork server's command line, and the fork server as its parent.
        is_fork_server = "forkserver" in words and process.ppid() == os.getpid()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return "resource_tracker" not in words and not is_fork_server


def outlive_killed(script: str, folder: Path, *args: str) -> list[psutil.Process]:
    """Kill a Python script after its first line of output; return its descendants that still run after a minute."""
    (folder / "parent.py").write_text(script)
    command = [sys.executable, str(folder / "parent.py"), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        time.sleep(0.5)
        family = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert family
    give_up = time.monotonic() + 60
    while (alive := [p for p in family if _runs(p)]) and time.monotonic() < give_up:
        time.sleep(0.05)
    return alive


def _runs(process: psutil.Process) -> bool:
    """Return whether the process runs; zombies, which wait for their parent, do not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
