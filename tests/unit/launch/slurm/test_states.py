from dataclasses import replace
from pathlib import Path

from slurm_rl.launch.controller.record import Job
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.launcher import _read_state
from slurm_rl.launch.slurm.states import STATES, JobState
from slurm_rl.run_dir.run_dir import RunDir

WORDS = {word: state for state, words in STATES.items() for word in words.split()}


def test_meanings_have_distinct_words() -> None:
    assert set(STATES) == set(JobState) - {JobState.UNKNOWN}
    assert len(WORDS) == sum(len(found.split()) for found in STATES.values())


def test_held_job_names_next_action(tmp_path: Path) -> None:
    """A batch step that a node refused; only this command ends it."""
    job = Job(RunDir(tmp_path), "slurm", "7")
    held = JobInfo("7", JobState.PENDING, "PENDING", "launch failed requeued held", "", None, None)
    assert _read_state(job, held).detail == "launch failed requeued held, next: scontrol release 7"
    assert "release" not in _read_state(job, replace(held, reason="Priority")).detail
