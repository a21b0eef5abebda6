"""The test cluster does what a real one does; every other test here leans on that."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

QUIET = ("--output=/dev/null",)


def run_on_first(cluster: Cluster, body: str, num_nodes: int = 2) -> str:
    """What a step on the first nodes says; without their names a node that still ends another job is passed over."""
    nodes = cluster.nodes[:num_nodes]
    done = cluster.run(["srun", "-Q", f"-N{num_nodes}", "-w", ",".join(nodes), "sh", "-c", body])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def submit(cluster: Cluster, *args: str) -> str:
    done = cluster.run(["sbatch", "--parsable", *QUIET, *args])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def field(cluster: Cluster, job: str, name: str) -> str:
    """A field of `scontrol show job`, such as JobState, Restarts or BatchHost."""
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")


def wait_for_state(cluster: Cluster, job: str, state: str, *, timeout_s: float = 120) -> None:
    wait_until(lambda: field(cluster, job, "JobState") == state, f"job {job} to be {state}", timeout_s=timeout_s)


def test_nodes_have_their_own_name_and_address(cluster: Cluster) -> None:
    said = run_on_first(cluster, "echo $(hostname) $(hostname -I)")
    assert sorted(said.splitlines()) == [f"{node} {cluster.ip(node)}" for node in cluster.nodes[:2]]


def test_nodes_share_the_cluster_folder_and_nothing_else_in_tmp(cluster: Cluster, shared_dir: Path) -> None:
    body = f"touch /tmp/mine-$(hostname) /dev/shm/mine /run/mine {shared_dir}/$(hostname); ls /tmp | grep mine"
    assert sorted(run_on_first(cluster, body).split()) == [f"mine-{node}" for node in cluster.nodes[:2]]
    assert sorted(path.name for path in shared_dir.iterdir()) == cluster.nodes[:2]
    left = cluster.leftovers(cluster.nodes[0])
    assert (left.tmp, left.shm) == ([f"/tmp/mine-{cluster.nodes[0]}"], ["/dev/shm/mine"])
    run_on_first(cluster, "rm /tmp/mine-$(hostname) /dev/shm/mine")
    # slurmstepd stays a moment longer than srun.
    wait_until(lambda: not cluster.leftovers(cluster.nodes[0]), "the node to be clean")


def test_a_job_sees_its_gpus_only(cluster: Cluster) -> None:
    body = f"echo $CUDA_VISIBLE_DEVICES; for gpu in {cluster.root}/dev/gpu*; do head -c0 $gpu 2>&1; done"
    done = cluster.run(["srun", "--gres=gpu:1", "sh", "-c", body])
    first, *opened = done.stdout.splitlines()
    assert first == "0"
    # No driver stands behind either: its own GPU says so, the other one is refused before that.
    assert ["No such device" in line for line in opened] == [True, False], opened
    assert "Operation not permitted" in opened[1]


def test_what_a_job_leaves_is_seen(cluster: Cluster) -> None:
    """Through ssh, so that no cgroup of Slurm ends it."""
    node = cluster.nodes[0]
    listen = "import socket,time; s=socket.create_server(('',4321)); time.sleep(60)"
    # slurmstepd of the test before outlives its srun by a moment.
    wait_until(lambda: not cluster.leftovers(node), "the node to be idle")
    with subprocess.Popen(cluster.on_node(node, ["python3", "-c", listen])) as stray:
        wait_until(lambda: cluster.leftovers(node).ports == [4321], "the port to be seen")
        found = cluster.leftovers(node).processes
        # python3 may be a wrapper that calls another one by its path.
        [cmdline] = [process.cmdline for process in found]
        assert cmdline.endswith(f"python3 -c {listen}")
        cluster.signal(node, found[0].pid, 9)
        stray.wait()
    wait_until(lambda: not cluster.leftovers(node), "nothing to be seen any more")


def test_daemons_of_a_job_die_with_it(cluster: Cluster) -> None:
    run_on_first(cluster, "setsid sleep 300 & sleep 0.2", num_nodes=1)
    wait_until(lambda: not cluster.leftovers(cluster.nodes[0]), "the daemon to be gone", timeout_s=60)


# Slurm needs up to 30 s to give up a node that says nothing, whatever SlurmdTimeout says.
@pytest.mark.slow
def test_power_off_requeues_the_job_and_the_node_comes_back(cluster: Cluster) -> None:
    job = submit(cluster, "-N2", "--wrap", "srun sleep 300")
    victim = cluster.nodes[1]
    wait_until(lambda: any("sleep 300" in process.cmdline for process in cluster.processes(victim)), "the step to run")
    cluster.power_off(victim)
    wait_until(lambda: cluster.node_state(victim).startswith("down"), f"{victim} to be down", timeout_s=100)
    wait_until(lambda: field(cluster, job, "Restarts") == "1", "the job to be requeued")
    wait_for_state(cluster, job, "RUNNING")
    assert victim not in cluster.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout
    cluster.boot(victim)
    assert cluster.run(["srun", "-w", victim, "--overcommit", "hostname"]).stdout.strip() == victim


@pytest.mark.slow
def test_preemption_sends_the_signal_and_requeues(cluster: Cluster, shared_dir: Path) -> None:
    seen = shared_dir / "seen"
    # It stays until it is killed, GraceTime later: a job that exits in its grace has ended and is not requeued.
    body = f"trap 'echo USR2 >> {seen}' USR2; echo up >> {seen}; while :; do sleep 0.1; done"
    low = submit(cluster, "-N4", "--exclusive", "--requeue", "--signal=B:USR2@60", "--wrap", body)
    wait_until(seen.exists, "the job to be up")
    high = submit(cluster, "-p", "high", "-N1", "--wrap", "sleep 1")
    wait_for_state(cluster, high, "COMPLETED", timeout_s=100)
    wait_until(lambda: seen.read_text().split() == ["up", "USR2", "up"], "the job to run again", timeout_s=100)
    assert field(cluster, low, "Restarts") == "1"


def test_arrays_run_and_their_size_is_limited(cluster: Cluster, shared_dir: Path) -> None:
    job = submit(cluster, "--array=0-3", "--wrap", f"echo $SLURM_ARRAY_TASK_ID > {shared_dir}/$SLURM_ARRAY_TASK_ID")
    wait_until(lambda: len(list(shared_dir.iterdir())) == 4, f"array {job} to run")
    with cluster.changed({"MaxArraySize": "3"}):
        refused = cluster.run(["sbatch", "--array=0-3", "--wrap", "true"])
        assert "Invalid job array specification" in refused.stderr
    assert cluster.run(["sbatch", *QUIET, "--array=0-3", "--wrap", "true"]).returncode == 0


def test_a_job_survives_a_restart_of_the_controller(cluster: Cluster, shared_dir: Path) -> None:
    done = shared_dir / "done"
    job = submit(cluster, "--wrap", f"sleep 2; hostname > {done}")
    wait_for_state(cluster, job, "RUNNING")
    cluster.restart_controller()
    assert field(cluster, job, "JobState") == "RUNNING"
    wait_for_state(cluster, job, "COMPLETED")
    assert done.read_text().strip() in cluster.nodes


def test_requeue_keeps_the_id_and_starts_again_soon(cluster: Cluster, shared_dir: Path) -> None:
    starts = shared_dir / "starts"
    job = submit(cluster, "--wrap", f"echo $SLURM_RESTART_COUNT. >> {starts}; sleep 300")
    wait_until(starts.exists, "the first start")
    cluster.run(["scontrol", "requeue", job])
    wait_until(lambda: starts.read_text().split() == [".", "1."], "the second start", timeout_s=100)


def test_clusters_stand_beside_each_other(cluster: Cluster) -> None:
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    with Cluster(root, num_nodes=1) as other:
        assert set(other.nodes).isdisjoint(cluster.nodes)
        assert other.run(["srun", "hostname"]).stdout.split() == other.nodes
        assert run_on_first(cluster, "hostname", num_nodes=1).split() == cluster.nodes[:1]
    assert [path.name for path in root.iterdir()] == ["log"]
    shutil.rmtree(root)
    assert run_on_first(cluster, "hostname", num_nodes=1).split() == cluster.nodes[:1]
