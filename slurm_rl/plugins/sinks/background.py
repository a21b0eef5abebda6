"""A sink in a thread of its own, for servers that may be slow or away."""

import threading
import time
from collections import deque
from collections.abc import Callable

from slurm_rl.plugins.sinks.stream import MetricRow, Sink, explain
from slurm_rl.run_dir.jsonl import Row
from slurm_rl.run_dir.run_dir import RunDir, append_event

CLOSE_S = 30.0
"""Time at the end of an attempt for rows that are still queued."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MOST_QUEUED = 10_000


class Background(Sink):
    """Queue rows and events, and retry a failed call until it succeeds or the sink closes.

    The first failure is an event, so is the number of rows that were dropped at the end or from a full queue.
    """

    def __init__(self, run: RunDir, name: str, sink: Sink) -> None:
        self._run, self._name, self._sink = run, name, sink
        self.wants_events = sink.wants_events
        self._queue: deque[Callable[[], None]] = deque()
        self._work, self._closing = threading.Event(), threading.Event()
        self._num_dropped = 0
        self._has_failed = False
        self._thread = threading.Thread(target=self._send_all, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def log(self, row: MetricRow) -> None:
        self._put(lambda: self._sink.log(row))

    def event(self, event: Row) -> None:
        self._put(lambda: self._sink.event(event))

    def rewind(self, step: int) -> None:
        self._put(lambda: self._sink.rewind(step))

    def close(self) -> None:
        self._closing.set()
        self._work.set()
        self._thread.join(CLOSE_S)
        if lost := self._num_dropped + len(self._queue):
            append_event(self._run, "sink/lost", sink=self._name, rows=lost)

    def _put(self, call: Callable[[], None]) -> None:
        if len(self._queue) >= _MOST_QUEUED:
            self._num_dropped += 1
            return
        self._queue.append(call)
        self._work.set()

    def _send_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._work.wait()
            self._work.clear()
            while self._queue:
                try:
                    self._queue[0]()
                    self._queue.popleft()
                    pause_s = _FIRST_PAUSE_S
                except Exception as error:
                    if not self._has_failed:
                        self._has_failed = True
                        append_event(self._run, "sink/failed", sink=self._name, cause=explain(error))
                    # At the end each failure still waits, within the deadline of `close`.
                    self._pause(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if self._closing.is_set():
                self._sink.close()
                return

    def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            time.sleep(min(seconds, _FIRST_PAUSE_S))
        else:
            self._closing.wait(seconds)
