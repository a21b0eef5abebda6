"""The demo on an external Ray cluster: submitted by address and token, watched, cancelled, resumed. The test starts a
real cluster with private ports, token and temporary directory.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_kit import OthersCluster, ray_up, wait_until
from tests.whole_run import OVERRIDES, exact_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[OthersCluster]:
    with ray_up() as found:
        yield found


def slurm_rl(cluster: OthersCluster, folder: Path, *words: str, token: str | None = None) -> tuple[int, str]:
    """Run a command on a machine that only knows the cluster's address."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_AUTH_TOKEN": token or cluster.token}
    done = subprocess.run(
        [sys.executable, "-m", "slurm_rl", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_wrong_token_is_refused_by_ray(cluster: OthersCluster, tmp_path: Path) -> None:
    words = ["+cluster=ray", f"cluster.address={cluster.address}", "run_dir=here", "+exp=demo"]
    code, output = slurm_rl(cluster, tmp_path, *words, token="wrong")
    assert code == 2
    assert "wants its token" in output
    assert "Traceback" not in output


def test_too_large_request_ends_at_deadline_with_both_numbers(cluster: OthersCluster, tmp_path: Path) -> None:
    words = ["+cluster=ray", f"cluster.address={cluster.address}", "run_dir=here", "cluster.cpus_per_node=64"]
    code, output = slurm_rl(cluster, tmp_path, *words, "job.start_timeout_s=2", *OVERRIDES)
    assert code == 0, output
    code, log = slurm_rl(cluster, tmp_path, "logs", "-f", "here")
    assert "64 CPU" in log
    assert "(2 CPU, 0 GPU)" in log
    assert "state   failed" in slurm_rl(cluster, tmp_path, "status", "here")[1]


def test_run_on_external_cluster_resumes_and_equals_ours(
    cluster: OthersCluster, tmp_path: Path, whole_run: Path
) -> None:
    words = ["+cluster=ray", f"cluster.address={cluster.address}", "run_dir=here", "cluster.cpus_per_node=2"]
    far = tmp_path / "far"
    code, output = slurm_rl(cluster, tmp_path, *words, f"cluster.remote_root={far}", *OVERRIDES)
    assert code == 0, output

    def status() -> str:
        return slurm_rl(cluster, tmp_path, "status", "here")[1]

    def log() -> str:
        return slurm_rl(cluster, tmp_path, "logs", "here")[1]

    def has_stepped() -> bool:
        return '"stage": "grpo"' in log()

    wait_until(has_stepped, 400, "a first step", log)
    assert "working_dir_files" in log(), "it must run the code that was sent"
    assert slurm_rl(cluster, tmp_path, "cancel", "here")[0] == 0
    wait_until(lambda: "state   interrupted" in status(), 100, "the end", status)
    assert len(exact_rows(far / "here")) < len(exact_rows(whole_run))
    code, output = slurm_rl(cluster, tmp_path, "resume", "here")
    assert code == 0, output
    code, output = slurm_rl(cluster, tmp_path, "logs", "-f", "here")
    assert "state   finished" in status(), output
    assert exact_rows(far / "here") == exact_rows(whole_run)
    assert not (tmp_path / "here" / "attempts").exists(), "the trainer wrote where it was told to"
