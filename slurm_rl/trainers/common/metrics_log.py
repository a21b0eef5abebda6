"""Metrics: one row per step in metrics.jsonl, TensorBoard and Weights & Biases.

    {"step": 412, "stage": "grpo", "reward/mean": 0.53, ..., "time/step_s": 2.1, "time/stamp": 1795223958.8}

Steps count over the whole run: after 400 warm-up steps the first GRPO step is 401. An evaluation has the number of the
step before it. Except for `time/`, all values are equal digit for digit in a resumed run.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rl.config.job import WandbConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import TrainingError
from slurm_rl.run_dir.io_errors import annotate_path
from slurm_rl.run_dir.jsonl import parse_row, read_rows
from slurm_rl.run_dir.row_text import render_row
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_row, write_bytes
from slurm_rl.run_dir.step_log import StepLog


class TensorBoardRun:
    """Event file of an attempt; TensorBoard reads all files of the folder as one run."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = folder
        with annotate_path(folder):
            self._writer = EventFileWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float], wall_time: float) -> None:
        """Add a point to the curve of each key."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        # Flushed: a killed attempt keeps its last step.
        self._add(Event(step=step, wall_time=wall_time, summary=Summary(value=points)))

    def purge_after(self, step: int) -> None:
        """Make readers drop earlier points after `step`."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        restart = SessionLog(status=SessionLog.START)
        self._add(Event(step=step + 1, wall_time=time.time(), session_log=restart))

    def _add(self, event: Any) -> None:
        with annotate_path(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        with annotate_path(self._folder):
            self._writer.close()


STAMP = "time/stamp"


class MetricsLogger:
    """Writes the metrics of a run; there must be one writer.

    At the start of every attempt call `rewind` with the step of the loaded checkpoint, or -1. Log the rows of a step
    before its checkpoint is saved, or a crash in between loses them.
    """

    def __init__(
        self,
        run: RunDir,
        wandb: WandbConfig,
        run_name: str,
        config_dict: dict[str, Any],
        attempt: AttemptDir | None = None,
    ) -> None:
        from slurm_rl.trainers.common.wandb_run import open_wandb

        self._run = run
        self.steps = StepLog(None if attempt is None else attempt.steps)
        self._last_step = _last_step(run.metrics)
        self._tensorboard = TensorBoardRun(run.tensorboard)
        self._wandb = open_wandb(run, wandb, run_name, config_dict)

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
        self._tensorboard.log(step, numbers, stamp)
        if self._wandb:
            self._wandb.log(step, numbers)
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
        # W&B ignores rows of steps that it has, and ours are equal.
        self._tensorboard.purge_after(step)

    def close(self) -> None:
        """Flush and close."""
        self._tensorboard.close()
        if self._wandb:
            self._wandb.sum_up(load_function("slurm_rl.plugins.goodput.read:summarize_goodput")(self._run))
            self._wandb.close()


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
