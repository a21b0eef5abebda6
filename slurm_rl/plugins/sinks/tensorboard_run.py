"""TensorBoard: an event file per attempt; TensorBoard reads all files of the folder as one run."""

import time
from typing import Any

from slurm_rl.plugins.sinks.stream import MetricRow, Sink, SinkContext
from slurm_rl.run_dir.io_errors import annotate_path


class TensorBoardRun(Sink):
    """Event file of an attempt, on the disk of the run."""

    def __init__(self, context: SinkContext) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = context.run.tensorboard
        with annotate_path(self._folder):
            self._writer = EventFileWriter(str(self._folder))

    def log(self, row: MetricRow) -> None:
        """Add a point to the curve of each key."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=key, simple_value=value) for key, value in row.values.items()]
        # Flushed: a killed attempt keeps its last step.
        self._add(Event(step=row.step, wall_time=row.stamp, summary=Summary(value=points)))

    def rewind(self, step: int) -> None:
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
