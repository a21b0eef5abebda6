"""commands.py against a real Slurm: messages, states, and an unreachable controller."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm import commands
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.partitions import NodeGroup, kill_wait_s, max_array_size, partitions
from slurm_rl.launch.slurm.states import JobState
from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

QUIET = "--output=/dev/null"


@pytest.fixture
def on_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    yield cluster


@pytest.fixture
def with_accounting(accounting_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", accounting_cluster.env["SLURM_CONF"])
    yield accounting_cluster


def wait_for(job: str, state: JobState) -> JobInfo:
    def look() -> JobInfo | None:
        info = commands.query_jobs([job]).get(job)
        return info if info and info.state is state else None

    found = wait_until(look, f"job {job} to be {state.value}")
    assert found is not None
    return found


@pytest.mark.usefixtures("on_cluster")
@pytest.mark.parametrize(
    ("args", "expected", "action"),
    [
        (["-p", "nope"], "Invalid partition name", "sinfo"),
        (["--gres=gpu:9"], "node configuration is not available", "sinfo -N -l"),
        (["-N5"], "node configuration is not available", "sinfo -N -l"),
        (["--time=soon"], "Invalid --time specification", "words above"),
    ],
)
def test_refusal_quotes_slurm(args: list[str], expected: str, action: str) -> None:
    with pytest.raises(SubmitError) as tested:
        commands.test_only([*args, "--wrap", "true"])
    assert expected in str(tested.value) and action in str(tested.value)
    if args != ["-N5"]:  # sbatch accepts this one: nodes may be added later
        with pytest.raises(SubmitError) as submitted:
            commands.submit([QUIET, *args, "--wrap", "true"])
        assert expected in str(submitted.value) and action in str(submitted.value)


def test_test_only_queues_no_job(on_cluster: Cluster) -> None:
    commands.test_only(["-N2", "--time=5", "--wrap", "true"])
    assert on_cluster.run(["squeue", "-h"]).stdout == ""


@pytest.mark.versions
def test_job_states_from_pending_to_end(on_cluster: Cluster, shared_dir: Path) -> None:
    go = shared_dir / "go"
    wait = f"until [ -e {go} ]; do sleep 0.1; done; exit 3"
    job = commands.submit([QUIET, "--hold", "--time=10", "--wrap", wait])
    held = commands.query_jobs([job])[job]
    assert (held.state, held.reason, held.nodelist) == (JobState.PENDING, "JobHeldUser", "")
    assert held.end_time is None
    on_cluster.run(["scontrol", "release", job])
    running = wait_for(job, JobState.RUNNING)
    assert running.nodelist == on_cluster.nodes[0]
    assert running.start_time is not None and abs(running.start_time - time.time()) < 300
    assert running.end_time == running.start_time + 600
    go.touch()
    ended = wait_for(job, JobState.FAILED)
    assert (ended.reason, ended.exit_code) == ("NonZeroExitCode", None)
    commands.cancel([job])  # cancelling an ended job is no error
    commands.cancel([job], signal="USR2")
    assert commands.query_jobs(["999999", job]) == {job: ended}
    assert commands.query_jobs(["999999"]) == {}


def test_accounting_adds_exit_codes_and_forgotten_jobs(
    with_accounting: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = commands.submit([QUIET, "--wrap", "exit 3"])
    wait_until(lambda: commands.query_jobs([job])[job].exit_code, "sacct to know the end")
    ended = commands.query_jobs([job])[job]
    assert (ended.state, ended.exit_code) == (JobState.FAILED, "3:0")
    # Slurm forgets a job after MinJobAge; sacct's part of the answer is real.
    monkeypatch.setattr(commands, "_query_squeue", lambda _: {})
    forgotten = commands.query_jobs([job])[job]
    assert (forgotten.state, forgotten.exit_code) == (JobState.FAILED, "3:0")
    assert (forgotten.start_time, forgotten.end_time) == (ended.start_time, ended.end_time)


def test_accounting_reads_pending_array(with_accounting: Cluster) -> None:
    job = commands.submit([QUIET, "--array=0-2%1", "--wrap", "sleep 60"])
    wait_until(lambda: with_accounting.run(["sacct", "-n", "-X", "-j", job]).stdout, "sacct to know the array")
    found = commands.query_jobs([job])
    assert sorted(found) == [f"{job}_{index}" for index in range(3)]
    commands.cancel([f"{job}_2"])
    # Slurm drops a pending element at once, without a record.
    assert commands.query_jobs([f"{job}_2"]) == {}
    commands.cancel([job])
    wait_until(lambda: all(info.state.is_ended for info in commands.query_jobs([job]).values()), "the array to end")


def test_heterogeneous_job_is_one_job(with_accounting: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm calls its components 9+0 and 9+1; job 9 was submitted and runs the script."""
    job = commands.submit([QUIET, "-N1", "--wrap", "sleep 60", ":", "-N1"])
    wait_for(job, JobState.RUNNING)
    assert list(commands.query_jobs([job])) == [job]
    commands.cancel([job])
    wait_for(job, JobState.CANCELLED)
    wait_until(lambda: "CANCELLED" in with_accounting.run(["sacct", "-n", "-j", job]).stdout, "sacct to know the end")
    monkeypatch.setattr(commands, "_query_squeue", lambda _: {})
    assert list(commands.query_jobs([job])) == [job]


