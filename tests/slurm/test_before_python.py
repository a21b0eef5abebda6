"""Failures before any Python of ours runs are causes that `status`, `logs` and end.json name."""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.launched import TIMEOUT_S, Launched, cell_id
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, finish, quote, run_cli, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm


def check_cause(cluster: Cluster, run: Path, *expected: str) -> None:
    """Check that end.json, `status` and `logs` contain the texts."""
    status = cli(cluster, run.parent, "status", str(run)).stdout
    end = wait_for_end(run)
    status = status if end["state"] in status else cli(cluster, run.parent, "status", str(run)).stdout
    logs = cli(cluster, run.parent, "logs", str(run)).stderr
    assert end["state"] == "failed"
    for words in expected:
        assert words in end["cause"] and words in status and words in logs, (end, status, logs)


def make_bare(folder: Path) -> Path:
    """Make a Python without the packages of its environment."""
    path = folder / "bare"
    login = 'case "$*" in *find_spec*) exit;; esac'  # the login node has the packages
    path.write_text(f'#!/bin/sh\n{login}\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return path


PYTHON_MISSING = "/nowhere/bin/python must be there on every node"
SETUP = "cluster.setup=['module load cuda']"
SETUP_FAILED = (
    "each line of cluster.setup and container.setup must succeed on every node; this one did not: module load cuda"
)
CAUSES: dict[str, dict[str, str | None]] = {
    "absent": {"slurm": PYTHON_MISSING, "local": PYTHON_MISSING, "manual": PYTHON_MISSING, "ray": PYTHON_MISSING},
    "bare": {
        "slurm": "must have the packages that slurm_rl needs; got ",
        "local": "must have the packages that slurm_rl needs; got ",
        "manual": "must have the packages that slurm_rl needs; got ",
        "ray": "the Ray cluster's image must have what the trainer needs",
    },
    # Local: the launcher creates the directory. Machines without a shared folder: each creates its own.
    "unseen": {
        "slurm": "the run directory must be seen by every node",
        "local": None,
        "manual": None,
        "ray": "the Ray cluster must be able to write the run directory",
    },
    # On an external Ray cluster nothing of ours runs before Python, and the config refuses the key.
    "setup": {"slurm": SETUP_FAILED, "local": SETUP_FAILED, "manual": SETUP_FAILED, "ray": None},
}
"""Fault -> launcher -> expected message; None where the fault cannot occur."""
IN_CI = {("slurm", "absent"), ("slurm", "unseen"), ("local", "setup")}
"""Cells that `make test` runs; other fast tests cover the other messages."""


def cells() -> list[Any]:
    found = []
    for fault, expected in CAUSES.items():
        for launcher in (name for name in LAUNCHERS if expected[name] is not None):
            marks = [] if (launcher, fault) in IN_CI else [pytest.mark.slow]
            marks += [pytest.mark.versions] if (launcher, fault) == ("slurm", "unseen") else []
            found.append(pytest.param(launcher, fault, marks=marks, id=cell_id(launcher, fault)))
    return found


@pytest.mark.parametrize(("launcher", "fault"), cells())
def test_failed_start_names_cause(launched: Launched, launcher: str, fault: str, tmp_path: Path) -> None:
    words = {
        "absent": ["cluster.python=/nowhere/bin/python"],
        "bare": [f"cluster.python={quote(make_bare(launched.run.path.parent))}"],
        "unseen": ["cluster.remote_root=/proc/nowhere"] if launcher == "ray" else [],
        "setup": [SETUP],
    }[fault]
    if (fault, launcher) == ("unseen", "slurm"):
        launched.run = RunDir(tmp_path / "run")  # each node has a private /tmp
    launched.start("job.max_failures=0", *words)
    expected, path = str(CAUSES[fault][launcher]), str(launched.run.path)
    wait_until(lambda: "state   failed" in launched.run_cli("status", path), "the run to fail", timeout_s=TIMEOUT_S)
    cause = read_json(launched.run.end)["cause"]
    assert expected in cause and "Next: " in cause
    assert expected in launched.run_cli("status", path)


def test_external_ray_refuses_setup_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+exp=demo", "+cluster=ray", "cluster.address=http://head:8265", SETUP]) == 2
    assert "cluster.launcher=ray does not support cluster.setup=" in capsys.readouterr().err


def test_failing_setup_line_of_second_node_is_named(cluster: Cluster, shared_dir: Path) -> None:
    run, other = shared_dir / "run", cluster.nodes[1]
    line = f"test $SLURMD_NODENAME != {other}"
    submit(cluster, run, make_light_python(shared_dir), f'cluster.setup=["{line}"]', "job.max_failures=0")
    check_cause(cluster, run, f"{other}: each line of cluster.setup and container.setup must succeed", line)


def submit_with(python: Path, packages: Path, cluster: Cluster, run: Path) -> None:
    """Submit with another interpreter than the tests', which finds its packages in `packages`."""
    argv = [str(python), "-m", "slurm_rl", "+exp=demo", "+cluster=slurm_cpu", f"run_dir={run}"]
    env = {**cluster.env, "PYTHONPATH": f"{ROOT}:{packages}"}
    done = subprocess.run(argv, env=env, cwd=run.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The nodes see neither: each has a private /tmp.
    assert f"warning: {python}" in done.stderr or f"warning: {run}" in done.stderr


def link_python(folder: Path) -> Path:
    python = folder / "python"
    python.symlink_to(Path(sys.executable).resolve())
    return python


def test_environment_missing_on_nodes_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """The most common mistake on a cluster: a virtual environment in /tmp."""
    run, python = shared_dir / "run", link_python(tmp_path)
    submit_with(python, Path(sysconfig.get_paths()["purelib"]), cluster, run)
    check_cause(cluster, run, "the interpreter must be there on every node", str(python), "submit from")


@pytest.mark.slow
def test_environment_without_controller_packages_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    run, packages = shared_dir / "run", tmp_path / "packages"
    packages.symlink_to(sysconfig.get_paths()["purelib"])
    submit_with(link_python(shared_dir), packages, cluster, run)
    check_cause(cluster, run, "the interpreter must start and have the packages that slurm_rl needs", "logs --who job")
    assert "missing: " in cli(cluster, run.parent, "logs", "--who", "job", str(run)).stdout


@pytest.mark.slow
def test_working_directory_missing_on_nodes_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """Slurm then starts the job in /tmp, which only affects setup lines that read the working directory."""
    (tmp_path / "env.sh").write_text("export HELLO=there\n")
    python, words = make_light_python(shared_dir), ["+exp=demo", "+cluster=slurm_cpu", "cluster.num_nodes=1"]
    for name, setup in (("plain", []), ("sets-up", ["cluster.setup=['. ./env.sh']"])):
        run = [f"run_dir={shared_dir / name}", f"cluster.python={python}", "cluster.cpus_per_node=1"]
        run_cli(cluster, tmp_path, *words, *run, *setup, "cluster.mem_gb_per_node=2")
    message = f"submitted from {tmp_path}, which this node does not have, so that it ran in /tmp"
    check_cause(cluster, shared_dir / "sets-up", "this one did not: . ./env.sh", message)
    wait_for_step(shared_dir / "plain")
    finish(shared_dir / "plain")
