"""Runs on clusters that do not restart jobs: each job has a successor, which continues the run and never remains."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.cluster.reset import is_idle
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, job_id, queue, run_cli, submit, wait_for_end, wait_for_step
from tests.whole_run import events_of

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

# The site's plugin overrides --requeue of every job.
FORBID_REQUEUE = """
function slurm_job_submit(job, partitions, uid) job.requeue = 0 return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
"""
CANCELLED = ("cluster.slurm.partition=cancelled", "cluster.num_nodes=1")
# sbatch that queues the job and then kills its caller, or answers too late; once.
BAD_SBATCH = """#!/bin/sh
[ -e {folder}/done ] && exec /usr/bin/sbatch "$@"
touch {folder}/done
/usr/bin/sbatch "$@" > /dev/null
{fault}
"""
FAULTS = {"killed": "kill -9 $PPID; sleep 1", "late": 'echo "sbatch: error: Socket timed out" >&2; exit 1'}


@pytest.fixture
def strict_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Cluster whose job_submit plugin forbids requeues."""
    (cluster.root / "job_submit.lua").write_text(FORBID_REQUEUE)
    with cluster.changed({"JobSubmitPlugins": "lua"}):
        # Until the nodes register with the new controller, it finds no matching node.
        wait_until(lambda: is_idle(cluster), "the nodes to report")
        yield cluster


def start(cluster: Cluster, folder: Path, *words: str) -> Path:
    """Start a light run; return its directory."""
    run = folder / "run"
    submit(cluster, run, make_light_python(folder), *words)
    wait_for_step(run)
    return run


def reach_limit(cluster: Cluster, run: Path) -> None:
    """Send the signal that Slurm sends before the time limit."""
    cluster.run(["scancel", "--batch", "--signal=USR2", job_id(run)])


def check_no_job_remains(cluster: Cluster) -> None:
    wait_until(lambda: queue(cluster) == "", "an empty queue", timeout_s=60)


def kill_trainer(cluster: Cluster, run: Path) -> None:
    for node in cluster.nodes:
        for process in cluster.processes(node):
            if f"--run-dir {run}" in process.cmdline and "grpo.main" in process.cmdline:
                cluster.signal(node, process.pid, 9)


