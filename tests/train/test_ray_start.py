"""Ray's own processes as slow as they are on a busy node, or on a slow file system."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.node.ports import choose_ports
from slurm_rl.node.processes import end_marked, mark_env
from slurm_rl.node.ray_cluster import build_ray_start_argv
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from tests.slurm.cluster import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# A raylet that waits for the word of its agent dies after 15 s.
AGENT_S = 25
SLOW_AGENT = f"""
import os, sys, time
if any(word.endswith("dashboard/agent.py") for word in sys.orig_argv):
    time.sleep({AGENT_S})
    open(os.environ["AGENT_AWAKE"], "w").close()
"""


def test_a_raylet_outlives_an_agent_that_starts_late(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENT)
    awake, log = tmp_path / "awake", tmp_path / "log"
    plan = build_plan(load_config(["+exp=demo", "ray.dashboard=false"]), "/r", SubmitFacts(sys.executable, 1, "1"))
    with tempfile.TemporaryDirectory(prefix="srl-") as short:
        argv = build_ray_start_argv(
            plan,
            rank=0,
            ip="127.0.0.1",
            num_cpus=1,
            gpus=[],
            ports=choose_ports(f"late-{os.getpid()}", 1),
            tmp_dir=Path(short),
            head=None,
        )
        own = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "AGENT_AWAKE": str(awake), "RAY_AUTH_MODE": "disabled"}
        env = {**os.environ, **own, **plan.env}
        mark = f"test-late-{os.getpid()}"
        with log.open("wb") as out:
            ray = subprocess.Popen(argv, env=env | mark_env(mark), stdout=out, stderr=out)
        try:
            wait_until(lambda: awake.is_file() or ray.poll() is not None, "the agent to be awake", timeout_s=240)
            wait_until(
                lambda: "Ray runtime started" in log.read_text() or ray.poll() is not None,
                "Ray to start",
                timeout_s=240,
            )
            assert awake.is_file() and ray.poll() is None, log.read_text()
        finally:
            end_marked(mark, 5.0, own_children=[ray.pid])
