"""Prometheus: an endpoint on the head node with the newest row and the number of events.

    slurm_rl_metric{run="addition-1", stage="grpo", name="reward/mean"} 0.53
    slurm_rl_step{run="addition-1", stage="grpo"} 412
    slurm_rl_row_timestamp_seconds{run="addition-1", stage="grpo"} 1795223958.8
    slurm_rl_events_total{run="addition-1", kind="checkpoint/saved"} 4

prometheus.json in the run directory, and a file in logging.prometheus.targets_dir, name the endpoint in the format of
Prometheus' file_sd_configs. There is no authentication: see docs/reference/security.md.
"""

import os
import socket
from pathlib import Path
from typing import Any

from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.sinks.stream import MetricRow, Sink, SinkContext
from slurm_rl.run_dir.jsonl import Row
from slurm_rl.run_dir.run_dir import append_event, write_json

_ADDRESSES = {"loopback": "127.0.0.1", "all": "0.0.0.0"}
METRICS = {
    "slurm_rl_metric": (("run", "stage", "name"), "newest value of a key of metrics.jsonl"),
    "slurm_rl_step": (("run", "stage"), "newest step"),
    "slurm_rl_row_timestamp_seconds": (("run", "stage"), "time of the newest row"),
}
"""Gauge -> its labels and its meaning."""
EVENTS = "slurm_rl_events"


def open_prometheus(context: SinkContext) -> Sink:
    """Start the endpoint.

    Raises:
        ConfigError: logging.prometheus.port is taken.
    """
    return PrometheusEndpoint(context)


class PrometheusEndpoint(Sink):
    """An HTTP server in threads of the trainer."""

    wants_events = True

    def __init__(self, context: SinkContext) -> None:
        prometheus = import_heavy("prometheus_client", "logging.prometheus needs prometheus_client, which Ray brings")
        registry = prometheus.CollectorRegistry()
        self._name = context.run.path.name
        self._gauges = {
            name: prometheus.Gauge(name, text, labels, registry=registry) for name, (labels, text) in METRICS.items()
        }
        self._events = prometheus.Counter(EVENTS, "number of events by kind", ("run", "kind"), registry=registry)
        self._server = _start(prometheus, registry, context)
        host = socket.gethostname() if context.logging.prometheus.address == "all" else "127.0.0.1"
        target = f"{host}:{self._server.server_port}"
        folder = context.logging.prometheus.targets_dir
        self._files = [context.run.prometheus, *([Path(folder) / f"{self._name}.json"] if folder else [])]
        for file in self._files:
            write_json(file, [{"targets": [target], "labels": {"run_dir": str(context.run.path)}}])
        append_event(context.run, "prometheus/ready", url=f"http://{target}/metrics")

    def log(self, row: MetricRow) -> None:
        metric, step, stamp = self._gauges.values()
        for key, value in row.values.items():
            metric.labels(self._name, row.stage, key).set(value)
        step.labels(self._name, row.stage).set(row.step)
        stamp.labels(self._name, row.stage).set(row.stamp)

    def event(self, event: Row) -> None:
        self._events.labels(self._name, str(event.get("kind"))).inc()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for file in self._files:
            file.unlink(missing_ok=True)


def _start(prometheus: Any, registry: Any, context: SinkContext) -> Any:
    from slurm_rl.rewards.supervise import choose_ports  # numpy

    config = context.logging.prometheus
    ports = [config.port] if config.port else [*choose_ports(os.environ), 0]
    for port in ports:
        try:
            return prometheus.start_http_server(port, addr=_ADDRESSES[config.address], registry=registry)[0]
        except OSError as error:
            last = error
    raise ConfigError(
        "logging.prometheus.port must be free on the head node",
        seen=f"{config.port} ({last.strerror})",
        action="logging.prometheus.port=null for a free one",
    )
