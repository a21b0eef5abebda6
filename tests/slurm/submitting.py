"""Helpers of the command-line tests: run the CLI on the cluster and wait for a run."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from slurm_rl.__main__ import main
from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster, wait_until

ROOT = Path(__file__).parents[2]


def cli(
    cluster: Cluster, folder: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m slurm_rl <words>` in `folder`, as on the login node."""
    argv = [sys.executable, "-m", "slurm_rl", *words]
    full = {**cluster.env, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(argv, cwd=folder, env=full, capture_output=True, text=True, timeout=300)


def run_cli(
    cluster: Cluster, folder: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    done = cli(cluster, folder, *words, env=env)
    assert done.returncode == 0, done.stderr
    return done


def refused(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must be refused, in this process: starting Python would take most of the test's time."""
    out, error = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, cluster.env, clear=True),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        code = main(list(words))
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())


def submit(cluster: Cluster, run: Path, python: Path, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Submit a light run on two nodes; return its job id."""
    own = ["+exp=demo", "+cluster=slurm_cpu", f"cluster.python={quote(python)}", f"run_dir={quote(run)}"]
    run_cli(cluster, run.parent, *own, *words, env=env)
    return job_id(run)


def job_id(run: Path) -> str:
    return str(read_json(run / "job.json")["job_id"])


def quote(value: object) -> str:
    """Quote a value in Hydra's grammar."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def wait_for_step(run: Path, attempt: int = 1) -> None:
    """Wait until this attempt's light trainer makes steps and every node's agent handles signals.

    The real trainer waits for all nodes; an agent that gets SIGTERM while its Python starts dies of it.
    """
    folder = run / "attempts" / str(attempt)
    log = folder / "logs" / "driver.log"
    wait_until(
        lambda: log.is_file() and "resumes after" in log.read_text(), f"attempt {attempt} to train", timeout_s=240
    )
    nodes = [folder / f"node-{rank}.json" for rank in range(read_json(run / "plan.json")["num_nodes"])]
    wait_until(lambda: all(path.is_file() for path in nodes), f"{len(nodes)} agents of attempt {attempt} to start")


def wait_for_end(run: Path, timeout_s: float = 240) -> dict[str, Any]:
    """Wait for the end of the run; return end.json."""
    wait_until((run / "end.json").is_file, "the run to end", timeout_s=timeout_s)
    found: dict[str, Any] = read_json(run / "end.json")
    return found


def finish(run: Path) -> None:
    """Let the light trainer end the run."""
    (run / "finish").touch()
    end = wait_for_end(run)
    assert end["state"] == "finished", end


def queue(cluster: Cluster) -> str:
    return cluster.run(["squeue", "-h", "-o", "%i %T"]).stdout
