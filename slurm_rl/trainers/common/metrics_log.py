"""Metrics: one row per step in metrics.jsonl and in every sink (plugins/sinks/stream.py).

    {"step": 412, "stage": "grpo", "reward/mean": 0.53, ..., "time/step_s": 2.1, "time/stamp": 1795223958.8}

Steps count over the whole run: after 400 warm-up steps the first GRPO step is 401. An evaluation has the number of the
step before it. Except for `time/`, all values are equal digit for digit in a resumed run.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rl.config.job import LoggingConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import TrainingError
from slurm_rl.run_dir.jsonl import parse_row, read_rows
from slurm_rl.run_dir.row_text import render_row
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_row, write_bytes
from slurm_rl.run_dir.step_log import StepLog

STAMP = "time/stamp"


class MetricsLogger:
    """Writes the metrics of a run; there must be one writer.

    At the start of every attempt call `rewind` with the step of the loaded checkpoint, or -1. Log the rows of a step
    before its checkpoint is saved, or a crash in between loses them.
    """

    def __init__(
        self,
        run: RunDir,
        logging: LoggingConfig,
        run_name: str,
        config_dict: dict[str, Any],
        attempt: AttemptDir | None = None,
    ) -> None:
        self._run = run
        self.steps = StepLog(None if attempt is None else attempt.steps)
        self._last_step = _last_step(run.metrics)
        self._sinks = load_function("slurm_rl.plugins.sinks.stream:open_stream")(run, logging, run_name, config_dict)

    def log(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Append a row; `values` leaves out missing values."""
        if step < self._last_step:
            raise TrainingError(
                f"metrics of step {self._last_step} are logged, so the next step must not be before it",
                seen=step,
                action="count steps on from warm-up into GRPO, and call rewind after loading a checkpoint",
            )
        numbers = {key: _finite(key, value, step) for key, value in values.items()}
        stamp = numbers.pop(STAMP, time.time())
        append_row(self._run, self._run.metrics, {"step": step, "stage": stage, **numbers, STAMP: stamp})
        self._last_step = step
        # For `logs -f`.
        print(render_row(step, stage, numbers, stamp), flush=True)
        self._sinks.log(step, stage, numbers, stamp)
        self.steps.add(step, stage, numbers)

    def rewind(self, step: int, num_rows: int | None = None) -> None:
        """Remove the rows after `step`, the step of the loaded checkpoint.

        Args:
            num_rows: length of metrics.jsonl at that checkpoint; a later evaluation may have the same step.
        """
        self._run.require_ours()
        keep_rows_up_to(self._run.samples, step)
        keep_rows_up_to(self._run.metrics, step, num_rows)
        self._last_step = _last_step(self._run.metrics)
        self._sinks.rewind(step)

    def close(self) -> None:
        """Flush and close."""
        self._sinks.close()


def keep_rows_up_to(path: Path, step: int, num_rows: int | None = None) -> None:
    """Drop the rows with a larger step, those after the first `num_rows`, and an incomplete last line.

    Other lines keep their bytes; a damaged line is treated like the row before it.
    """
    if not path.is_file():
        return
    before, kept, keeps = path.read_bytes(), [], True
    for line in before.split(b"\n")[:-1]:
        row = parse_row(line)
        keeps = row["step"] <= step if row and "step" in row else keeps
        if keeps:
            kept.append(line + b"\n")
    after = b"".join(kept[:num_rows])
    if after != before:
        write_bytes(path, after)


def _last_step(path: Path) -> int:
    rows = read_rows(path)
    return int(rows[-1]["step"]) if rows else -1


def _finite(key: str, value: float, step: int) -> float:
    """Return a plain Python number, also for a numpy or tensor scalar."""
    number: float = value.item() if hasattr(value, "item") else value
    if isinstance(number, (int, float)) and math.isfinite(number):
        return number
    raise TrainingError(
        f"metric {key!r} of step {step} must be a finite number",
        seen=number,
        action="look at policy/grad_norm and mismatch/max of the steps before; a lower optim.lr often helps",
    )
