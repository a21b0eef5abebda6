"""Sinks: copies of a run's metrics and events in other systems. The files of the run directory stay the truth.

    class MySink(Sink):                     one file in plugins/sinks, and its row in SINKS
        def log(self, row): ...             a row of metrics.jsonl
        def event(self, event): ...         a line of events.jsonl, if `wants_events`

A failure of a sink is one event, and never stops or slows the training: a sink that talks to a server is wrapped in
plugins/sinks/background.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from slurm_rl.config.job import LoggingConfig
from slurm_rl.config.overrides import names_a_secret
from slurm_rl.config.user_files.load import load_function
from slurm_rl.run_dir.jsonl import Row, RowTail
from slurm_rl.run_dir.run_dir import RunDir, append_event

SINKS: Final = {
    "tensorboard": "slurm_rl.plugins.sinks.tensorboard_run:TensorBoardRun",
    "wandb": "slurm_rl.plugins.sinks.wandb_run:open_sink",
    "mlflow": "slurm_rl.plugins.sinks.mlflow_run:open_mlflow",
    "prometheus": "slurm_rl.plugins.sinks.prometheus:open_prometheus",
    "otel": "slurm_rl.plugins.sinks.otel:open_otel",
}
"""Key below `logging` -> function of a SinkContext; it returns a Sink, or None if there is nothing to send to."""
_POLL_S = 1.0
_SHORTEST_SECRET = 4
_SHOWN_CHARS = 1000


@dataclass(frozen=True)
class MetricRow:
    """A row of metrics.jsonl."""

    step: int
    stage: str
    values: Mapping[str, float]
    stamp: float


@dataclass(frozen=True)
class SinkContext:
    """Arguments of a function that opens a sink."""

    run: RunDir
    logging: LoggingConfig
    name: str
    """Name of the run."""
    config: Mapping[str, Any]
    """The whole config, as plain values."""


class Sink:
    """One destination; every method may raise, after which the sink is not called any more."""

    wants_events = False

    def log(self, row: MetricRow) -> None:
        """Add a row; rows of an earlier attempt's steps may come again."""

    def event(self, event: Row) -> None:
        """Add an event; an attempt starts again with the first one of the run."""

    def rewind(self, step: int) -> None:
        """Drop points after `step`, which come again."""

    def close(self) -> None:
        """Flush within a deadline."""


def open_stream(run: RunDir, logging: LoggingConfig, name: str, config: Mapping[str, Any]) -> Stream:
    return Stream(SinkContext(run, logging, name, config))


class Stream:
    """Passes rows and events to every configured sink."""

    def __init__(self, context: SinkContext) -> None:
        self._run = context.run
        self._sinks: dict[str, Sink] = {}
        for name, function in SINKS.items():
            if is_on(getattr(context.logging, name)):
                self._guard(name, partial(self._open, name, function, context))
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if any(sink.wants_events for sink in self._sinks.values()):
            self._thread = threading.Thread(target=self._follow, name="events", daemon=True)
            self._thread.start()

    def log(self, step: int, stage: str, values: Mapping[str, float], stamp: float) -> None:
        row = MetricRow(step, stage, values, stamp)
        self._each(lambda sink: sink.log(row))

    def rewind(self, step: int) -> None:
        self._each(lambda sink: sink.rewind(step))

    def close(self) -> None:
        """Pass on the last events and close every sink."""
        self._closing.set()
        if self._thread:
            self._thread.join(10 * _POLL_S)
        self._each(lambda sink: sink.close())

    def _open(self, name: str, function: str, context: SinkContext) -> None:
        sink = load_function(function)(context)
        if sink is not None:
            self._sinks[name] = sink

    def _follow(self) -> None:
        tail, is_last = RowTail(self._run.events), False
        while not is_last:
            is_last = self._closing.wait(_POLL_S)
            for event in tail.read_new():
                for name, sink in list(self._sinks.items()):
                    if sink.wants_events:
                        self._guard(name, partial(sink.event, event))

    def _each(self, call: Callable[[Sink], object]) -> None:
        for name, sink in list(self._sinks.items()):
            self._guard(name, partial(call, sink))

    def _guard(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self._sinks.pop(name, None)
            append_event(self._run, "sink/failed", sink=name, cause=explain(error))


def is_on(config: object) -> bool:
    """Return whether a section of `logging` switches its sink on."""
    return bool(getattr(config, "is_on", config))


def explain(error: BaseException) -> str:
    """Return the error as text, without the values of secret variables."""
    text = f"{type(error).__name__}: {error}"
    for name, value in os.environ.items():
        if names_a_secret(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"<{name}>")
    return text[:_SHOWN_CHARS]  # last, since a cut could leave a part of a secret
