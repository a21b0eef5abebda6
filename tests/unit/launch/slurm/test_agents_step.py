"""The srun that waits for the agent of a lost node is ended after all others, and no other srun is."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.launch.slurm.srun import AgentsStep
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json

QUICK_S, LONG_S = 0.1, 120.0


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = RunDir(tmp_path / "run").attempt(1)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def srun() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def note(attempt: AttemptDir, *states: str) -> None:
    for rank, state in enumerate(states):
        write_json(attempt.node(rank), {"host": f"n{rank}", "rank": rank, "state": state})


def test_last_agent_ends_step(attempt: AttemptDir, srun: subprocess.Popen[bytes]) -> None:
    note(attempt, "ended", "ended", "running")
    step = AgentsStep(srun, attempt, 3, patience_s=QUICK_S)
    assert comes_true(lambda: step.poll() is not None, LONG_S)
    assert step.returncode == -signal.SIGKILL


@pytest.mark.parametrize("states", [("running", "ended"), ("ending", "running"), ("ended", "ended"), ()])
def test_ending_agent_ends_step(attempt: AttemptDir, srun: subprocess.Popen[bytes], states: tuple[str, ...]) -> None:
    """All run while the head runs; an srun exits soon after its last agent."""
    note(attempt, *states)
    step = AgentsStep(srun, attempt, 2, patience_s=QUICK_S)
    assert not comes_true(lambda: step.poll() is not None, 10 * QUICK_S)
    srun.kill()
    assert comes_true(lambda: step.poll() is not None, LONG_S)
