"""OpenTelemetry: rows as gauges and events as log records, by OTLP over HTTP.

Names and labels are those of the Prometheus endpoint. Headers with credentials come from OTEL_EXPORTER_OTLP_HEADERS.
The number of sent events is kept in the run directory; the controller sends those after the trainer's end.
"""

from collections.abc import Mapping
from typing import Any

from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.errors import RunDirError
from slurm_rl.plugins.sinks.background import Background
from slurm_rl.plugins.sinks.stream import MetricRow, Sink, SinkContext
from slurm_rl.run_dir.event_text import describe_event
from slurm_rl.run_dir.jsonl import Row
from slurm_rl.run_dir.run_dir import write_text

_HTTP = "opentelemetry.exporter.otlp.proto.http"
_TIMEOUT_S = 10.0
_BAD = ("failed", "died", "killed", "crashed", "hung", "lost", "damaged", "out_of_memory")


def open_otel(context: SinkContext) -> Sink:
    """Return the sink; the collector is contacted in its thread."""
    return Background(context.run, "otel", OtelExporter(context))


class OtelExporter(Sink):
    """Exports each row and each event in a request of its own."""

    def __init__(self, context: SinkContext) -> None:
        self.wants_events = context.logging.otel.events
        rule = "logging.otel needs opentelemetry-exporter-otlp, which vLLM brings"
        metrics, logs = (import_heavy(f"{_HTTP}.{name}", rule) for name in ("metric_exporter", "_log_exporter"))
        resource = import_heavy("opentelemetry.sdk.resources", rule)
        base = (context.logging.otel.endpoint or "").rstrip("/")
        self._metrics = metrics.OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=_TIMEOUT_S)
        self._logs = logs.OTLPLogExporter(endpoint=f"{base}/v1/logs", timeout=_TIMEOUT_S)
        self._name = context.run.path.name
        # `create` would add the variables and argv of the process.
        self._resource = resource.Resource({"service.name": "slurm_rl", "service.instance.id": self._name})
        self._position = context.run.path / "otel_events"
        self._num_seen = 0
        self._num_sent = int(self._position.read_text()) if self._position.is_file() else 0

    def log(self, row: MetricRow) -> None:
        labels, stamp = {"run": self._name, "stage": row.stage}, int(row.stamp * 1e9)
        named = [({**labels, "name": key}, value) for key, value in row.values.items()]
        gauges: dict[str, list[tuple[dict[str, str], float]]] = {
            "slurm_rl_metric": named,
            "slurm_rl_step": [(labels, row.step)],
            "slurm_rl_row_timestamp_seconds": [(labels, row.stamp)],
        }
        self._require(self._metrics.export(self._build(gauges, stamp)), "metrics")

    def _build(self, gauges: Mapping[str, list[tuple[dict[str, str], float]]], stamp: int) -> Any:
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = [
            export.Metric(
                name,
                "",
                "",
                export.Gauge([export.NumberDataPoint(labels, 0, stamp, value) for labels, value in points]),
            )
            for name, points in gauges.items()
        ]
        scope = export.ScopeMetrics(InstrumentationScope("slurm_rl"), metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])

    def event(self, event: Row) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        if self._num_seen < self._num_sent:
            self._num_seen += 1
            return
        kind = str(event.get("kind"))
        fields = {f"slurm_rl.{key}": _plain(value) for key, value in event.items() if key not in ("time", "kind")}
        is_bad = kind.rpartition("/")[2] in _BAD
        record = LogRecord(
            timestamp=int(float(event.get("time", 0)) * 1e9),
            severity_number=SeverityNumber.WARN if is_bad else SeverityNumber.INFO,
            severity_text="WARN" if is_bad else "INFO",
            body=describe_event(event),
            attributes={"run": self._name, "kind": kind, **fields},
            event_name=kind,
        )
        self._require(
            self._logs.export([ReadableLogRecord(record, self._resource, InstrumentationScope("slurm_rl"))]), "events"
        )
        self._num_seen = self._num_sent = self._num_seen + 1
        write_text(self._position, f"{self._num_sent}\n")

    def _require(self, result: Any, what: str) -> None:
        if result.name != "SUCCESS":
            raise RunDirError(
                f"the collector of logging.otel.endpoint must accept {what}",
                seen=result.name,
                action="see the log of the collector and of the trainer",
            )

    def close(self) -> None:
        self._metrics.shutdown()
        self._logs.shutdown()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) else str(value)
