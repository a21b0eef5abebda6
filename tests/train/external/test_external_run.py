"""Somebody else's trainer in the whole pipeline, on this machine: a script on the Ray cluster of the run."""

import json
import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.whole_run import run_cli

SCRIPT = """
import os, sys, ray

ray.init()

@ray.remote
def double(x):
    return 2 * x

assert ray.get([double.remote(i) for i in range(4)]) == [0, 2, 4, 6]
print("alive nodes:", sum(node["Alive"] for node in ray.nodes()), "resumed:", os.environ["SLURM_RL_RESUME"], flush=True)
if os.environ["SLURM_RL_RESUME"] == "0":
    os.mkdir(os.path.join(os.environ["SLURM_RL_CHECKPOINTS"], "step-3"))
    sys.exit(5)
"""


@pytest.mark.slow
def test_a_script_that_dies_is_started_again_and_told_to_resume(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "mine.py", tmp_path / "run"
    script.write_text(SCRIPT)
    words = ["+exp=command", f"external.argv=[{sys.executable},{script}]", f"run_dir={run_dir}", "job.max_failures=1"]
    run_cli(tmp_path, *words)
    run = RunDir(run_dir)
    logs = [run.attempt(number).log("driver").read_text() for number in run.attempt_numbers()]
    assert len(logs) == 2
    assert "alive nodes: 1 resumed: 0" in logs[0] and "alive nodes: 1 resumed: 1" in logs[1]
    assert json.loads(run.end.read_text())["state"] == "finished"
    ends = [row for row in read_rows(run.events) if row["kind"] == "attempt/ended"]
    assert "ended with exit status 5" in ends[0]["cause"] and ends[-1]["outcome"] == "finished"


LEAVES = """
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
open(sys.argv[1] + "/model.safetensors", "w").write("weights")
sys.exit(0 if os.environ["SLURM_RL_RESUME"] == "1" else 5)
"""


@pytest.mark.slow
def test_what_an_attempt_leaves_goes_to_the_url(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "mine.py", tmp_path / "run"
    script.write_text(LEAVES)
    words = ["+exp=command", "external.start=torchrun", f"external.argv=[{sys.executable},{script},${{plan:export}}]"]
    words += [f"run_dir={run_dir}", "job.max_failures=1", f"checkpoint.upload_url='file://{tmp_path}/bucket'"]
    run_cli(tmp_path, *words)
    copies = sorted((tmp_path / "bucket/run").iterdir())
    assert [copy.name[:10] for copy in copies] == ["attempt-1-", "attempt-2-", "export"]
    assert all((copy / "complete.json").is_file() for copy in copies)
    assert (copies[0] / "files/logs/driver.log").is_file() and (copies[2] / "files/model.safetensors").is_file()
