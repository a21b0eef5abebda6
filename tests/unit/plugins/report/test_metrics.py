import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.config.job import LoggingConfig, WandbConfig
from slurm_rl.errors import TrainingError
from slurm_rl.run_dir.jsonl import append_row, read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.step_log import StepLog
from slurm_rl.trainers.common.metrics_log import MetricsLogger, keep_rows_up_to

DISABLED = LoggingConfig(wandb=WandbConfig(mode="disabled"))


@pytest.fixture
def logger(run: RunDir) -> Iterator[MetricsLogger]:
    logger = MetricsLogger(run, DISABLED, "addition", {})
    yield logger
    logger.close()


def test_row_keeps_all_digits(run: RunDir, logger: MetricsLogger) -> None:
    logger.log(3, "grpo", {"reward/mean": 0.1 + 0.2, "kl/reference": np.float32(0.1), "tokens/trained": 17})
    line = run.metrics.read_text()
    assert line.startswith(
        '{"step": 3, "stage": "grpo", "reward/mean": 0.30000000000000004, '
        '"kl/reference": 0.10000000149011612, "tokens/trained": 17, "time/stamp": '
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan"), "0.5", None])
def test_nonfinite_number_is_refused_by_name(run: RunDir, logger: MetricsLogger, bad: float) -> None:
    with pytest.raises(TrainingError, match=r"'policy/loss' of step 8 must be a finite number; got"):
        logger.log(8, "grpo", {"reward/mean": 0.5, "policy/loss": bad})
    assert not run.metrics.exists()


def test_earlier_step_is_refused_until_rewind(run: RunDir, logger: MetricsLogger) -> None:
    """Also by the logger of the next attempt. A rewind covers the samples, too."""
    logger.log(5, "warmup", {})
    logger.log(5, "eval", {})
    append_row(run.samples, {"step": 5, "completion": "7"})
    second = MetricsLogger(run, DISABLED, "addition", {})
    for one in (logger, second):
        with pytest.raises(TrainingError, match=r"step 5 .* got 1"):
            one.log(1, "grpo", {})
    second.close()
    logger.rewind(0)
    logger.log(1, "grpo", {})
    assert [row["step"] for path in (run.metrics, run.samples) for row in read_rows(path)] == [1]


def test_rewind_keeps_bytes_of_kept_rows_and_drops_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # Unusual spacing and digits that a JSON round trip would change.
    kept = [b'{"step":  1, "x": 0.10}\n', b'{"step": 2, "x": 1e-07, "y": "\\u00e9"}\n', b'{"step": 2, "z": 3}\n']
    path.write_bytes(b"".join([kept[0], b'{"step": 7}\n', b"\xff\n", *kept[1:], b'{"step": 3}\n{"st']))
    keep_rows_up_to(path, 2)
    assert path.read_bytes() == b"".join(kept)
    assert [child.name for child in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_damaged_line_counts_as_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\x00\n{"step": 2}\n{"step": 2, "eval": 1}\n')
    keep_rows_up_to(path, 2, num_rows=3)
    assert path.read_bytes() == b'{"step": 1}\n{"st\x00\n{"step": 2}\n'
    inode = path.stat().st_ino
    keep_rows_up_to(path, 2, num_rows=3)
    assert path.stat().st_ino == inode, "nothing to drop"


@pytest.mark.parametrize(
    ("num_first", "second", "rewind_to", "curve"),
    [
        (6, range(3, 8), 2, [(step, float(step > 2)) for step in range(8)]),
        (3, range(2), -1, [(0, 1.0), (1, 1.0)]),  # no checkpoint
    ],
)
def test_tensorboard_shows_one_curve_after_resume(
    run: RunDir, num_first: int, second: range, rewind_to: int, curve: list[tuple[int, float]]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _log_steps(run, range(num_first), value=0.0, rewind_to=-1)
    # TensorBoard sorts files by name: the second, then a counter of this process, in which 10 is before 9.
    time.sleep(1.0)
    _log_steps(run, second, value=1.0, rewind_to=rewind_to)
    events = EventAccumulator(str(run.tensorboard)).Reload()
    assert [(point.step, point.value) for point in events.Scalars("reward/mean")] == curve


def _log_steps(run: RunDir, steps: range, *, value: float, rewind_to: int) -> None:
    logger = MetricsLogger(run, DISABLED, "addition", {})
    logger.rewind(rewind_to)
    for step in steps:
        logger.log(step, "grpo", {"reward/mean": value})
    logger.close()


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


def test_unwritable_folder_warns_once(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    run.attempts.write_text("no folder")
    log = StepLog(run.attempt(1).steps)
    log.add(1, "grpo")
    log.add(2, "grpo")
    assert capsys.readouterr().err.count("times of steps could not be written") == 1
