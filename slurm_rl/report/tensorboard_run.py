"""TensorBoard curves, written with the tensorboard package itself, so that no torch is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rl.disk import naming


class TensorBoardRun:
    """One event file an attempt; TensorBoard reads all files of the folder as one run."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = folder
        with naming(folder):
            self._writer = EventFileWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float], wall_time: float) -> None:
        """Add one point to the curve of each key."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        # Flushed: a killed attempt keeps its last step.
        self._add(Event(step=step, wall_time=wall_time, summary=Summary(value=points)))

    def purge_after(self, step: int) -> None:
        """Tell readers to drop earlier points after `step`, so that a resumed curve has no double end."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        restart = SessionLog(status=SessionLog.START)
        self._add(Event(step=step + 1, wall_time=time.time(), session_log=restart))

    def _add(self, event: Any) -> None:
        with naming(self._folder):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        with naming(self._folder):
            self._writer.close()
