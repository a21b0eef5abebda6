"""Plain sbatch: the template, settings taken from the allocation, and resume after a requeue."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, finish, job_id, wait_for_step

pytestmark = pytest.mark.slurm

TEMPLATE = ROOT / "sbatch_templates" / "job.sbatch"


def sbatch(cluster: Cluster, folder: Path, *words: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**cluster.env, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(["sbatch", "--parsable", *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def overrides(folder: Path) -> list[str]:
    return ["+exp=demo", "+cluster=slurm_cpu", "name=plain", f"cluster.python={make_light_python(folder)}"]


@pytest.mark.versions
def test_plain_sbatch_uses_allocation_and_resumes(cluster: Cluster, shared_dir: Path) -> None:
    job = sbatch(cluster, shared_dir, "-N3", "--mem=2G", str(TEMPLATE), *overrides(shared_dir), "cluster.num_nodes=9")
    run = shared_dir / "runs" / f"plain-{job}"
    wait_for_step(run)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["num_nodes"], plan["cpus_per_node"], plan["gpus_per_node"]) == (3, 4, 0)
    assert plan["sbatch"]["partition"] == "main"
    assert job_id(run) == job
    cluster.run(["scontrol", "requeue", job])
    wait_for_step(run, attempt=2)
    assert "running" in cli(cluster, shared_dir, "status", str(run)).stdout
    finish(run)
    first, second = [(run / "attempts" / str(n) / "logs" / "driver.log").read_text() for n in (1, 2)]
    assert "after step 0" in first
    assert "after step 0" not in second
    assert list(shared_dir.glob("runs/*")) == [run]


def test_failed_start_is_explained_in_job_log(cluster: Cluster, shared_dir: Path) -> None:
    job = sbatch(cluster, shared_dir, "-N1", str(TEMPLATE), "+exp=demo", "+cluster=nvidia_h100", "optim.lrr=1")
    log = shared_dir / f"slurm_rl-{job}.log"
    wait_until(lambda: log.is_file() and "did you mean optim.lr" in log.read_text(), "the error")
    assert "Traceback" not in log.read_text()
    assert not (shared_dir / "runs").exists()


@pytest.mark.slow
def test_job_runs_snapshot_not_working_directory(cluster: Cluster, shared_dir: Path) -> None:
    """The checkout is edited while the job is pending: the run keeps the submitted code."""
    (shared_dir / "slurm_rl").mkdir()
    (shared_dir / "slurm_rl" / "__init__.py").write_text("raise RuntimeError('the working directory')")
    done = cli(cluster, ROOT, "run-in-job", "--print-template")
    assert done.stdout == TEMPLATE.read_text()
    script = shared_dir / "job.sbatch"
    # Like the installed command, which is not imported from the working directory.
    script.write_text(done.stdout.replace("python -m slurm_rl", "python -P -m slurm_rl"))
    job = sbatch(cluster, shared_dir, "-N2", "--mem=2G", str(script), *overrides(shared_dir))
    run = shared_dir / "runs" / f"plain-{job}"
    wait_for_step(run)
    finish(run)
