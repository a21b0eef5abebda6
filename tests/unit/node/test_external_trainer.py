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

from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.ends import newest_step
from slurm_rl.node.driver import catches
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.task import ExternalPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

RESUME = ("--from", "at ${checkpoint:name}, ${checkpoint:step}")


def start(
    run_dir: Path, argv: list[str], *more: str, attempt: int = 1, rank: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the program; with a rank, as torchrun does."""
    more = (*more, "external.start=torchrun") if rank is not None else more
    words = ["+exp=command", *more]
    plan = build_plan(load_config(words), str(run_dir), SubmitFacts(python=sys.executable, num_cpus=2, version="0"))
    layout = plan.external.layout if plan.external else None
    plan = replace(plan, external=ExternalPlan(tuple(argv), (*argv, *RESUME), layout))
    run = RunDir(run_dir)
    run.attempt(attempt).logs.mkdir(parents=True, exist_ok=True)
    write_json(run.plan, plan.to_json())
    return subprocess.Popen(
        [*plan.driver_argv, "--attempt", str(attempt)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONSAFEPATH": "1", "RANK": str(rank)},
    )


def outcome(run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = read_json(RunDir(run_dir).attempt(attempt).outcome)
    return found


@pytest.mark.parametrize(
    ("body", "status", "wanted", "cause"),
    [
        ("pass", 0, "finished", ""),
        ("raise SystemExit(3)", 1, "failed", "python3 ended with exit status 3; see driver.log"),
        ("import os; os.kill(os.getpid(), 9)", 1, "failed", "python3 was killed by SIGKILL"),
    ],
)
def test_external_end_is_reported_in_outcome(tmp_path: Path, body: str, status: int, wanted: str, cause: str) -> None:
    assert start(tmp_path, ["python3", "-c", body]).wait(60) == status
    assert outcome(tmp_path)["outcome"] == wanted and cause in outcome(tmp_path).get("cause", "")


def test_external_names_missing_program(tmp_path: Path) -> None:
    assert start(tmp_path, ["no-such-program"]).wait(60) == 1
    assert "no-such-program could not be started: No such file" in outcome(tmp_path)["cause"]


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
    assert newest_step(RunDir(run_dir)) == 7
    assert [row["kind"] for row in read_rows(RunDir(run_dir).events)] == ["external/started"]


# Writes its last arguments and the checkpoint in its environment.
TELL = "import json, os, sys; e = os.environ; f = open(e['SLURM_RL_RUN_DIR'] + '/seen', 'w'); " + (
    "json.dump([sys.argv[1:], e['SLURM_RL_CHECKPOINT'], e['SLURM_RL_CHECKPOINT_STEP']], f)"
)


@pytest.mark.parametrize(
    ("folders", "attempt", "seen"),
    [
        (["checkpoint-4"], 1, [[], "", ""]),
        ([], 2, [[], "", ""]),
        (["checkpoint-4", "checkpoint-20"], 2, [["--from", "at checkpoint-4, 4"], "checkpoint-4", "4"]),
    ],
)
def test_external_resumes_from_newest_complete_checkpoint(
    tmp_path: Path, folders: list[str], attempt: int, seen: list[Any]
) -> None:
    for name in folders:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    if folders:
        (tmp_path / "checkpoints/checkpoint-4/trainer_state.json").write_text('{"global_step": 4}')
    process = start(tmp_path, ["python3", "-c", TELL], "external.layout=trl", attempt=attempt)
    assert process.wait(60) == 0 and json.loads((tmp_path / "seen").read_text()) == seen
    (row,) = read_rows(RunDir(tmp_path).events)
    assert row["kind"] == "external/started" and row["checkpoint"] == (seen[1] or None)


def test_external_repairs_empty_tracker_file(tmp_path: Path) -> None:
    """verl reads it first and fails if it is empty."""
    (tmp_path / "checkpoints/global_step_20").mkdir(parents=True)
    (tmp_path / "checkpoints/global_step_20/data.pt").write_text("x")
    tracker = tmp_path / "checkpoints/latest_checkpointed_iteration.txt"
    tracker.write_text("")
    assert start(tmp_path, ["python3", "-c", TELL], "external.layout=verl", attempt=2).wait(60) == 0
    assert json.loads((tmp_path / "seen").read_text())[1] == "global_step_20" and tracker.read_text() == "20"


def test_external_stopped_with_status_0_is_checkpointed(tmp_path: Path) -> None:
    body = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "open(os.environ['SLURM_RL_RUN_DIR'] + '/pid', 'w').write('1')\n"
        "while True: time.sleep(0.1)\n"
    )
    process = start(tmp_path, ["python3", "-c", body])
    wait_for(lambda: (tmp_path / "pid").is_file())
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 75 and outcome(tmp_path)["outcome"] == "checkpointed"


@pytest.mark.parametrize("deaf", [False, True])
def test_external_stop_ends_children(tmp_path: Path, deaf: bool) -> None:
    body = (
        "import os, signal, subprocess, sys, time\n"
        f"if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(os.environ['SLURM_RL_RUN_DIR'] + '/pid', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    process = start(tmp_path, ["python3", "-c", body], "job.checkpoint_lead_s=2")
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text() != "")
    assert catches(process.pid, signal.SIGUSR2)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 75
    assert outcome(tmp_path)["outcome"] == "checkpointed"
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text())


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
    wait_for((tmp_path / "up").is_file)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 0
    assert (outcome(tmp_path)["outcome"], outcome(tmp_path)["exit_code"]) == ("checkpointed", 75)


def test_external_rank_ended_by_torchrun_reports_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, ["python3", "-c", SLEEPS], rank=0)
    wait_for((tmp_path / "up").is_file)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not RunDir(tmp_path).attempt(1).outcome.exists()


def test_external_rank_waits_for_its_own_stop(tmp_path: Path) -> None:
    process = start(tmp_path, ["python3", "-c", f"{ENDS_LATER}raise SystemExit(1)"], rank=0)
    wait_for(lambda: RunDir(tmp_path).events.exists())
    (tmp_path / "end").touch()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: not children.read_text().split())
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 0 and outcome(tmp_path)["outcome"] == "checkpointed"


@pytest.mark.parametrize(
    ("folder", "step"),
    [
        ("step-4", 4),
        ("global_step_30", 30),
        ("global_step8", 8),
        ("_actor/global_step5", 5),
        ("r1/checkpoints/12", 12),
        ("_actor/x", -1),
    ],
)
def test_newest_step_reads_checkpoints_of_each_trainer(tmp_path: Path, folder: str, step: int) -> None:
    (tmp_path / "checkpoints" / folder).mkdir(parents=True)
    assert newest_step(RunDir(tmp_path)) == step


def wait_for(condition: Any) -> None:
    give_up = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)