@pytest.mark.versions
def test_cluster_description_matches_slurm(on_cluster: Cluster) -> None:
    found = partitions()
    defaults = {partition.name: partition.is_default for partition in found}
    assert defaults == {"main": True, "high": False, "cancelled": False}
    assert found[0].groups == (NodeGroup(4, 4, 12_000, {"fake": 2}),)
    assert found[0].max_time_min is None
    assert max_array_size() == 1001
    assert kill_wait_s() == 15


def test_signal_reaches_batch_script_only(on_cluster: Cluster, shared_dir: Path) -> None:
    seen = shared_dir / "seen"
    body = f"trap 'echo got >> {seen}; exit 0' USR2; echo up >> {seen}; srun sleep 60 & wait"
    job = commands.submit([QUIET, "--wrap", body])
    wait_until(seen.exists, "the job to be up")
    commands.cancel([job], signal="USR2")
    wait_for(job, JobState.COMPLETED)
    assert seen.read_text().split() == ["up", "got"]
    with pytest.raises(SubmitError, match="BOGUS"):
        commands.cancel([job], signal="BOGUS")


@pytest.mark.versions
def test_requeue_works_or_quotes_refusal(on_cluster: Cluster) -> None:
    job = commands.submit([QUIET, "--wrap", "sleep 60"])
    wait_for(job, JobState.RUNNING)
    commands.requeue(job)
    wait_for(job, JobState.PENDING)
    with pytest.raises(SubmitError, match="Invalid job id"):
        commands.requeue("999999")


def test_job_name_is_not_interpreted(on_cluster: Cluster, shared_dir: Path) -> None:
    proof = shared_dir / "executed"
    name = f"""it's "quoted" $(touch {proof}) `touch {proof}`; touch {proof} 50%j a|b\nc|d é"""
    job = commands.submit([QUIET, f"--job-name={name}", "--hold", "--wrap", "true"])
    assert list(commands.query_jobs([job])) == [job]
    assert on_cluster.run(["squeue", "-h", "-j", job, "-o", "%j"]).stdout == f"{name}\n"
    on_cluster.run(["scontrol", "release", job])
    commands.cancel([job])
    assert not proof.exists()


def test_outer_job_does_not_leak(on_cluster: Cluster, shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SBATCH_ARRAY_INX would turn one job into four."""
    outer = {"SBATCH_ARRAY_INX": "0-3", "SBATCH_WAIT": "1", "SLURM_MEM_PER_NODE": "1", "SLURM_NTASKS_PER_NODE": "3"}
    for key, value in {**outer, "SQUEUE_STATES": "PD", "SLURM_TIME_FORMAT": "relative"}.items():
        monkeypatch.setenv(key, value)
    seen = shared_dir / "env"
    job = commands.submit([QUIET, "--wrap", f"env > {seen}.part; mv {seen}.part {seen}; sleep 60"])
    wait_until(seen.exists, "the job to run")
    running = commands.query_jobs([job])[job]
    assert running.state is JobState.RUNNING and running.start_time is not None
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert names.isdisjoint({*outer, "SQUEUE_STATES", "SLURM_TIME_FORMAT"})


@pytest.mark.slow
def test_unreachable_slurmctld_raises_unavailable(on_cluster: Cluster) -> None:
    job = commands.submit([QUIET, "--wrap", "sleep 60"])
    wait_for(job, JobState.RUNNING)
    on_cluster.stop_controller()
    # Each command retries for 9 s or 18 s, so this checks one of them; unit tests check the other messages.
    with pytest.raises(SlurmUnavailableError, match="Unable to contact slurm controller"):
        max_array_size()
    on_cluster.start_controller()
    assert commands.query_jobs([job])[job].state is JobState.RUNNING
