"""SFT from the command line with two local torchrun ranks: killed, interrupted, resumed.

Other tests in `make test`: ranks killed on Slurm, tests/slurm/test_torchrun.py; a stop in a rank, test_supervised.py;
Ctrl-C, tests/slurm/test_ends.py.
"""

import os
import signal
from pathlib import Path

import pytest

from slurm_rl.node.processes import attempt_mark, find_marked
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.whole_run import exact_rows, finish, start_run, train, wait_for

pytestmark = pytest.mark.slow

WORDS = (
    "+exp=sft_tiny",
    "policy.num_workers=2",
    "data.largest_addend=9",
    "data.num_eval=20",
    # 80 steps, so that a signal after the first save arrives before the end.
    "supervised.batch_size=8",
    "supervised.num_epochs=8",
    "checkpoint.interval=5",
    "eval.interval=50",
    "job.max_failures=1",
    "logging.wandb.mode=disabled",
)


def has_saved(run: RunDir, attempt: int) -> bool:
    """Return whether the attempt has trained and saved a checkpoint."""
    events = read_rows(run.events)
    starts = [at for at, row in enumerate(events) if row["kind"] == "trainer/started"]
    return len(starts) >= attempt and any(row["kind"] == "checkpoint/saved" for row in events[starts[attempt - 1] :])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder, base=WORDS)
    return folder


def test_interrupted_sft_has_identical_metrics(whole: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "interrupted")
    process = start_run(run.path, base=WORDS)
    wait_for(lambda: has_saved(run, 1), "the first attempt to save")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert read_json(run.attempt(1).outcome)["outcome"] == "checkpointed"
    finish(start_run(run.path, verb="resume"))
    require_equal(run.path, whole)


def test_sft_with_killed_agent_retries_with_identical_metrics(whole: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "killed")
    process = start_run(run.path, base=WORDS)
    wait_for(lambda: has_saved(run, 1), "the first attempt to save")
    key = read_json(run.attempt(1).start)["job"]
    mark = attempt_mark(run, key, 1, 0)
    assert len(find_marked(mark)) >= 3, "torchrun and its two ranks"
    os.kill(read_json(run.attempt(1).node(0))["pid"], signal.SIGKILL)
    wait_for(lambda: find_marked(mark) == [], "the ranks to die with torchrun, and torchrun with its agent")
    finish(process)
    require_equal(run.path, whole)


def require_equal(harmed: Path, whole: Path) -> None:
    assert not (harmed / "secrets").exists(), "there is no Ray, so there is no token"
    assert exact_rows(harmed) == exact_rows(whole)
    exported = [(folder / "export" / "model.safetensors").read_bytes() for folder in (harmed, whole)]
    assert exported[0] == exported[1]
