"""A stop signal during bring-up ends the trainer at once: nothing needs a save."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.errors import StopRequested
from slurm_rl.node.stop import StopFlag
from slurm_rl.run_dir.run_dir import RunDir, read_json

# Stands in for a bring-up that never looks at the flag.
TRAINER = """
import os, signal, sys, time, types
from slurm_rl.run_dir.run_dir import append_event

def run_training(run, attempt, stop):
    stop.at_once = {at_once}
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.1)
        append_event(run, "trainer/started")
        stop.check()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

sys.modules["slurm_rl.trainers.grpo.run_grpo"] = types.SimpleNamespace(run_training=run_training)
from slurm_rl.trainers.grpo.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("at_once", [True, False])
def test_trainer_ends_at_signal_during_bring_up(tmp_path: Path, at_once: bool) -> None:
    run = RunDir(tmp_path)
    run.attempt(1).path.mkdir(parents=True)
    words = ["-c", TRAINER.format(at_once=at_once), "--run-dir", str(tmp_path), "--attempt", "1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    outcome = read_json(run.attempt(1).outcome)
    assert (done.returncode, outcome["outcome"]) == (75, "checkpointed"), done.stderr
    assert run.events.is_file() == (not at_once)


def test_flag_raises_only_at_first_signal() -> None:
    stop = StopFlag(at_once=True)
    with pytest.raises(StopRequested, match="SIGTERM"):
        stop._on_signal(15, None)
    stop._on_signal(10, None)
    assert stop.is_set()
