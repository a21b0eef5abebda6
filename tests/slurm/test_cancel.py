"""`cancel` ends a run within seconds on any disk; docs/reference/storage.md has the times."""

import pytest

from slurm_rl.run_dir.fs_probe import ANSWER_S
from tests.storage.cancel import measure

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(900)]


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_cancel_answers_and_ends_run_on_any_disk(launcher: str) -> None:
    """The deadlines of the measurement are minutes, so only `cancel` can end the run."""
    found = measure(launcher)
    for state, times in found.items():
        assert "stopping after a save" in times.stderr or state == "broken", (state, times)
    assert f"has not responded for {ANSWER_S:g} s" in found["hanging"].stderr
