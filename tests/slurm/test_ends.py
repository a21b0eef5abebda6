"""How attempts end on a real Slurm, and what follows: nothing lost, nothing left, the cause in words.

The trainer is the light one (tests/slurm/light_python.py) and Ray a listening socket; Slurm, controller, node
agents, signals and files are real. tests/slurm/test_grpo.py has the real trainer.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import job_id, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm


@pytest.fixture
def run(shared_dir: Path) -> Path:
    return shared_dir / "run"


def start(cluster: Cluster, run: Path, *words: str) -> str:
    submit(cluster, run, make_light_python(run.parent), *words)
    wait_for_step(run)
    return job_id(run)


def finish(run: Path) -> dict[str, Any]:
    (run / "finish").touch()
    return wait_for_end(run)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def pids(cluster: Cluster, node: str, words: str) -> list[int]:
    return [process.pid for process in cluster.processes(node) if words in process.cmdline]


def nothing_is_left(cluster: Cluster) -> None:
    for node in cluster.nodes:
        try:
            wait_until(lambda node=node: not cluster.leftovers(node), f"{node} to be clean", timeout_s=20)  # type: ignore[misc]
        except TimeoutError as error:
            raise AssertionError(str(cluster.leftovers(node))) from error


def test_the_schedulers_signal_saves_requeues_and_goes_on_twice(cluster: Cluster, run: Path) -> None:
    job = start(cluster, run)
    for attempt in (2, 3):
        # What --signal=B:USR2@<lead> sends before the time limit, to the batch step alone; twice, as it may come.
        for _ in range(2):
            cluster.run(["scancel", "--batch", "--signal=USR2", job])
        wait_for_step(run, attempt)
    assert finish(run)["state"] == "finished"
    assert [event["outcome"] for event in events(run, "attempt/ended")] == ["checkpointed", "checkpointed", "finished"]
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    nothing_is_left(cluster)


def test_the_time_limit_itself_saves_and_goes_on(cluster: Cluster, run: Path) -> None:
    # Slurm looks at limits every 30 s, so the signal comes up to that much early.
    start(cluster, run, "job.time_limit=1", "job.signal_lead_s=30")
    wait_until(lambda: len(events(run, "attempt/started")) == 2, "the second attempt", timeout_s=110)
    wait_for_step(run, 2)
    assert finish(run)["state"] == "finished"
    assert events(run, "attempt/ended")[0]["outcome"] == "checkpointed"


def test_scontrol_requeue_goes_on(cluster: Cluster, run: Path) -> None:
    job = start(cluster, run)
    assert cluster.run(["scontrol", "requeue", job]).returncode == 0
    wait_for_step(run, 2)
    assert finish(run)["state"] == "finished"
    nothing_is_left(cluster)


def test_preemption_saves_and_goes_on(cluster: Cluster, run: Path) -> None:
    start(cluster, run, "cluster.slurm.partition=main", "cluster.cpus_per_node=4", "cluster.num_nodes=4")
    held = cluster.run(["sbatch", "--parsable", "-p", "high", "-N4", "-c4", "--mem=100", "--wrap", "sleep 3"])
    assert held.returncode == 0, held.stderr
    wait_for_step(run, 2)
    assert finish(run)["state"] == "finished"


@pytest.mark.parametrize(("node", "words"), [(0, "slurm_rl.train.grpo.main"), (1, "slurm_rl.node.agent")])
def test_a_killed_process_ends_the_attempt_in_seconds_and_the_next_goes_on(
    cluster: Cluster, run: Path, node: int, words: str
) -> None:
    start(cluster, run)
    host = cluster.nodes[node]
    for pid in pids(cluster, host, words):
        cluster.signal(host, pid, signal.SIGKILL)
    wait_until(lambda: bool(events(run, "attempt/ended")), "the attempt to end", timeout_s=10)
    assert events(run, "attempt/ended")[0]["outcome"] == "failed"
    wait_for_step(run, 2)
    assert finish(run)["state"] == "finished"
    nothing_is_left(cluster)


def test_failing_again_and_again_without_progress_stops_with_the_cause(cluster: Cluster, run: Path) -> None:
    start(cluster, run, "job.max_failures=10")
    for attempt in (1, 2):
        wait_for_step(run, attempt)
        host = cluster.nodes[0]
        for pid in pids(cluster, host, "slurm_rl.train.grpo.main"):
            cluster.signal(host, pid, signal.SIGKILL)
    end = wait_for_end(run)
    assert end["state"] == "failed"
    assert "137" in end["cause"]
    assert len(events(run, "attempt/started")) == 2


def test_scancel_is_clean_and_final(cluster: Cluster, run: Path) -> None:
    job = start(cluster, run)
    cluster.run(["scancel", job])
    nothing_is_left(cluster)
    assert len(events(run, "attempt/started")) == 1


def test_a_node_without_power_is_left_for_others(cluster: Cluster, run: Path) -> None:
    start(cluster, run)
    lost = cluster.nodes[1]
    cluster.power_off(lost)
    wait_for_step(run, 2)
    assert finish(run)["state"] == "finished"
    cluster.boot(lost)
