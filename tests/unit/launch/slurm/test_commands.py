"""Cases of commands.py that a real Slurm cannot produce; tests/slurm has the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.errors import SubmitError
from slurm_rl.launch.controller.record import Job
from slurm_rl.launch.slurm import command_line, commands
from slurm_rl.launch.slurm.admission import check_version
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.launcher import SlurmLauncher, _read_state
from slurm_rl.launch.slurm.partitions import (
    NodeGroup,
    PartitionInfo,
    parse_boot_times,
    parse_nodes,
    parse_partitions,
    spell_gpus,
)
from slurm_rl.launch.slurm.states import STATES, JobState
from slurm_rl.run_dir.run_dir import RunDir
from tests.plans import plan_of


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


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("12", "12"),
        ("12\nbye", "12"),
        ("job 7 of 9\n 12;west \n\nbye 8", "12"),
    ],
)
def test_job_id_is_parsed(fake_bin: Path, printed: str, job_id: str) -> None:
    put(fake_bin, "sbatch", f"echo '{printed}'")
    assert commands.submit(["job.sh"]) == job_id


@pytest.mark.parametrize(
    ("program", "body", "says"),
    [
        ("other", "", r"sbatch must be on PATH.*login node.*cluster=local"),
        ("sbatch", "exit 7", "exit code 7 and no message"),
        # Output of slurm-client without a cluster.
        (
            "sbatch",
            "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1",
            "source.*login node",
        ),
        *(
            ("sbatch", f"echo '{text}'", "(?s)must print a job id.*squeue --me")
            for text in ("", "Submitted job 12", "1 b")
        ),
    ],
)
def test_submit_without_job_id_names_remedy(fake_bin: Path, program: str, body: str, says: str) -> None:
    put(fake_bin, program, body)
    with pytest.raises(SubmitError, match=says):
        commands.submit(["job.sh"])


def test_hanging_command_is_unavailable(fake_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "TIMEOUT_S", 0.1)
    put(fake_bin, "scancel", "exec /bin/sleep 5")
    with pytest.raises(SlurmUnavailableError, match=r"scancel must answer within 0\.1 s"):
        commands.cancel(["1"])


@pytest.mark.parametrize(
    "words",
    [
        "scontrol: error: Unable to contact slurm controller (connect failure)",
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
    outer = dict.fromkeys(("SLURM_JOB_ID", "SLURM_NTASKS_PER_NODE", "SBATCH_WAIT", "SQUEUE_STATES", "PMIX_RANK"), "1")
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SBATCH_ACCOUNT": "lab", "HOME": "/home/ada", "SLURMISH": "x"}
    assert command_line.clean_env({**outer, **kept}) == kept


def test_partitions_list_their_node_types() -> None:
    output = "cpu|1-00:00:00|3|64|256000|(null)\nbig*|infinite|2|128|1000|gpu:a100:8\nbig*|infinite|1|64|9|gpu:4"
    assert parse_partitions(output + "\nold|30:00|1|4|5|(null)") == [
        PartitionInfo("big", True, None, (NodeGroup(2, 128, 1000, {"a100": 8}), NodeGroup(1, 64, 9, {"": 4}))),
        PartitionInfo("cpu", False, 1440, (NodeGroup(3, 64, 256000),)),
        PartitionInfo("old", False, 30, (NodeGroup(1, 4, 5),)),
    ]


@pytest.mark.parametrize(
    ("gres", "spelled"),
    [
        ("gpu:h100:8", "gpu:H100:8"),
        ("nvme:1,gpu:h100:2,gpu:v100:1", "nvme:1,gpu:H100:2,gpu:V100:1"),
        ("gpu:h100", "gpu:H100"),
        ("gpu:b200:8", "gpu:b200:8"),
        ("gpu:8", "gpu:8"),
    ],
)
def test_gres_uses_spelling_of_partition(gres: str, spelled: str) -> None:
    chosen = parse_partitions("main*|infinite|4|64|1000000|gpu:H100:8(S:0-1),gpu:V100:2\n")
    assert spell_gpus({**plan_of("+cluster=slurm_cpu").sbatch, "gres": gres}, chosen)["gres"] == spelled


def test_parse_nodes_reads_states_and_boot_times() -> None:
    nodes = parse_nodes(
        "n1|idle|4|1|gpu:2|a\nn2|mixed*|4|1|gpu:2|a\nn3|drained|4|1|gpu:2|a\nn4|allocated|4|1|(null)|b\n"
    )
    assert [name for name, node in nodes.items() if node.is_in_service] == ["n1", "n4"]
    assert (nodes["n4"].size, nodes["n4"].features) == ("4|1|(null)", "b")
    shown = (
        "NodeName=n1 Arch=x\n   BootTime=2026-11-22T08:57:21 SlurmdStartTime=x\n\nNodeName=n2 Arch=x\n   State=DOWN\n"
    )
    shown += "   BootTime=None\n\nNodeName=n3 x\n   BootTime=2026-11-22T08:57:22\n"
    found = parse_boot_times(shown)
    assert sorted(found) == ["n1", "n3"]
    assert found["n3"] - found["n1"] == 1.0
    sample = Path(__file__).parents[3] / "samples" / "scontrol-show-node.h100-23.11.txt"
    assert parse_boot_times(sample.read_text(encoding="utf-8")) == {}


def test_old_version_is_named() -> None:
    with pytest.raises(SubmitError, match=r"--segment is an option of Slurm 24\.05 and later; got 23\.11"):
        check_version({"nodes": 4, "segment": 2}, (23, 11))
    with pytest.raises(SubmitError, match=r"--requeue=expedite is an option of Slurm 25\.11"):
        check_version({"requeue": "expedite"}, (24, 11))
    with pytest.raises(SubmitError, match=r"20\.11 or later.*got 19\.05"):
        check_version({}, (19, 5))
    check_version({"segment": 2, "requeue": True}, (24, 5))
    check_version({"requeue": "expedite", "spread-segments": True}, (25, 11))


def test_meanings_have_distinct_words() -> None:
    assert set(STATES) == set(JobState) - {JobState.UNKNOWN}
    words = " ".join(STATES.values()).split()
    assert len(set(words)) == len(words)


def test_held_job_names_next_action(tmp_path: Path) -> None:
    """A batch step that a node refused; only this command ends it."""
    job = Job(RunDir(tmp_path), "slurm", "7")
    held = JobInfo("7", JobState.PENDING, "PENDING", "launch failed requeued held", "", None, None)
    assert _read_state(job, held).detail == "launch failed requeued held, next: scontrol release 7"
    assert "release" not in _read_state(job, replace(held, reason="Priority")).detail


WORDS = ["submit", "+exp=demo", "+cluster=slurm_cpu"]
RUN, SWEEP = ["run_dir=out"], ["-m", "hydra.sweep.dir=out", "seed=1,2"]
TIMEOUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
SILENT = "exec /bin/sleep 20"
NO_CONTROLLER = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def folder(fake_bin: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a working directory, on a cluster that accepts every plan."""
    monkeypatch.setattr(SlurmLauncher, "check", lambda self, plan: (plan, []))
    monkeypatch.chdir(fake_bin)
    return fake_bin


@pytest.mark.parametrize(
    ("words", "body", "is_kept"),
    [
        (RUN, "echo queued", True),
        (RUN, SILENT, True),
        (RUN, "exit 1", False),
        *((words, TIMEOUT, True) for words in (RUN, SWEEP)),
        *((words, NO_CONTROLLER, False) for words in (RUN, SWEEP)),
    ],
)
def test_submit_keeps_directory_of_possibly_queued_job(
    folder: Path, words: list[str], body: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if body == SILENT:
        monkeypatch.setattr(command_line, "TIMEOUT_S", 0.5)
    put(folder, "sbatch", body)
    assert main([*WORDS, *words]) in (1, 2)
    assert (folder / "out").exists() == is_kept


def test_submit_reads_job_id_among_lines_of_wrapper(folder: Path) -> None:
    put(folder, "sbatch", "echo 'welcome'; echo 41; echo 'charged to: lab'")
    assert main([*WORDS, *RUN]) == 0
    assert '"41"' in (folder / "out" / "job.json").read_text()
