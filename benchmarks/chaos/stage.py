"""Set up a storm: cluster, disk, run, and the expected metrics."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.disk import Disk
from benchmarks.chaos.light import TRAINER, make_python
from benchmarks.chaos.scene import Scene
from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, slurm_environment

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WORDS = {
    "light": {"trainer": "light_trainer.py", "rank": "light_node.py", "ray": "light_node.py"},
    "demo": {
        "trainer": "slurm_rl.trainers.grpo.main",
        "rank": "ray::",
        "ray": "raylet/raylet ",
        "engine": "EngineCore",
    },
}
"""Trainer -> target -> words of its command line."""
_EVERYWHERE = {"agent": "slurm_rl.node.agent", "controller": "submitit.core._submit"}
# Only a defect may end the run.
ENDLESS = ("job.max_failures=1000000", "job.start_timeout_s=60")


class ChaosRun(LightRun):
    script = TRAINER
    settings: Mapping[str, float] = {"step_s": 0.25, "save_every": 8}


def start_light(cluster: Cluster, folder: Path, num_nodes: int, words: Sequence[str], **trainer: Any) -> LightRun:
    """Start a run of the light trainer, without Ray."""
    python = make_python(folder)
    name = [f"cluster.num_nodes={num_nodes}", f"cluster.python={python}"]
    return ChaosRun(cluster, folder / "run", *name, *ENDLESS, *words, **trainer)


def start_demo(cluster: Cluster, folder: Path, num_nodes: int, words: Sequence[str]) -> LightRun:
    """Submit a run of the demo, as a user does."""
    name = [f"cluster.num_nodes={num_nodes}", f"run_dir={folder / 'run'}"]
    run_cli(cluster, folder, "+exp=demo", "+cluster=slurm_cpu", *name, *ENDLESS, *words)
    return ChaosRun.open(cluster, folder / "run")


def run_cli(cluster: Cluster, folder: Path, *words: str) -> str:
    """Run a CLI command; return its output."""
    argv = [sys.executable, "-m", "slurm_rl", *words]
    env = {**cluster.env, "PYTHONPATH": os.environ["PYTHONPATH"]}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def set_clocks(folder: Path) -> Path:
    """Return a folder of clock offsets that the nodes' Python processes read from now on."""
    clock = folder / "clock"
    clock.mkdir()
    path = [str(HERE / "clock"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ |= {"CHAOS_CLOCK": str(clock), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return clock


def make_scene(cluster: Cluster, run: LightRun, disk: Disk | None, clock: Path, trainer: str) -> Scene:
    return Scene(cluster, run, disk, clock, WORDS[trainer] | _EVERYWHERE)


__all__ = ["ChaosRun", "make_scene", "run_cli", "set_clocks", "slurm_environment", "start_demo", "start_light"]
