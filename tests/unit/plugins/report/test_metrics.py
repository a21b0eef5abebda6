from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slurm_rl.config.job import WandbConfig
from slurm_rl.errors import TrainingError
from slurm_rl.run_dir.jsonl import append_row, read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger, keep_rows_up_to

DISABLED = WandbConfig(mode="disabled")


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
    logger.log(5, "warmup", {})
    logger.log(5, "eval", {})
    with pytest.raises(TrainingError, match=r"step 5 .* got 1"):
        logger.log(1, "grpo", {})
    logger.rewind(0)
    logger.log(1, "grpo", {})
    assert [row["step"] for row in read_rows(run.metrics)] == [1]


def test_second_attempt_knows_steps_of_first(run: RunDir, logger: MetricsLogger) -> None:
    logger.log(5, "grpo", {})
    second = MetricsLogger(run, DISABLED, "addition", {})
    with pytest.raises(TrainingError, match="step 5"):
        second.log(4, "grpo", {})
    second.close()


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


def test_rewind_covers_samples_too(run: RunDir, logger: MetricsLogger) -> None:
    for step in (1, 2, 3):
        logger.log(step, "grpo", {})
        append_row(run.samples, {"step": step, "completion": "7"})
    logger.rewind(1)
    assert [row["step"] for path in (run.metrics, run.samples) for row in read_rows(path)] == [1, 1]


def test_rewind_with_nothing_to_drop_changes_nothing(run: RunDir, logger: MetricsLogger) -> None:
    logger.log(1, "grpo", {})
    before = run.metrics.stat().st_ino
    logger.rewind(1)
    assert run.metrics.stat().st_ino == before


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
    _log_steps(run, second, value=1.0, rewind_to=rewind_to)
    events = EventAccumulator(str(run.tensorboard)).Reload()
    assert [(point.step, point.value) for point in events.Scalars("reward/mean")] == curve


def _log_steps(run: RunDir, steps: range, *, value: float, rewind_to: int) -> None:
    logger = MetricsLogger(run, DISABLED, "addition", {})
    logger.rewind(rewind_to)
    for step in steps:
        logger.log(step, "grpo", {"reward/mean": value})
    logger.close()
