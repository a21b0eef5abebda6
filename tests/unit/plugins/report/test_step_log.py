import time

import pytest

from slurm_rl.config.job import WandbConfig
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.step_log import StepLog
from slurm_rl.trainers.common.metrics_log import MetricsLogger

DISABLED = WandbConfig(mode="disabled")


def test_rows_are_contiguous_and_survive_rewind(run: RunDir) -> None:
    attempt = run.attempt(1)
    logger = MetricsLogger(run, DISABLED, "addition", {}, attempt)
    before = time.time()
    for step in (1, 2, 3):
        logger.log(step, "grpo", {"time/train_s": 0.25, "time/step_s": 0.5, "time/tokens_per_s": 9.0, "reward/mean": 1})
    logger.steps.add(3, "save")
    logger.rewind(1)
    logger.close()
    assert [row["step"] for row in read_rows(run.metrics)] == [1]
    rows = read_rows(attempt.steps)
    assert [(row["step"], row["stage"], row["phases"]) for row in rows] == [
        (1, "grpo", {"train": 0.25}),
        (2, "grpo", {"train": 0.25}),
        (3, "grpo", {"train": 0.25}),
        (3, "save", {}),
    ]
    ends = [row["start"] + row["seconds"] for row in rows]
    assert before - 1 < rows[0]["start"] and ends[-1] < time.time() + 1
    # Between two rows, only the write of one row takes time.
    assert all(abs(row["start"] - end) < 1.0 for row, end in zip(rows[1:], ends, strict=False))


def test_time_before_mark_is_excluded(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StepLog(run.attempt(1).steps)
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    log.mark()
    now[0] = 107.0
    log.mark()
    now[0] = 109.5
    log.add(1, "grpo")
    assert [row["seconds"] for row in read_rows(run.attempt(1).steps)] == [2.5]


def test_loop_without_attempt_writes_nothing(run: RunDir) -> None:
    StepLog(None).add(1, "grpo")
    assert not run.attempts.exists()


def test_unwritable_folder_warns_once(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    run.attempts.write_text("no folder")
    log = StepLog(run.attempt(1).steps)
    log.add(1, "grpo")
    log.add(2, "grpo")
    assert capsys.readouterr().err.count("times of steps could not be written") == 1
