import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import BringUpError
from slurm_rl.launch.controller.allocation import Allocation, IsStopped, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.controller.controller import Controller
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json
from slurm_rl.run_dir.run_lock import LockHolder
from tests.plans import plan_of


class Few(Allocation):
    """Machines with too few nodes and no requeue; with an outcome, a trainer that exits on a stop signal."""

    job_key, num_agents, has_nodes = "job", 1, False

    def __init__(self, run: RunDir, outcome: str | None = None) -> None:
        self.run_dir, self.outcome = run, outcome

    notice = "the machine is taken back"

    def holder(self) -> LockHolder:
        return LockHolder.of_this_process("local", "7")

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        if self.outcome is None:
            raise BringUpError("all 3 nodes must join")
        write_json(attempt.outcome, {"outcome": self.outcome, "exit_code": 0})
        signal.raise_signal(signal.SIGUSR2)
        return subprocess.Popen(["true"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield RunDir(tmp_path / "run")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def plan(run: RunDir) -> JobPlan:
    return plan_of("job.max_failures=3", run_dir=run.path)


@pytest.mark.parametrize(
    ("outcome", "status", "state", "why"),
    [(None, 1, "failed", "all 3 nodes must join; "), ("checkpointed", 130, "interrupted", "")],
)
def test_lack_of_nodes_or_notice_ends_run(run: RunDir, outcome: str | None, status: int, state: str, why: str) -> None:
    assert Controller(run, plan(run), Few(run, outcome)).main() == status
    end = read_json(run.end)
    resume = "this job is not restarted. Next: python -m slurm_rl resume "
    assert end["state"] == state and end["cause"].startswith(why + resume)


@pytest.mark.parametrize(
    ("outcome", "step", "stop", "cause"),
    [
        ("checkpointed", 30, signal.SIGTERM, "cancelled by the user (SIGTERM); step 30 is saved"),
        ("checkpointed", -1, signal.SIGINT, "cancelled by the user (SIGINT)"),
        ("lost", 20, signal.SIGTERM, "cancelled by the user (SIGTERM); not all was saved"),
        ("finished", 30, signal.SIGTERM, "all steps done"),
    ],
)
def test_controller_cancels_requeue(run: RunDir, outcome: Any, step: int, stop: int, cause: str) -> None:
    controller = Controller(run, plan(run), Few(run))
    controller._on_user_stop(stop, None)
    causes = {"checkpointed": "asked to save; got SIGUSR2", "lost": "not all was saved", "finished": "all steps done"}
    end = AttemptEnd(outcome, causes[outcome], saved_step=step)
    controller._end("finish" if outcome == "finished" else "interrupt", [end])
    assert read_json(run.end)["cause"] == cause


def test_restarted_job_of_finished_run_stays_finished(run: RunDir) -> None:
    assert Controller(run, plan(run), Few(run, "finished")).main() == 0
    assert Controller(run, plan(run), Few(run)).main() == 0
    assert [row["kind"] for row in read_rows(run.events)].count("attempt/started") == 1
