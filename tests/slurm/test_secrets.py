"""Secrets reach the trainer and no command line, file or Slurm record."""

import os
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import wait_until_clean
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import finish, submit, wait_for_step

pytestmark = pytest.mark.slurm

CANARY = {"WANDB_API_KEY": "canary-5b1d7c52e0", "HF_TOKEN": "canary-9f4e2a7713", "MY_JUDGE_KEY": "canary-77c01d9be4"}
JUDGE = ("model=j", "url=http://127.0.0.1:9/v1", "prompt='{completion}'", "api_key=MY_JUDGE_KEY")


def command_lines() -> dict[str, str]:
    """Return the command lines of all processes on this machine, including those of the nodes."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found[entry.name] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
    return found


def files_with_canary(folder: Path) -> list[Path]:
    needles = [value.encode() for value in CANARY.values()]
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_secrets_reach_only_trainer(cluster: Cluster, shared_dir: Path) -> None:
    run, python = shared_dir / "run", make_light_python(shared_dir, real_ray=True)
    job = submit(cluster, run, python, "name=secret", *(f"reward.judge.{word}" for word in JUDGE), env=CANARY)
    lines: dict[str, str] = {}
    deadline = time.monotonic() + 240
    log = run / "attempts" / "1" / "logs" / "driver.log"
    # Poll from the start, to see short-lived processes (sbatch, srun, ray start) too.
    while time.monotonic() < deadline and not (log.is_file() and "resumes after" in log.read_text()):
        lines |= command_lines()
        time.sleep(0.02)
    wait_for_step(run)
    lines |= command_lines()
    assert any("slurm_rl.node.agent" in line for line in lines.values())
    assert any("gcs_server" in line for line in lines.values())
    leaks = [line for line in lines.values() if any(value in line for value in CANARY.values())]
    assert leaks == []
    shown = cluster.run(["scontrol", "show", "job", "-dd", job]).stdout
    cluster.run(["scontrol", "write", "batch_script", job, str(shared_dir / "script")])
    assert "submitit" in (shared_dir / "script").read_text()
    assert not any(value in shown for value in CANARY.values())
    # The trainer must have them.
    trainer = [entry for entry in trainers() if entry.read_bytes().count(b"canary-") >= len(CANARY)]
    assert trainer
    finish(run)
    wait_until_clean(cluster)  # files disappear until then
    assert files_with_canary(shared_dir) == []
    private = [path for path in (run / "submitit").rglob("*.pkl") if path.stat().st_mode & 0o077]
    assert private == []


def trainers() -> list[Path]:
    """Return /proc/<pid>/environ of the light trainers."""
    pids = [pid for pid, line in command_lines().items() if "slurm_rl.trainers.grpo.main" in line]
    return [Path("/proc") / pid / "environ" for pid in pids if os.access(f"/proc/{pid}/environ", os.R_OK)]
