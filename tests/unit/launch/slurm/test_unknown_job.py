from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.launch.slurm import command_line
from slurm_rl.launch.slurm.launcher import SlurmLauncher
from tests.unit.launch.slurm.test_commands import put

WORDS = ["submit", "+exp=demo", "+cluster=slurm_cpu"]
RUN, SWEEP = ["run_dir=out"], ["-m", "hydra.sweep.dir=out", "seed=1,2"]
TIMEOUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
NO_CONTROLLER = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a working directory with an empty PATH and a cluster that accepts every plan."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(SlurmLauncher, "check", lambda self, plan: (plan, []))
    monkeypatch.setattr(command_line, "TIMEOUT_S", 2.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("echo queued", True),
        (TIMEOUT, True),
        ("exec /bin/sleep 20", True),
        ("exit 1", False),
        (NO_CONTROLLER, False),
    ],
)
@pytest.mark.parametrize("words", [RUN, SWEEP])
def test_submit_keeps_directory_of_possibly_queued_job(
    folder: Path, words: list[str], body: str, is_kept: bool
) -> None:
    put(folder / "bin", "sbatch", body)
    assert main([*WORDS, *words]) in (1, 2)
    assert (folder / "out").exists() == is_kept


def test_submit_reads_job_id_among_lines_of_wrapper(folder: Path) -> None:
    put(folder / "bin", "sbatch", "echo 'welcome'; echo 41; echo 'charged to: lab'")
    assert main([*WORDS, *RUN]) == 0
    assert '"41"' in (folder / "out" / "job.json").read_text()
