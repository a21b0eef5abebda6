"""A stand-in for an OpenTelemetry collector: it accepts OTLP over HTTP with the messages of opentelemetry-proto."""

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.http_kit import serve_posts


@dataclass
class Collector:
    url: str = ""
    is_away: bool = False
    gauges: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                points = self.gauges.setdefault(metric.name, [])
                for point in metric.gauge.data_points:
                    labels = {pair.key: pair.value.string_value for pair in point.attributes}
                    points.append((labels, point.as_double or point.as_int))

    def take_logs(self, body: bytes) -> None:
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for record in (record for scope in resource.scope_logs for record in scope.log_records):
                labels = {pair.key: pair.value.string_value for pair in record.attributes}
                self.events.append({**labels, "body": record.body.string_value, "severity": record.severity_text})


@contextmanager
def serve_otlp() -> Iterator[Collector]:
    collector = Collector()

    def respond(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if collector.is_away:
            return 400, {}, b""
        body = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
        collector.tokens.append(headers["authorization"])
        {"/v1/metrics": collector.take_metrics, "/v1/logs": collector.take_logs}[path](body)
        return 200, {}, b""

    with serve_posts(respond) as collector.url:
        yield collector
