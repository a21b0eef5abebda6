"""A local run outlives the script that submitted it; other processes open it by its path."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_rl
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import wait_until
from tests.slurm.light_python import make_light_python

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal, slurm_rl
values = {"cluster.python": os.path.abspath("python"), "run_dir": "run"}
print(slurm_rl.submit(slurm_rl.load_config(["+exp=demo"], values)).path, flush=True)
os.killpg(os.getpgid(0), signal.SIGKILL)  # as a notebook's server restarts a kernel
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    make_light_python(tmp_path)
    yield tmp_path
    if (tmp_path / "run" / "plan.json").is_file():
        run = slurm_rl.Run(tmp_path / "run")
        run.cancel()
        run.wait(timeout_s=120)


def start(folder: Path) -> slurm_rl.Run:
    """Run a script that submits a run and kills its own process group; the run must not hold the stdout pipe open."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as done:
        output, _ = done.communicate(timeout=120)
    assert (done.returncode, output) == (-signal.SIGKILL, f"{folder / 'run'}\n")
    return slurm_rl.Run(folder / "run")


def test_local_run_outlives_its_script(folder: Path) -> None:
    run = start(folder)
    wait_until(lambda: bool(run.metrics()), "the first step", timeout_s=240)
    assert (run.state.word, run.state.is_alive) == ("running", True)
    with pytest.raises(slurm_rl.WaitError, match=f"{run.path} is running"):
        run.wait(timeout_s=0)
    with pytest.raises(slurm_rl.errors.LeaseError, match="one controller at a time"):
        run.resume()

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait(timeout_s=240)
    assert run.state.word == "running"

    first = run.job_id
    assert run.cancel()
    assert run.wait(timeout_s=240).word == "interrupted"
    assert not run.cancel()
    steps = len(run.metrics())
    assert run.resume().job_id != first
    log = RunDir(run.path).attempt(2).log("driver")
    wait_until(lambda: log.is_file() and "resumes after step" in log.read_text(), "the second job", timeout_s=240)
    (run.path / "finish").touch()
    assert run.wait(timeout_s=240).word == "finished"
    assert len(run.metrics()) >= steps
    assert run.summary()["attempts"] == 2