def test_successors_continue_run_and_share_budget(strict_cluster: Cluster, shared_dir: Path) -> None:
    cluster = strict_cluster
    run = start(cluster, shared_dir, "job.max_failures=1", "cluster.num_nodes=1")
    first = job_id(run)
    kill_trainer(cluster, run)
    wait_for_step(run, attempt=2)
    reach_limit(cluster, run)
    wait_for_step(run, attempt=3)
    second = job_id(run)
    assert second != first and read_json(run / "job.json")["earlier"] == [first]
    assert f"job     {second}" in run_cli(cluster, shared_dir, "status", "run").stdout
    reach_limit(cluster, run)
    wait_for_step(run, attempt=4)
    assert [row["outcome"] for row in events_of(run, "attempt/ended")] == ["failed", "checkpointed", "checkpointed"]
    kill_trainer(cluster, run)
    assert wait_for_end(run)["state"] == "failed", "two failures in three jobs"
    check_no_job_remains(cluster)
    run_cli(cluster, shared_dir, "resume", "run")
    wait_for_step(run, attempt=5)
    finish(run)
    check_no_job_remains(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_unrecorded_successor_is_found_again(strict_cluster: Cluster, shared_dir: Path, fault: str) -> None:
    program = shared_dir / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(BAD_SBATCH.format(folder=program.parent, fault=FAULTS[fault]))
    program.chmod(0o755)
    setup = f'cluster.setup=["export PATH={program.parent}:/usr/bin:/bin"]'
    run = start(strict_cluster, shared_dir, "cluster.num_nodes=1", setup)
    assert sorted(line.split()[1] for line in queue(strict_cluster).splitlines()) == ["PENDING", "RUNNING"]
    reach_limit(strict_cluster, run)
    wait_for_step(run, attempt=2)
    finish(run)
    check_no_job_remains(strict_cluster)


def test_node_without_sbatch_says_that_run_ends(strict_cluster: Cluster, shared_dir: Path) -> None:
    """Some sites accept no submissions from nodes; the program stands in for theirs."""
    program = shared_dir / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'sbatch: error: Access/permission denied' >&2; exit 1\n")
    program.chmod(0o755)
    setup = f'cluster.setup=["export PATH={program.parent}:/usr/bin:/bin"]'
    run = start(strict_cluster, shared_dir, "cluster.num_nodes=1", setup)
    shown = run_cli(strict_cluster, shared_dir, "status", "run").stdout
    assert f"limit   the run ends with job {job_id(run)}" in shown and "(Access/permission denied)" in shown
    reach_limit(strict_cluster, run)
    end = wait_for_end(run)
    assert end["state"] == "interrupted"
    assert "presently disabled" in end["cause"] and "successor: Access/permission denied" in end["cause"]
    assert end["cause"].endswith(f"Next: python -m slurm_rl resume {run}")
    assert end["cause"] in cli(strict_cluster, shared_dir, "status", "run").stdout
    program.unlink()
    run_cli(strict_cluster, shared_dir, "resume", "run")
    wait_for_step(run, attempt=2)
    finish(run)


@pytest.mark.slow
def test_pipeline_stage_waits_for_successors(strict_cluster: Cluster, shared_dir: Path) -> None:
    run = start(strict_cluster, shared_dir, "cluster.num_nodes=1")
    later = shared_dir / "later"
    submit(strict_cluster, later, make_light_python(shared_dir), "cluster.num_nodes=1", f"job.depends_on={run}")
    for attempt in (2, 3):
        reach_limit(strict_cluster, run)
        wait_for_step(run, attempt)
    assert not (later / "end.json").is_file() and not (later / "attempts").exists()
    finish(run)
    wait_for_step(later)
    finish(later)
    check_no_job_remains(strict_cluster)


def preempt(cluster: Cluster, run: Path) -> None:
    node = events_of(run, "preflight/passed")[-1]["nodes"][0]
    words = ["sbatch", "-p", "high", "-w", node, "--exclusive", "--mem=100", "--output=/dev/null", "--wrap", "sleep 2"]
    assert cluster.run(words).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("grace_s", [0, 10])
def test_preemption_by_cancel_continues_in_successor(cluster: Cluster, shared_dir: Path, grace_s: int) -> None:
    cluster.run(["scontrol", "update", "partition=cancelled", f"GraceTime={grace_s}"])
    run = start(cluster, shared_dir, *CANCELLED)
    first = job_id(run)
    preempt(cluster, run)
    wait_for_step(run, attempt=2)
    assert job_id(run) != first
    assert {row["outcome"] for row in events_of(run, "attempt/ended")} <= {"checkpointed", "lost"}
    assert run_cli(cluster, shared_dir, "cancel", "run").returncode == 0
    assert wait_for_end(run)["state"] == "interrupted"
    check_no_job_remains(cluster)


@pytest.mark.slow
def test_lost_node_continues_and_scancel_ends_run(strict_cluster: Cluster, shared_dir: Path) -> None:
    cluster = strict_cluster
    run = start(cluster, shared_dir, "cluster.num_nodes=1")
    first = job_id(run)
    cluster.power_off(events_of(run, "preflight/passed")[-1]["nodes"][0])
    wait_for_step(run, attempt=2)
    assert events_of(run, "attempt/ended")[0]["outcome"] == "lost" and job_id(run) != first
    # The controller has no time to react to scancel.
    node = events_of(run, "preflight/passed")[-1]["nodes"][0]
    for process in cluster.processes(node):
        if "slurm_rl.launch.jobs" in process.cmdline:
            cluster.signal(node, process.pid, signal.SIGSTOP)
    last = job_id(run)
    cluster.run(["scancel", last])
    assert wait_for_end(run)["cause"] == f"job {last} was cancelled (scancel)"
    check_no_job_remains(cluster)
    assert "state   interrupted" in cli(cluster, shared_dir, "status", "run").stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_time_limit_continues_in_successor(cluster: Cluster, shared_dir: Path) -> None:
    """Only Slurm's clock ends the jobs, each after its shortest limit, in a partition whose jobs it never requeues."""
    run = shared_dir / "run"
    submit(cluster, run, make_light_python(shared_dir), *CANCELLED, "job.time_limit=1", "job.checkpoint_lead_s=10")
    wait_until(lambda: len({*read_resumed_steps(run)}) >= 3, "two jobs that resume", timeout_s=600)
    finish(run)
    check_no_job_remains(cluster)
    check_only_time_limits(run)


def read_resumed_steps(run: Path) -> list[str]:
    """Return the step after which each trainer has started, by attempt."""
    logs = sorted(run.glob("attempts/[0-9]*/logs/driver.log"), key=lambda path: int(path.parts[-3]))
    return [step for log in logs for step in re.findall(r"resumes after step (\d+)\n", log.read_text())]


def check_only_time_limits(run: Path) -> None:
    """A busy machine may reach the limit before the trainer has started; no other job loses a step."""
    starts, ends = events_of(run, "attempt/started"), events_of(run, "attempt/ended")
    jobs = [*read_json(run / "job.json")["earlier"], job_id(run)]
    assert len(starts) == len(ends) == len({*jobs}) >= 3 and not events_of(run, "job/requeued")
    for begun, ended in zip(starts[:-1], ends[:-1], strict=True):
        assert ended["outcome"] in ("checkpointed", "lost") and ended["stopped_by"] == "scheduler", ended
        assert begun["ends_at"] - begun["start_time"] == 60 and ended["time"] < begun["ends_at"]
    resumed = read_resumed_steps(run)
    saved = {path.name.removeprefix("step-") for path in (run / "checkpoints").iterdir()}
    assert resumed[0] == "0" and {*resumed[1:]} < saved, "each save is where the next trainer resumes"
    assert resumed == sorted(resumed, key=int)


@pytest.mark.slow
def test_element_of_sweep_continues_in_successor(strict_cluster: Cluster, shared_dir: Path) -> None:
    cluster, python = strict_cluster, make_light_python(shared_dir)
    words = ["+exp=demo", "+cluster=slurm_cpu", f"cluster.python={python}", "cluster.num_nodes=1", "seed=0,1"]
    run_cli(cluster, shared_dir, "-m", *words, f"cluster.run_root={shared_dir}/runs", "job.max_failures=1")
    runs = sorted(shared_dir.glob("runs/*/[01]"))
    for run in runs:
        wait_for_step(run)
    element = job_id(runs[1])
    assert element.endswith("_1")
    kill_trainer(cluster, runs[1])
    wait_for_step(runs[1], attempt=2)
    reach_limit(cluster, runs[1])
    wait_for_step(runs[1], attempt=3)
    assert job_id(runs[1]) not in (element, job_id(runs[0]))
    kill_trainer(cluster, runs[1])
    assert wait_for_end(runs[1])["state"] == "failed", "the failure in the array counts"
    finish(runs[0])
    check_no_job_remains(cluster)
