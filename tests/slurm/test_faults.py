"""Faults on a real Slurm with a real Ray cluster: the run finishes with the metrics of an undisturbed one.

The trainer is tests/slurm/light/trainer.py. Scenarios mostly wait, so they run concurrently on one cluster, two jobs
per node; each test reports the result of one scenario.
"""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light.runs import LightRun, check_ledger, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

CONTROLLER = "submitit.core._submit"
ONE_NODE = "cluster.num_nodes=1"
# Two cores can bring up two Ray clusters at a time; with more, the load would exceed the deadlines.
MAX_CONCURRENT = 2
# Failures that Slurm reports arrive after 2 to 8 s; those found by a timeout take a minute or more.
REPORT_S = 30

Scenario = Callable[[Cluster, Path], None]
SCENARIOS: dict[str, tuple[Scenario, list[pytest.MarkDecorator]]] = {}


def scenario(*marks: pytest.MarkDecorator) -> Callable[[Scenario], Scenario]:
    """Register a scenario. Mark it slow if another test in CI covers its path."""

    def add(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = function, list(marks)
        return function

    return add


def check_end(run: LightRun, outcomes: list[str]) -> None:
    run.check_finished()
    assert run.outcomes == outcomes, run.causes
    assert run.leftovers() == {}
    check_ledger(run)


@scenario()
def two_stop_signals_requeue_once(cluster: Cluster, folder: Path) -> None:
    run = LightRun(cluster, folder, ONE_NODE)
    run.wait_for_training(1)
    run.send_stop(times=2)
    check_end(run, ["checkpointed", "finished"])
    assert run.starts == [(run.job, 0), (run.job, 1)]


@scenario(pytest.mark.versions)
def killed_agent_resumes(cluster: Cluster, folder: Path) -> None:
    run = LightRun(cluster, folder)
    run.wait_for_training(1)
    moment, host = time.time(), run.hosts(1)[1]
    run.kill(host, "slurm_rl.node.agent")
    check_end(run, ["failed", "finished"])
    assert run.causes[0].startswith(f"{host}: task 1: Killed")
    # srun reports the death; then the other agents stop Ray, and the node of the dead agent is cleaned.
    assert run.events("node/died")[0]["time"] - moment < REPORT_S
    assert run.events("attempt/ended")[0]["time"] - moment < REPORT_S


@scenario()
def killed_head_agent_uploads(cluster: Cluster, folder: Path) -> None:
    """The upload to the URL must happen without the agent."""
    bucket = folder.with_name(f"{folder.name}-bucket")
    run = LightRun(cluster, folder, ONE_NODE, f"checkpoint.upload_url='file://{bucket}'")
    run.wait_for_training(1)
    # By pid: the srun on this node has the same words.
    cluster.signal(run.hosts(1)[0], read_json(run.run_dir.attempt(1).node(0))["pid"], signal.SIGKILL)
    check_end(run, ["failed", "finished"])
    copies = sorted((bucket / folder.name).iterdir())
    assert [copy.name[:10] for copy in copies] == ["attempt-1-", "attempt-2-"], run.events("run/copy_failed")
    assert all((copy / "complete.json").is_file() for copy in copies)
    assert (copies[0] / "files/logs/driver.log").is_file()
    assert not run.events("run/copy_failed")


@scenario(pytest.mark.slow)
def scancel_during_import_interrupts(cluster: Cluster, folder: Path) -> None:
    """The trainer's import takes longer than Slurm waits before SIGKILL."""
    run = LightRun(cluster, folder, ONE_NODE, import_s=200)
    run.wait_for_events("ray/head_ready")
    cluster.run(["scancel", run.job])
    end = run.wait_for_end()
    assert end["state"] == "interrupted"
    assert run.leftovers() == {}


@scenario()
def killed_controller_resumes(cluster: Cluster, folder: Path) -> None:
    run = LightRun(cluster, folder, ONE_NODE)
    run.wait_for_training(1)
    run.kill(run.hosts(1)[0], CONTROLLER, newest_only=True)
    check_end(run, ["lost", "finished"])
    assert [event["by"] for event in run.events("controller/killed")] == ["SIGKILL"]
    assert run.starts == [(run.job, 0), (run.job, 0)]


@scenario(pytest.mark.slow)
def killed_batch_step_resumes(cluster: Cluster, folder: Path) -> None:
    # Reuse the nodes: Slurm may have killed the agents before they cleaned up, so the next ones do it.
    nodes = ",".join(list(cluster.nodes)[:2])
    run = LightRun(cluster, folder, f"cluster.slurm.nodelist='{nodes}'")
    run.wait_for_training(1)
    run.kill(run.hosts(1)[0], CONTROLLER)
    run.wait_for_state("FAILED")
    assert not any("slurm_rl" in left for one in run.leftovers().values() for left in one)
    run.submit()
    check_end(run, ["finished"])
    assert run.events("trainer/resumed")


@pytest.fixture(scope="module")
def results(session_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """Start the scenarios of the selected tests together."""
    shared = make_shared_dir(session_cluster)
    selected = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
        yield {
            name: pool.submit(run, session_cluster, shared / name)
            for name, (run, _) in SCENARIOS.items()
            if name in selected
        }


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, marks) in SCENARIOS.items()])
def test_fault_scenario(name: str, results: dict[str, Future[None]]) -> None:
    results[name].result()


@pytest.mark.versions
def test_faults_leave_no_process_port_or_file(results: dict[str, Future[None]], cluster: Cluster) -> None:
    for future in results.values():
        future.exception()
    wait_until_clean(cluster)
