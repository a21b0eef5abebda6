"""Each launcher ends attempts and runs as stated by the table in docs/reference/outcomes.md."""

from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.launchers import LAUNCHERS
from tests.slurm.launched import Launched, cell_id

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs/reference/outcomes.md"
IN_CI = {("local", "cancel"), ("manual", "killed controller")}
"""Cells that no other test of `make test` covers."""


def read_table() -> dict[str, dict[str, str]]:
    """Return event -> launcher -> expected end."""
    lines = PAGE.read_text().split("\n\n| ", 1)[1].split("\n\n", 1)[0].splitlines()
    head, _, *body = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


TABLE = read_table()


def cells() -> list[Any]:
    found = [(launcher, event) for event, row in TABLE.items() for launcher, cell in row.items() if cell != "-"]
    return [pytest.param(*one, marks=() if one in IN_CI else pytest.mark.slow, id=cell_id(*one)) for one in found]


ACTIONS = {
    "cancel": "cancel",
    "time limit": "reach_limit",
    "preemption": "preempt",
    "lost node": "lose_node",
    "killed controller": "kill_controller",
    "killed trainer": "kill_trainer",
}


def do(launched: Any, event: str) -> None:
    """Start a run and apply the event while it trains."""
    action = getattr(launched, ACTIONS.get(event, ""), None)
    launched.start("job.max_failures=1", *launched.overrides_for(event))
    if event != "bad input":
        launched.wait_for_training(1)
    if action is not None:
        action()


@pytest.mark.parametrize(("launcher", "event"), cells())
def test_launcher_ends_run_as_documented(launched: Launched, launcher: str, event: str) -> None:
    outcome, _, follows = TABLE[event][launcher].partition(", ")
    do(launched, event)
    if follows == "continues":
        launched.wait_for_training(2)
        (launched.trained.path / "finish").touch()
    end = launched.wait_for_end()
    states = {"continues": ("finished", 0), "interrupted": ("interrupted", 130), "failed": ("failed", 2)}
    logs = launched.trained.path.glob("attempts/*/logs/driver.log")
    logged = [log.read_text(errors="replace")[-600:] for log in sorted(logs)]
    assert (end["state"], end["exit_code"]) == states[follows], (end, *logged)
    outcomes = launched.outcomes()
    assert outcomes == ([outcome, "finished"] if follows == "continues" else [outcome]), end
    if event in ("time limit", "preemption") and follows == "interrupted":
        assert "Next: python -m slurm_rl resume" in end["cause"]


def test_table_names_launchers_once() -> None:
    assert [sorted(row) for row in TABLE.values()] == [sorted(LAUNCHERS)] * len(TABLE)
