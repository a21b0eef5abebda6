import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.launchers import LAUNCHERS, LauncherEntry
from slurm_rl.errors import SubmitError
from slurm_rl.launch.controller.record import Job, RunState
from slurm_rl.launch.here import HereLauncher
from slurm_rl.launch.protocol import Launcher, Submitted
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json

ROW = 'slurm_rl row {"step": 3, "stage": "grpo", "reward/mean": 0.25}'


class Toy(Launcher):
    """A launcher that records a run in a file, since verbs may use a child process, and never executes it."""

    alive = Path("toy-alive")

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        if plan.name == "unwanted":
            raise SubmitError("the toy must like the name", seen=plan.name)
        return plan, ["toy     welcome"]

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        self.alive.touch()
        return Submitted("t7", {"address": "toy://box"})

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        return [RunState("pending" if self.alive.exists() else "dead", f"in {job.address}") for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> int:
        self.alive.unlink()
        return len(jobs)

    def read_log(self, job: Job) -> str | None:
        return f"hello from {job.job_id}\n{ROW}\n"

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        return list(wrapped.argv)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(LAUNCHERS, "toy", LauncherEntry(f"{Path(__file__)}:Toy"))
    monkeypatch.chdir(tmp_path)


def test_launcher_row_serves_submit_status_logs_and_cancel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+exp=demo", "cluster.launcher=toy", "run_dir=a", "name=unwanted"]) == 2
    assert "the toy must like the name; got unwanted" in capsys.readouterr().err
    assert not Path("a").exists()
    assert main(["+exp=demo", "cluster.launcher=toy", "run_dir=a"]) == 0
    assert "toy     welcome" in capsys.readouterr().err
    assert read_json(RunDir("a").job) == {"launcher": "toy", "job_id": "t7", "address": "toy://box"}
    assert main(["status", "a"]) == 0
    said = capsys.readouterr().out
    assert "state   pending: in toy://box" in said and "reward  0.250" in said
    assert main(["logs", "a"]) == 0
    assert capsys.readouterr().out.startswith("hello from t7\n")
    assert main(["cancel", "a"]) == 0
    assert main(["status", "a"]) == 0
    assert "state   dead" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["a/../run", "link"])
def test_local_run_is_alive_by_any_path(tmp_path: Path, other: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("run")
    run = RunDir(tmp_path / "run")
    run.submitit.mkdir(parents=True)
    # A stand-in for the controller: only its command line counts.
    command = [sys.executable, "-c", "input(print(flush=True))", str(run.submitit)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        job = Job(RunDir(tmp_path / other), "local", str(process.pid))
        assert [state.is_alive for state in HereLauncher().read_states([job])] == [True]
        assert HereLauncher().cancel([job]) == 1
