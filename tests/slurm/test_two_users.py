"""Two users at once on the same nodes, each with a Ray cluster of his own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, expected_metrics, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
NOBODY = 65534
SUBMIT = """
import os, sys, types
from pathlib import Path
from tests.slurm.light.runs import LightRun
LightRun(types.SimpleNamespace(env=dict(os.environ)), Path(sys.argv[1]), num_steps=120)
"""


def other_user() -> tuple[list[str], dict[str, str]]:
    """How to run this package's Python as another user; skips where he may not read it."""
    # A virtual environment's interpreter may be a link into root's home.
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}
    check = [*prefix, str(python), "-c", "import ray, tests.slurm.light.runs"]
    if python is None or subprocess.run(check, env=env, cwd="/", capture_output=True).returncode:
        pytest.skip(f"no Python for another user: he may not read {ROOT} or its packages")
    return [*prefix, python], env


def test_two_users_on_the_same_nodes_do_not_meet(cluster: Cluster, shared_dir: Path) -> None:
    command, env = other_user()
    folder = shared_dir / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    shared_dir.chmod(0o755)
    full = {**cluster.env, **env, "HOME": str(folder), "USER": "nobody"}
    done = subprocess.run([*command, "-c", SUBMIT, str(folder / "run")], env=full, cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    mine, theirs = LightRun(cluster, shared_dir / "mine", num_steps=120), LightRun.open(cluster, folder / "run")
    for run in (mine, theirs):
        end = run.wait_for_end()
        assert end["state"] == "finished", (end, run.causes)
        assert run.metrics() == expected_metrics(120, 2)
        assert run.outcomes == ["finished"]
        check_phases(run)
    assert mine.hosts(1) == theirs.hosts(1)
    starts = [run.events("trainer/started")[0]["time"] for run in (mine, theirs)]
    ends = [run.events("job/ended")[0]["time"] for run in (mine, theirs)]
    assert max(starts) < min(ends), "they were not there at the same time"
    assert theirs.run_dir.end.stat().st_uid == NOBODY
    wait_until_clean(cluster)


def check_phases(run: LightRun) -> None:
    """Bring-up is timed from the allocation on."""
    phases = run.events("attempt/brought_up")[0]
    order = ["controller_s", "preflight_s", "agents_s", "head_s", "nodes_s", "trainer_s"]
    times = [phases[name] for name in order]
    assert times == sorted(times)
    # Since the allocation, and not since 1970.
    assert 0 <= times[0] < 120
