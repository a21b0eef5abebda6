"""Two users at once on the same nodes, each with a Ray cluster of his own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, expected_metrics, wait_until_clean
from tests.slurm.users import NOBODY, find_other_user

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SUBMIT = """
import os, sys, types
from pathlib import Path
from tests.slurm.light.runs import LightRun
LightRun(types.SimpleNamespace(env=dict(os.environ)), Path(sys.argv[1]), num_steps=120)
"""


@pytest.mark.slow
def test_two_users_on_the_same_nodes_do_not_meet(cluster: Cluster, shared_dir: Path) -> None:
    other = find_other_user()
    folder = other.own(shared_dir / "theirs")
    argv = [*other.prefix, other.python, "-c", SUBMIT, str(folder / "run")]
    env = {**cluster.env, **other.env, "HOME": str(folder)}
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    mine, theirs = LightRun(cluster, shared_dir / "mine", num_steps=120), LightRun.open(cluster, folder / "run")
    for run in (mine, theirs):
        end = run.wait_for_end()
        assert end["state"] == "finished", (end, run.causes)
        assert run.metrics() == expected_metrics(120, 2)
        assert run.outcomes == ["finished"], run.causes
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
