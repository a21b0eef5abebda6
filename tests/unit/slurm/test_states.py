from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.launchers.slurm.states import STATES, JobState, parse_state

rows = st.sampled_from(STATES)


@given(rows)
def test_long_and_short_word_of_a_state_mean_the_same(row: tuple[str, str, JobState]) -> None:
    long, short, state = row
    assert parse_state(long) is state
    assert parse_state(short) is state
    assert parse_state(f"  {long.lower()}\n") is state


@given(rows, st.integers(min_value=0, max_value=2**32 - 2))
def test_who_cancelled_does_not_matter(row: tuple[str, str, JobState], uid: int) -> None:
    assert parse_state(f"{row[0]} by {uid}") is row[2]


@given(rows, st.data())
def test_a_cut_word_means_its_state_or_nothing(row: tuple[str, str, JobState], data: st.DataObject) -> None:
    """sacct cuts to any width; the rest must never be read as another state."""
    width = data.draw(st.integers(min_value=1, max_value=len(row[0])))
    assert parse_state(row[0][:width] + "+") in (row[2], JobState.UNKNOWN)


@given(rows)
def test_sacct_default_width_is_enough(row: tuple[str, str, JobState]) -> None:
    cut = row[0] if len(row[0]) <= 10 else row[0][:9] + "+"
    assert parse_state(cut) is row[2]


@given(st.text())
def test_anything_else_is_unknown_and_not_ended(text: str) -> None:
    known = {word for long, short, _ in STATES for word in (long, short)}
    first = (text.split() or [""])[0].upper()
    if first not in known and "+" not in first:
        assert parse_state(text) is JobState.UNKNOWN
        assert not parse_state(text).is_ended


@pytest.mark.parametrize("text", ["", "+", "COMPLET+", "RE+", "BRAND_NEW_STATE"])
def test_ambiguous_and_new_words_are_unknown(text: str) -> None:
    assert parse_state(text) is JobState.UNKNOWN


def test_words_are_unique_but_for_one_short_code() -> None:
    """Slurm itself prints RF for two states; they must mean the same to us."""
    longs = [long for long, _, _ in STATES]
    assert len(set(longs)) == len(longs)
    assert {state for _, short, state in STATES if short == "RF"} == {JobState.PENDING}
    shorts = [short for _, short, _ in STATES if short != "RF"]
    assert len(set(shorts)) == len(shorts)


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
