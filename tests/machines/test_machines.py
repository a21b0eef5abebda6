"""Runs on machines without Slurm: `node` commands, controller and agents are real, trainer and Ray are stand-ins.

Each machine has its own address, name and node-local disk; each test states whether the run directory is shared.
"""

from collections.abc import Iterator

import pytest

from slurm_rl.launch.jobs import read_states
from tests.machines.kit import RUNPOD_HEAD, RUNPOD_NAMES, RUNPOD_WORKER, TOKEN, Machines, Run, dstack, machines_up, stop

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def all_machines() -> Iterator[Machines]:
    with machines_up() as machines:
        yield machines


@pytest.fixture
def machines(all_machines: Machines) -> Iterator[Machines]:
    yield all_machines
    all_machines.stop_all()


def test_pods_without_common_disk_meet_by_heads_name(machines: Machines) -> None:
    """With RunPod's variables. The worker starts first and waits; a node with another token is rejected."""
    run = Run(machines.root / "own" / "1" / "w" / "pods")
    words = machines.words(machines.shared / "pods", port=machines.next_port())
    worker = machines.start(2, RUNPOD_WORKER, *words, hosts=RUNPOD_NAMES, private_disk=True)
    worker.wait_for("waiting for the head at abc123.runpod.internal")
    stranger_env = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123", "SLURM_RL_TOKEN": "quite-another-secret"}
    stranger = machines.start(3, stranger_env, *words, hosts=RUNPOD_NAMES, private_disk=True)
    head = machines.start(1, RUNPOD_HEAD, *words, hosts=RUNPOD_NAMES, private_disk=True)
    assert stranger.wait() == 2
    assert "every machine of a run must have the same SLURM_RL_TOKEN" in stranger.output
    run.wait_for_training(head, worker)
    run.finish()
    assert (head.wait(), worker.wait()) == (0, 0), head.output + worker.output
    assert "this is a worker, by the word of RunPod" in worker.output
    joined = run.events("node/joined")
    assert [(row["rank"], row["host"], row["shares_run_dir"]) for row in joined] == [
        (1, f"def456 ({machines.ip(2)})", False)
    ]
    # The worker's node record and events must reach the head's disk.
    hosts = {row["rank"]: row["host"] for row in run.events("node/started")}
    assert hosts == {0: "m1", 1: "m2"}
    assert (run.run_dir.attempt(1).node(1)).is_file()
    left = [path for number in ("1", "2") for path in (machines.root / "own" / number).rglob("*") if path.is_file()]
    assert [path for path in left if TOKEN.encode() in path.read_bytes()] == []
    assert [path for path in left if path.parent.name == "secrets"] == []


def test_notice_on_one_machine_saves_and_run_continues(machines: Machines) -> None:
    """With GCP's variables and a shared run directory: a spot machine is preempted and the run continues on three."""
    run = Run(machines.shared / "spot")
    words = machines.words(run.run_dir.path, port=machines.next_port())
    worker_env = {"GCP_WORKER": "1", "GCP_HEAD_IP": machines.ip(1)}
    head = machines.start(1, {"EXPECTED_WORKERS": "1"}, *words)
    worker = machines.start(2, worker_env, *words)
    run.wait_for_training(head, worker)
    # Read from the host, which is none of the machines.
    assert str(read_states([run.run_dir])[0]) == "unknown: its controller is a process of m1; ask there"
    resume = ["resume", str(run.run_dir.path)]
    second = machines.start(3, {"EXPECTED_WORKERS": "0"}, *resume)
    assert second.wait() == 2
    assert f"on m1) has {run.run_dir.path}. Next: wait for its end, or end it first: " in second.output
    stop(worker)
    assert (worker.wait(), head.wait()) == (130, 130), head.output
    assert run.end["state"] == "interrupted"
    assert "node 1 (m2" in run.end["cause"] and "received a stop signal (SIGTERM)" in run.end["cause"]
    saved = run.end["step"]
    assert saved > 0

    head = machines.start(1, {"EXPECTED_WORKERS": "2"}, *resume)
    # The other machines join after the run has started.
    run.wait_for_attempt(2)
    others = [machines.start(2, worker_env, *resume), machines.start(3, worker_env, *words)]
    run.wait_for_training(head, *others, attempt=2)
    assert f"resumes after step {saved}" in run.trainer_log(2)
    run.finish()
    assert [node.wait() for node in (head, *others)] == [0, 0, 0], head.output
    assert "3 nodes now, 2 before" in head.output
    assert len(run.events("machines/complete")[-1]["hosts"]) == 3


def test_missing_worker_is_named_at_deadline(machines: Machines) -> None:
    run = Run(machines.shared / "alone")
    words = machines.words(run.run_dir.path, "job.start_timeout_s=1", port=machines.next_port())
    head = machines.start(1, dstack(machines, 0), *words)
    assert head.wait() == 1
    assert f"missing: node 1 ({machines.ip(2)}); joined: none" in head.output
    assert run.end["state"] == "failed"
    assert len(run.events("attempt/started")) == 1


def test_python_missing_on_one_machine_is_named(machines: Machines) -> None:
    python = machines.root / "t" / "python"
    there = machines.root / "own" / "1" / "t" / "python"
    there.write_text(f'#!/bin/sh\nexec {machines.python} "$@"\n')
    there.chmod(0o755)
    run = Run(machines.shared / "python-absent")
    words = [f"cluster.python={python}", "job.max_failures=0"]
    words = machines.words(run.run_dir.path, *words, port=machines.next_port())
    nodes = [machines.start(rank + 1, dstack(machines, rank), *words) for rank in (0, 1)]
    assert [node.wait() for node in nodes] == [1, 1], [node.output for node in nodes]
    message = f"{python} must be there on every node"
    assert f"m2: {message}" in run.end["cause"] or f"{machines.ip(2)}: {message}" in run.end["cause"]
    assert "cluster.python" in nodes[0].output


@pytest.mark.slow
def test_invalid_setup_is_refused_with_exit_2(machines: Machines) -> None:
    """Tiny model only on the head's disk; different command lines; a worker without the head's address."""
    port = machines.next_port()
    words = machines.words(machines.shared / "tiny", port=port, tiny=True)
    head = machines.start(1, dstack(machines, 0), *words, private_disk=True)
    other = machines.start(2, dstack(machines, 1), *words, "optim.lr=1e-3", private_disk=True)
    nameless = machines.start(3, {"RAY_WORKER": "1"}, *words)
    assert (other.wait(), nameless.wait()) == (2, 2)
    assert "the command line must be the same on every machine; got optim.lr=0.001, on the head 0.0006" in other.output
    assert "HEAD_POD_ID must be set together with RAY_WORKER=1" in nameless.output
    worker = machines.start(2, dstack(machines, 1), *words, private_disk=True)
    assert (head.wait(), worker.wait()) == (2, 2), head.output
    assert "run_dir must be one folder on all machines" in head.output
    assert "rollout-0 on node 1 loads the model from there" in worker.output
