"""What ends a job before any Python of ours has run is a cause that `status`, `logs` and end.json name."""

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
from tests.slurm.launched import PATIENCE_S, Launched, name_cell
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, quote, submit, wait_for_end, wait_for_step

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


def make_bare(folder: Path) -> Path:
    """A Python without the packages of its environment."""
    path = folder / "bare"
    login = 'case "$*" in *find_spec*) exit;; esac'  # the login node's has them
    path.write_text(f'#!/bin/sh\n{login}\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return path


MUST_BE_THERE = "/nowhere/bin/python must be there on every node"
SETUP = "cluster.setup=['module load cuda']"
SETUP_SAID = (
    "each line of cluster.setup and container.setup must succeed on every node; this one did not: module load cuda"
)
CAUSES: dict[str, dict[str, str | None]] = {
    "absent": {"slurm": MUST_BE_THERE, "local": MUST_BE_THERE, "manual": MUST_BE_THERE, "ray": MUST_BE_THERE},
    "bare": {
        "slurm": "must have what slurm_rl needs; got ",
        "local": "must have what slurm_rl needs; got ",
        "manual": "must have what slurm_rl needs; got ",
        "ray": "the Ray cluster's image must have what the trainer needs",
    },
    # Local: it is made on the machine that runs it. Machines: each makes its own where they share none.
    "unseen": {
        "slurm": "the run directory must be seen by every node",
        "local": None,
        "manual": None,
        "ray": "the Ray cluster must be able to write the run directory",
    },
    # On a Ray cluster of others nothing of ours runs before Python, and the config refuses the key.
    "setup": {"slurm": SETUP_SAID, "local": SETUP_SAID, "manual": SETUP_SAID, "ray": None},
}
"""What is wrong -> launcher -> what names it; None where it cannot be."""
IN_CI = {("slurm", "absent"), ("slurm", "unseen"), ("local", "setup")}
"""Other tests of `make test` hold the other messages."""


def cells() -> list[Any]:
    found = []
    for what, said in CAUSES.items():
        for launcher in (name for name in LAUNCHERS if said[name] is not None):
            marks = [] if (launcher, what) in IN_CI else [pytest.mark.slow]
            marks += [pytest.mark.versions] if (launcher, what) == ("slurm", "unseen") else []
            found.append(pytest.param(launcher, what, marks=marks, id=name_cell(launcher, what)))
    return found


@pytest.mark.parametrize(("launcher", "what"), cells())
def test_failed_start_names_cause(launched: Launched, launcher: str, what: str, tmp_path: Path) -> None:
    words = {
        "absent": ["cluster.python=/nowhere/bin/python"],
        "bare": [f"cluster.python={quote(make_bare(launched.run.path.parent))}"],
        "unseen": ["cluster.remote_root=/proc/nowhere"] if launcher == "ray" else [],
        "setup": [SETUP],
    }[what]
    if (what, launcher) == ("unseen", "slurm"):
        launched.run = RunDir(tmp_path / "run")  # each node has a /tmp of its own
    launched.start("job.max_failures=0", *words)
    said, path = str(CAUSES[what][launcher]), str(launched.run.path)
    wait_until(lambda: "state   failed" in launched.type("status", path), "the run to fail", timeout_s=PATIENCE_S)
    cause = read_json(launched.run.end)["cause"]
    assert said in cause and "Next: " in cause
    assert said in launched.type("status", path)


def test_external_ray_refuses_setup_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+exp=demo", "+cluster=ray", "cluster.address=http://head:8265", SETUP]) == 2
    assert "cluster.launcher=ray does not support cluster.setup=" in capsys.readouterr().err


def test_failing_setup_line_of_second_node_is_named(cluster: Cluster, shared_dir: Path) -> None:
    run, other = shared_dir / "run", cluster.nodes[1]
    line = f"test $SLURMD_NODENAME != {other}"
    submit(cluster, run, make_light_python(shared_dir), f'cluster.setup=["{line}"]', "job.max_failures=0")
    check_cause(cluster, run, f"{other}: each line of cluster.setup and container.setup must succeed", line)


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


def test_environment_missing_on_nodes_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """The commonest mistake on a cluster: a virtual environment in /tmp."""
    run, python = shared_dir / "run", link_python(tmp_path)
    submit_with(python, Path(sysconfig.get_paths()["purelib"]), cluster, run)
    check_cause(cluster, run, "the interpreter must be there on every node", str(python), "submit from")


@pytest.mark.slow
def test_environment_without_controller_packages_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    run, packages = shared_dir / "run", tmp_path / "packages"
    packages.symlink_to(sysconfig.get_paths()["purelib"])
    submit_with(link_python(shared_dir), packages, cluster, run)
    check_cause(cluster, run, "the interpreter must start and have what slurm_rl needs", "logs --who job")
    assert "missing: " in cli(cluster, run.parent, "logs", "--who", "job", str(run)).stdout


@pytest.mark.slow
def test_working_directory_missing_on_nodes_is_named(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """Slurm starts the job in /tmp then, which costs a run nothing but what its setup lines look for."""
    (tmp_path / "env.sh").write_text("export HELLO=there\n")
    python, words = make_light_python(shared_dir), ["+exp=demo", "+cluster=slurm_cpu", "cluster.num_nodes=1"]
    for name, setup in (("plain", []), ("sets-up", ["cluster.setup=['. ./env.sh']"])):
        run = [f"run_dir={shared_dir / name}", f"cluster.python={python}", "cluster.cpus_per_node=1"]
        done = cli(cluster, tmp_path, *words, *run, *setup, "cluster.mem_gb_per_node=2")
        assert done.returncode == 0, done.stderr
    gone = f"submitted from {tmp_path}, which this node does not have, so that it ran in /tmp"
    check_cause(cluster, shared_dir / "sets-up", "this one did not: . ./env.sh", gone)
    wait_for_step(shared_dir / "plain")
    (shared_dir / "plain" / "finish").touch()
    assert wait_for_end(shared_dir / "plain")["state"] == "finished"
