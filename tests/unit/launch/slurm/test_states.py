from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.launch.controller.record import Job
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.launcher import _read_state
from slurm_rl.launch.slurm.states import STATES, JobState, parse_state
from slurm_rl.run_dir.run_dir import RunDir

WORDS = {word: state for state, words in STATES.items() for word in words.split()}
words = st.sampled_from(sorted(WORDS))


@given(words, st.integers(min_value=0, max_value=2**32 - 2))
def test_who_cancelled_case_and_blanks_do_not_matter(word: str, uid: int) -> None:
    assert parse_state(word) is parse_state(f"  {word.lower()}\n") is parse_state(f"{word} by {uid}") is WORDS[word]


@given(st.text())
def test_anything_else_is_unknown_and_not_ended(text: str) -> None:
    if (text.upper().split() or [""])[0] not in WORDS:
        assert parse_state(text) is JobState.UNKNOWN
        assert not parse_state(text).is_ended


def test_every_meaning_has_its_words_and_no_word_two() -> None:
    assert set(STATES) == set(JobState) - {JobState.UNKNOWN}
    assert len(WORDS) == sum(len(found.split()) for found in STATES.values())


def test_what_is_ended() -> None:
    ended = {state for state in JobState if state.is_ended}
    assert ended == {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.PREEMPTED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
    }


def test_a_job_that_slurm_holds_says_how_it_goes_on(tmp_path: Path) -> None:
    """After a batch step that a node refused; nothing but that command ends it."""
    job = Job(RunDir(tmp_path), "slurm", "7")
    held = JobInfo("7", JobState.PENDING, "PENDING", "launch failed requeued held", "", None, None)
    assert _read_state(job, held).detail == "launch failed requeued held, next: scontrol release 7"
    assert "release" not in _read_state(job, replace(held, reason="Priority")).detail
