import socket
from pathlib import Path

import pytest

from slurm_rl.errors import RunDirError
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.jobs import cancel_runs, read_states
from slurm_rl.launch.slurm import commands
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.run_dir.run_dir import RunDir, write_json

NOBODY = str(2**22)
"""A number above the largest possible process id (proc(5), pid_max)."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.mark.parametrize("launcher", ["local", "manual"])
def test_run_of_other_machine_is_not_dead(run: RunDir, launcher: str) -> None:
    record_job(run, launcher, NOBODY, host="elsewhere")
    (state,) = read_states([run])
    assert str(state) == "unknown: its controller is a process of elsewhere; ask there"
    with pytest.raises(RunDirError, match=r"it was started on elsewhere\. Next: there: python -m slurm_rl cancel"):
        cancel_runs([run])


def test_end_on_other_machine_is_known(run: RunDir) -> None:
    record_job(run, "manual", NOBODY, host="elsewhere")
    write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 3})
    assert [state.word for state in read_states([run])] == ["finished"]
    assert not cancel_runs([run])


def test_ended_local_controller_is_dead(run: RunDir) -> None:
    record_job(run, "local", NOBODY, host=socket.gethostname())
    assert [state.word for state in read_states([run])] == ["dead"]
    assert not cancel_runs([run])


def test_written_end_overrides_slurm_state(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of an array element, 12_0, differs from the ids of its attempts."""
    record_job(run, "slurm", "12_0")
    write_json(run.end, {"state": "interrupted", "exit_code": 130, "cause": "cancelled", "step": 3})
    run.submitit.mkdir()
    (run.submitit / "12_0_0_log.out").write_text("slurm_rl: interrupted\n")
    failed = JobInfo("12_0", JobState.FAILED, "FAILED", "NonZeroExitCode", "n1", None, None)
    monkeypatch.setattr(commands, "query_jobs", lambda ids: {"12_0": failed})
    before = run.end.read_bytes()
    assert str(read_states([run])[0]) == "interrupted: cancelled"
    assert run.end.read_bytes() == before
