"""Sinks of metrics and events: see plugins/sinks/stream.py."""

from pathlib import Path

DASHBOARD = Path(__file__).with_name("grafana.json")
"""Dashboard of the metrics in prometheus.py, to import into Grafana."""
