"""What ends a job before any Python of ours has run is a cause that `status`, `logs` and end.json name."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, job_id, submit, wait_for_end

pytestmark = pytest.mark.slurm


def check_cause(cluster: Cluster, run: Path, *said: str) -> None:
    """All three places tell it."""
    status = cli(cluster, run.parent, "status", str(run)).stdout
    end = wait_for_end(run)
    status = status if end["state"] in status else cli(cluster, run.parent, "status", str(run)).stdout
    logs = cli(cluster, run.parent, "logs", str(run)).stderr
    assert end["state"] == "failed"
    for words in said:
        assert words in end["cause"] and words in status and words in logs, (end, status, logs)


def test_a_setup_line_that_fails_on_the_first_node(cluster: Cluster, shared_dir: Path) -> None:
    run = shared_dir / "run"
    submit(cluster, run, make_light_python(shared_dir), "cluster.setup=['module load cuda']")
    check_cause(
        cluster, run, "each line of cluster.setup and container.setup must succeed", "module load cuda", "correct it"
    )


def test_a_setup_line_that_fails_on_another_node(cluster: Cluster, shared_dir: Path) -> None:
    run, other = shared_dir / "run", cluster.nodes[1]
    line = f"test $SLURMD_NODENAME != {other}"
    submit(cluster, run, make_light_python(shared_dir), f'cluster.setup=["{line}"]', "job.max_failures=0")
    check_cause(cluster, run, f"{other}: each line of cluster.setup and container.setup must succeed", line)


def test_a_python_that_the_nodes_do_not_have(cluster: Cluster, shared_dir: Path) -> None:
    run = shared_dir / "run"
    submit(cluster, run, Path("/nowhere/bin/python"), "job.max_failures=0")
    check_cause(cluster, run, "/nowhere/bin/python must be there on every node", "cluster.python")


def submit_with(python: Path, packages: Path, cluster: Cluster, run: Path) -> None:
    """Submit by another interpreter than the tests' own, which finds its packages in this folder."""
    argv = [str(python), "-m", "slurm_rl", "+exp=demo", "+cluster=slurm_cpu", f"run_dir={run}"]
    env = {**cluster.env, "PYTHONPATH": f"{ROOT}:{packages}"}
    done = subprocess.run(argv, env=env, cwd=run.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Of both the nodes see nothing: each has a /tmp of its own.
    assert f"warning: {python}" in done.stderr or f"warning: {run}" in done.stderr


def link_python(folder: Path) -> Path:
    python = folder / "python"
    python.symlink_to(Path(sys.executable).resolve())
    return python


def test_an_environment_that_only_the_login_node_has(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """The commonest mistake on a cluster: a virtual environment in /tmp."""
    run, python = shared_dir / "run", link_python(tmp_path)
    submit_with(python, Path(sysconfig.get_paths()["purelib"]), cluster, run)
    check_cause(cluster, run, "the interpreter must be there on every node", str(python), "submit from")


def test_an_environment_that_lacks_what_the_controller_needs(
    cluster: Cluster, shared_dir: Path, tmp_path: Path
) -> None:
    run, packages = shared_dir / "run", tmp_path / "packages"
    packages.symlink_to(sysconfig.get_paths()["purelib"])
    submit_with(link_python(shared_dir), packages, cluster, run)
    check_cause(cluster, run, "the interpreter must start and have what slurm_rl needs", "logs --who job")
    assert "missing: " in cli(cluster, run.parent, "logs", "--who", "job", str(run)).stdout


@pytest.mark.versions
def test_a_run_directory_that_the_nodes_do_not_see(cluster: Cluster, tmp_path: Path) -> None:
    """Until Slurm 22.05 nothing runs there, later the script does without a log: only Slurm knows, and forgets."""
    run = tmp_path / "run"
    submit(cluster, run, make_light_python(tmp_path))

    def is_over() -> bool:
        shown = cluster.run(["squeue", "-h", "-t", "all", "-j", job_id(run), "-o", "%T"])
        return shown.stdout.strip() == "FAILED"

    wait_until(is_over, "the job to fail", timeout_s=120)
    check_cause(cluster, run, "the run directory must be seen by every node", "cluster.run_root")
