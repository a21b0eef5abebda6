import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.launch.controller.ends import newest_step
from slurm_rl.node.driver import catches
from slurm_rl.plan.task import ExternalPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json
from tests.plans import plan_of
from tests.slurm.cluster.waiting import wait_until
from tests.unit.plugins.external.layout_files import write

RESUME = ("--from", "at ${checkpoint:name}, ${checkpoint:step}")


def start(
    run_dir: Path,
    argv: list[str],
    *more: str,
    attempt: int = 1,
    rank: int | None = None,
    limit: tuple[str, ...] = (),
    save_by: float | None = None,
) -> subprocess.Popen[bytes]:
    """Start the program; with a rank, as torchrun does.

    Args:
        limit: its arguments in a job with a time limit, before which it must save by `save_by`.
    """
    more = (*more, "external.start=torchrun") if rank is not None else more
    plan = plan_of("+exp=command", *more, run_dir=run_dir, python=sys.executable)
    layout = plan.external.layout if plan.external else None
    plan = replace(plan, external=ExternalPlan(tuple(argv), (*argv, *RESUME), layout, limit, "saved for the limit"))
    run = RunDir(run_dir)
    run.attempt(attempt).logs.mkdir(parents=True, exist_ok=True)
    write_json(run.plan, plan.to_json())
    if save_by is not None:
        write_json(run.attempt(attempt).start, {"save_by": save_by})
    return subprocess.Popen(
        [*plan.driver_argv, "--attempt", str(attempt)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONSAFEPATH": "1", "RANK": str(rank)},
    )


def outcome(run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = read_json(RunDir(run_dir).attempt(attempt).outcome)
    return found


@pytest.mark.parametrize(
    ("argv", "cause"),
    [
        (["python3", "-c", "raise SystemExit(3)"], "python3 ended with exit status 3; see driver.log"),
        (["python3", "-c", "import os; os.kill(os.getpid(), 9)"], "python3 was killed by SIGKILL"),
        (["no-such-program"], "no-such-program could not be started: No such file"),
    ],
)
def test_external_failure_is_reported_in_outcome(tmp_path: Path, argv: list[str], cause: str) -> None:
    assert start(tmp_path, argv).wait(60) == 1
    assert outcome(tmp_path)["outcome"] == "failed" and cause in outcome(tmp_path)["cause"]


def test_external_environment_names_run(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("found = True")
    (tmp_path / "mine.py").write_text(
        "import beside, json, os\n"
        "names = ('SLURM_RL_RUN_DIR', 'SLURM_RL_CHECKPOINTS', 'SLURM_RL_RESUME')\n"
        "json.dump([os.environ[name] for name in names], open(os.environ[names[0]] + '/seen', 'w'))\n"
        "os.mkdir(os.environ[names[1]] + '/step-7')\n"
    )
    run_dir = tmp_path / "run"
    assert start(run_dir, ["python3", str(tmp_path / "mine.py")], attempt=2).wait(60) == 0
    assert json.loads((run_dir / "seen").read_text()) == [str(run_dir), str(run_dir / "checkpoints"), "1"]
    assert newest_step(RunDir(run_dir)) == 7 and outcome(run_dir, 2)["outcome"] == "finished"
    assert [row["kind"] for row in read_rows(RunDir(run_dir).events)] == ["external/started"]


# Writes its last arguments and the checkpoint in its environment.
TELL = "import json, os, sys; e = os.environ; f = open(e['SLURM_RL_RUN_DIR'] + '/seen', 'w'); " + (
    "json.dump([sys.argv[1:], e['SLURM_RL_CHECKPOINT'], e['SLURM_RL_CHECKPOINT_STEP']], f)"
)


TRL = {"checkpoint-4/trainer_state.json": '{"global_step": 4}', "checkpoint-20/model": ""}
# verl reads the tracker file first and fails if it is empty.
TRACKER = "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize(
    ("layout", "files", "attempt", "seen"),
    [
        ("trl", TRL, 1, [[], "", ""]),
        ("trl", {}, 2, [[], "", ""]),
        ("trl", TRL, 2, [["--from", "at checkpoint-4, 4"], "checkpoint-4", "4"]),
        (
            "verl",
            {"global_step_20/data.pt": "x", TRACKER: ""},
            2,
            [["--from", "at global_step_20, 20"], "global_step_20", "20"],
        ),
    ],
)
def test_external_resumes_from_newest_complete_checkpoint(
    tmp_path: Path, layout: str, files: dict[str, str], attempt: int, seen: list[Any]
) -> None:
    write(tmp_path / "checkpoints", files)
    process = start(tmp_path, ["python3", "-c", TELL], f"external.layout={layout}", attempt=attempt)
    assert process.wait(60) == 0 and json.loads((tmp_path / "seen").read_text()) == seen
    (row,) = read_rows(RunDir(tmp_path).events)
    assert row["kind"] == "external/started" and row["checkpoint"] == (seen[1] or None)
    assert layout != "verl" or (tmp_path / "checkpoints" / TRACKER).read_text() == "20"


def test_external_folder_without_complete_checkpoint_is_set_aside(tmp_path: Path) -> None:
    """open-instruct would fail on it in every attempt."""
    write(tmp_path / "checkpoints", {"state/global_step4/x": ""})
    assert start(tmp_path, ["python3", "-c", TELL], "external.layout=open_instruct", attempt=2).wait(60) == 0
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["state-incomplete-2"]


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN", "lambda *_: sys.exit(0)"])
def test_external_stop_ends_children(tmp_path: Path, handler: str) -> None:
    body = (
        "import os, signal, subprocess, sys, time\n"
        "SIG_DFL, SIG_IGN = signal.SIG_DFL, signal.SIG_IGN\n"
        f"signal.signal(signal.SIGTERM, {handler})\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(os.environ['SLURM_RL_RUN_DIR'] + '/pid', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    process = start(tmp_path, ["python3", "-c", body], "job.checkpoint_lead_s=2")
    wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text(), "the child")
    assert catches(process.pid, signal.SIGUSR2)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 75 and outcome(tmp_path)["outcome"] == "checkpointed"
    pid = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{pid}/status")
    wait_until(lambda: not status.exists() or "zombie" in status.read_text(), "its end")


def test_external_rank_0_reports_for_all(tmp_path: Path) -> None:
    other = start(tmp_path, ["python3", "-c", "pass"], rank=1)
    assert other.wait(60) == 0
    run = RunDir(tmp_path)
    assert not run.attempt(1).outcome.exists() and not run.events.exists()
    assert start(tmp_path, ["python3", "-c", "pass"], rank=0).wait(60) == 0
    assert outcome(tmp_path)["outcome"] == "finished"
    assert [row["kind"] for row in read_rows(run.events)] == ["external/started"]


SLEEPS = "import os; open(os.environ['SLURM_RL_RUN_DIR'] + '/up', 'w'); import time; time.sleep(60)"
ENDS_LATER = "import os, time\nwhile not os.path.exists(os.environ['SLURM_RL_RUN_DIR'] + '/end'): time.sleep(0.05)\n"


def test_external_stopped_rank_returns_0(tmp_path: Path) -> None:
    """Else torchrun would end the other ranks, which may still be saving."""
    process = start(tmp_path, ["python3", "-c", SLEEPS], rank=0)
    wait_until((tmp_path / "up").is_file, "the program")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 0
    assert (outcome(tmp_path)["outcome"], outcome(tmp_path)["exit_code"]) == ("checkpointed", 75)


def test_external_rank_ended_by_torchrun_reports_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, ["python3", "-c", SLEEPS], rank=0)
    wait_until((tmp_path / "up").is_file, "the program")
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not RunDir(tmp_path).attempt(1).outcome.exists()


def test_external_rank_waits_for_its_own_stop(tmp_path: Path) -> None:
    process = start(tmp_path, ["python3", "-c", f"{ENDS_LATER}raise SystemExit(1)"], rank=0)
    wait_until(RunDir(tmp_path).events.exists, "the start")
    (tmp_path / "end").touch()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: not children.read_text().split(), "the end of the program")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 0 and outcome(tmp_path)["outcome"] == "checkpointed"


