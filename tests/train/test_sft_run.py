"""SFT over two ranks of torchrun on this machine, by the command line: killed, interrupted, resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_rl.node.processes import attempt_mark, find_marked
from slurm_rl.run_dir import RunDir, read_json, read_jsonl
from tests.whole_run import exact_rows

WORDS = (
    "+exp=sft_tiny",
    "policy.num_workers=2",
    "data.largest_addend=9",
    "data.num_eval=20",
    "supervised.max_steps=60",
    "supervised.batch_size=64",
    "checkpoint.every=5",
    "eval.every=30",
    "job.max_failures=1",
    "logging.wandb.mode=disabled",
)


def start(run: Path, verb: str = "submit") -> subprocess.Popen[str]:
    words = [str(run)] if verb == "resume" else [f"run_dir={run}", *WORDS]
    return subprocess.Popen(
        [sys.executable, "-m", "slurm_rl", verb, *words],
        cwd=run.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def has_saved(run: RunDir, attempt: int) -> bool:
    """The attempt has trained and has a checkpoint of its own."""
    events = list(read_jsonl(run.events))
    starts = [at for at, row in enumerate(events) if row["kind"] == "trainer/started"]
    return len(starts) >= attempt and any(row["kind"] == "checkpoint/saved" for row in events[starts[attempt - 1] :])


def test_killed_and_interrupted_it_logs_the_numbers_of_a_run_that_nobody_disturbed(tmp_path: Path) -> None:
    whole, harmed = tmp_path / "whole", tmp_path / "harmed"
    process = start(whole)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    run = RunDir(harmed)
    process = start(harmed)
    wait_for(lambda: has_saved(run, 1), "the first attempt to save")
    key = read_json(run.attempt(1).start)["job"]
    mark = attempt_mark(run, key, 1, 0)
    assert len(find_marked(mark)) >= 3, "torchrun and its two ranks"
    os.kill(read_json(run.attempt(1).node(0))["pid"], signal.SIGKILL)
    wait_for(lambda: find_marked(mark) == [], "the ranks to die with torchrun, and torchrun with its agent", 10)
    wait_for(lambda: has_saved(run, 2), "the second attempt to save")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert read_json(run.attempt(2).outcome)["outcome"] == "checkpointed"

    process = start(harmed, "resume")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert exact_rows(harmed) == exact_rows(whole)
    assert (harmed / "export" / "model.safetensors").read_bytes() == (
        whole / "export" / "model.safetensors"
    ).read_bytes()
    assert not (harmed / "secrets").exists(), "there is no Ray, so there is no token"
