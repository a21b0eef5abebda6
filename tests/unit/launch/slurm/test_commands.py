"""Cases of commands.py that a real Slurm cannot produce; tests/slurm has the others."""

from pathlib import Path

import pytest

from slurm_rl.config.gres import parse_gpus
from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm import command_line, commands
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.launch.slurm.partitions import NodeGroup, PartitionInfo, parse_partitions
from slurm_rl.launch.slurm.states import JobState


@pytest.fixture
def fake_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace PATH with an empty folder plus sh."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(folder: Path, program: str, body: str) -> None:
    path = folder / program
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("fake_bin")
def test_missing_program_names_remedy() -> None:
    with pytest.raises(SubmitError, match=r"sbatch must be on PATH.*login node.*cluster=local"):
        commands.submit(["job.sh"])


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("12", "12"),
        ("12;west", "12"),
        ("welcome!\n12", "12"),
        ("12\nbye", "12"),
        ("job 7 of 9\n 12;west \n\nbye 8", "12"),
    ],
)
def test_job_id_is_parsed(fake_bin: Path, printed: str, job_id: str) -> None:
    put(fake_bin, "sbatch", f"echo '{printed}'")
    assert commands.submit(["job.sh"]) == job_id


@pytest.mark.parametrize("printed", ["", "Submitted batch job 12", "12 jobs"])
def test_missing_id_warns_of_second_submission(fake_bin: Path, printed: str) -> None:
    put(fake_bin, "sbatch", f"echo '{printed}'")
    with pytest.raises(SubmitError, match=r"(?s)must print a job id.*squeue --me"):
        commands.submit(["job.sh"])


def test_silent_failure_has_message(fake_bin: Path) -> None:
    put(fake_bin, "sbatch", "exit 7")
    with pytest.raises(SubmitError, match="exit code 7 and no message"):
        commands.submit(["job.sh"])


def test_hanging_command_is_unavailable(fake_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "TIMEOUT_S", 0.1)
    put(fake_bin, "scancel", "exec /bin/sleep 5")
    with pytest.raises(SlurmUnavailableError, match=r"scancel must answer within 0\.1 s"):
        commands.cancel(["1"])


def test_missing_cluster_is_permanent_error(fake_bin: Path) -> None:
    """Output of slurm-client without a cluster."""
    put(fake_bin, "squeue", "echo 'squeue: fatal: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(SubmitError, match=r"Could not establish a configuration source.*login node"):
        commands.query_jobs(["1"])


@pytest.mark.parametrize(
    "words",
    [
        "scontrol: error: Unable to contact slurm controller (connect failure)",
        "Unexpected message received for job 7",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
    ],
)
def test_unreachable_controller_is_temporary_error(fake_bin: Path, words: str) -> None:
    put(fake_bin, "scontrol", f"echo '{words}' >&2; exit 1")
    with pytest.raises(SlurmUnavailableError, match=r"scontrol ping"):
        commands.requeue("7")


def test_slurmdbd_outage_matters_only_for_missing_jobs(fake_bin: Path) -> None:
    put(fake_bin, "squeue", "echo '7_1|RUNNING|None|a1|100|200|(null)'")
    put(fake_bin, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    assert commands.query_jobs(["7"])["7_1"].state is JobState.RUNNING
    with pytest.raises(SlurmUnavailableError, match="Problem talking to the database"):
        commands.query_jobs(["7", "8"])


@pytest.mark.parametrize("has_sacct", [True, False])
def test_squeue_suffices_without_accounting(fake_bin: Path, has_sacct: bool) -> None:
    put(fake_bin, "squeue", r"printf '7|FAILED|NonZeroExitCode|a1|100|200|slurm_rl: a | b\nsecond line\n'")
    if has_sacct:
        put(fake_bin, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert commands.query_jobs(["7"])["7"].comment == "slurm_rl: a | b"


def test_outer_job_leaves_no_trace() -> None:
    outer = {
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS_PER_NODE": "8",
        "SBATCH_WAIT": "1",
        "SQUEUE_STATES": "PD",
        "PMIX_RANK": "0",
    }
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SBATCH_ACCOUNT": "lab", "HOME": "/home/ada", "SLURMISH": "x"}
    assert command_line.clean_env({**outer, **kept}) == kept


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu", {"": 1}),
        ("gpu:8", {"": 8}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1)", {"a100": 4, "v100": 2}),
        ("nvme:1,gpu:mi300x:8,craynetwork:4", {"mi300x": 8}),
        ("gpu:a100", {"a100": 1}),
        ("gpu_mem:80,shard:gpu:4", {}),
    ],
)
def test_gpus_of_node(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus


def test_partitions_list_their_node_types() -> None:
    output = "cpu|1-00:00:00|3|64|256000|(null)\nbig*|infinite|2|128|1000|gpu:a100:8\nbig*|infinite|1|64|9|gpu:4"
    assert parse_partitions(output + "\nold|30:00|1|4|5|(null)") == [
        PartitionInfo("big", True, None, (NodeGroup(2, 128, 1000, {"a100": 8}), NodeGroup(1, 64, 9, {"": 4}))),
        PartitionInfo("cpu", False, 1440, (NodeGroup(3, 64, 256000),)),
        PartitionInfo("old", False, 30, (NodeGroup(1, 4, 5),)),
    ]