LIMIT = ("${limit:timestamp}", "${limit:left,60}")


def test_external_is_stopped_at_deadline_that_it_was_given(tmp_path: Path) -> None:
    deadline = time.time() + 3
    process = start(tmp_path, ["python3", "-c", f"{TELL}; f.close(); {SLEEPS}"], limit=LIMIT, save_by=deadline)
    assert process.wait(60) == 75 and time.time() >= deadline
    assert json.loads((tmp_path / "seen").read_text())[0] == [str(int(deadline)), "00:00:00:00"]
    assert (outcome(tmp_path)["outcome"], outcome(tmp_path)["at_limit"]) == ("checkpointed", True)
    assert read_rows(RunDir(tmp_path).events)[0]["save_by"] == deadline


@pytest.mark.parametrize("save_by", [None, 1.0])
def test_external_without_usable_limit_gets_no_deadline(tmp_path: Path, save_by: float | None) -> None:
    assert start(tmp_path, ["python3", "-c", TELL], limit=LIMIT, save_by=save_by).wait(60) == 0
    assert json.loads((tmp_path / "seen").read_text())[0] == [] and outcome(tmp_path)["outcome"] == "finished"


@pytest.mark.parametrize(("said", "status"), [("saved for the limit", 75), ("max steps", 0)])
def test_external_that_ends_early_for_limit_has_not_finished(tmp_path: Path, said: str, status: int) -> None:
    log = RunDir(tmp_path).attempt(1).log("driver")
    log.parent.mkdir(parents=True)
    log.write_text(said)
    process = start(tmp_path, ["python3", "-c", "pass"], limit=LIMIT, save_by=time.time() + 100)
    assert process.wait(60) == status and outcome(tmp_path)["outcome"] == ("checkpointed" if status else "finished")


def test_external_stop_waits_for_save_in_progress(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    # The remains of an earlier attempt are not waited for.
    write(root, {"global_step_2/x": "", "global_step_9/x": "", TRACKER: "1"})
    body = (
        "import os, time; os.chdir(os.environ['SLURM_RL_CHECKPOINTS']); os.mkdir('global_step_3'); time.sleep(2)\n"
        f"open('{TRACKER}', 'w').write('3'); time.sleep(60); open('late', 'w')\n"
    )
    process = start(tmp_path, ["python3", "-c", body], "external.layout=verl")
    wait_until((root / "global_step_3").is_dir, "the save")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(30) == 75
    assert (root / TRACKER).read_text() == "3" and not (root / "late").exists()
