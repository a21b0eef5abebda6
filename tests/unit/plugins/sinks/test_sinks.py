"""Sinks against a real scrape and a stand-in for an OTLP collector (otlp_server.py)."""

import contextlib
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_rl.config.job import LoggingConfig, OtelConfig, PrometheusConfig, WandbConfig
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.task import secret_names
from slurm_rl.plugins.sinks import DASHBOARD, background, stream
from slurm_rl.plugins.sinks.background import Background
from slurm_rl.plugins.sinks.stream import MetricRow, Sink, explain
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from tests.docs.metrics_page import find_unexplained
from tests.unit.plugins.sinks.otlp_server import serve_otlp

CANARY = "canary-4b1f90aa"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(stream, "_POLL_S", 0.05)


@contextlib.contextmanager
def logger_of(run: RunDir, **sections: Any) -> Iterator[MetricsLogger]:
    logging = LoggingConfig(wandb=WandbConfig(mode="disabled"), tensorboard=False, **sections)
    logger = MetricsLogger(run, logging, "addition", {"optim": {"lr": 0.5}})
    try:
        yield logger
    finally:
        logger.close()


def scrape(run: RunDir) -> dict[tuple[str, str], float]:
    """Return the samples of the endpoint that the run announces, by metric and its last label."""
    ((target,),) = [entry["targets"] for entry in read_json(run.prometheus)]
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        assert sample.labels.pop("run") == run.path.name
        sample.labels.pop("stage", None) if len(sample.labels) > 1 else None
        found[sample.name, *sample.labels.values()] = sample.value
    return found


def sink_events(run: RunDir) -> list[str]:
    return [f"{event['kind']} {event.get('sink')}" for event in read_events(run) if "sink" in event]


def test_scrape_shows_newest_row_and_events_of_all_attempts(run: RunDir) -> None:
    append_event(run, "checkpoint/saved", step=1)
    with logger_of(run, prometheus=PrometheusConfig(enabled=True)) as logger:
        append_event(run, "checkpoint/saved", step=2)
        for step in (1, 2):
            logger.log(step, "grpo", {"reward/mean": step / 4, "accuracy/pass@4": 1.0})
        wait_until(lambda: scrape(run).get(("slurm_rl_events_total", "checkpoint/saved")) == 2.0)
        found = scrape(run)
        (ready,) = [event for event in read_events(run) if event["kind"] == "prometheus/ready"]
    assert found["slurm_rl_metric", "reward/mean"] == 0.5
    assert found["slurm_rl_metric", "accuracy/pass@4"] == 1.0
    assert found["slurm_rl_step", "grpo"] == 2.0
    assert found["slurm_rl_row_timestamp_seconds", "grpo"] == pytest.approx(time.time(), abs=100)
    assert ready["url"].startswith("http://127.0.0.1:")
    assert not run.prometheus.exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(ready["url"], timeout=10)


def wait_until(condition: Any, timeout_s: float = 20.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_endpoints_of_two_runs_have_own_ports(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RunDir(tmp_path / "addition-2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The ports of the job's block: the first one is taken.
        monkeypatch.setenv("SLURM_RL_SPARE_PORTS", f"{port}-{port}")
        config = PrometheusConfig(enabled=True)
        with logger_of(run, prometheus=config) as first, logger_of(other, prometheus=config) as second:
            first.log(1, "grpo", {"loss": 1.0})
            second.log(1, "grpo", {"loss": 2.0})
            assert scrape(run)["slurm_rl_metric", "loss"] == 1.0
            assert scrape(other)["slurm_rl_metric", "loss"] == 2.0
        with logger_of(run, prometheus=PrometheusConfig(enabled=True, port=port)) as third:
            third.log(2, "grpo", {"loss": 1.0})
    assert sink_events(run) == ["sink/failed prometheus"]
    assert len(read_rows(run.metrics)) == 2


def test_collector_gets_each_row_and_event_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={CANARY}")
    with serve_otlp() as collector:
        config = OtelConfig(endpoint=collector.url)
        append_event(run, "attempt/started", attempt=1)
        with logger_of(run, otel=config) as logger:
            logger.log(1, "grpo", {"reward/mean": 0.25})
        append_event(run, "attempt/ended", cause="killed")
        collector.is_away = True
        with logger_of(run, otel=config) as logger:
            logger.log(2, "grpo", {"reward/mean": 0.5})
            wait_until(lambda: sink_events(run))
            append_event(run, "trainer/failed")
            collector.is_away = False
    assert collector.gauges["slurm_rl_metric"] == [
        ({"run": run.path.name, "stage": "grpo", "name": "reward/mean"}, value) for value in (0.25, 0.5)
    ]
    assert [value for _, value in collector.gauges["slurm_rl_step"]] == [1, 2]
    kinds = ["attempt/started", "attempt/ended", "sink/failed", "trainer/failed"]
    assert [event["kind"] for event in collector.events] == kinds == [event["kind"] for event in read_events(run)]
    assert collector.events[1]["body"] == "attempt ended: cause killed" and collector.events[-1]["severity"] == "WARN"
    assert set(collector.tokens) == {CANARY}
    assert [path for path in run.path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []


class Broken(Sink):
    def __init__(self, hang_s: float = 0.0) -> None:
        self.hang_s, self.calls = hang_s, 0

    def log(self, row: MetricRow) -> None:
        self.calls += 1
        time.sleep(self.hang_s)
        raise OSError(28, f"no space left, {CANARY}")


@pytest.mark.parametrize("hang_s", [0.0, 600.0])
def test_broken_sink_warns_once_and_training_continues(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, hang_s: float
) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", CANARY)
    monkeypatch.setattr(background, "CLOSE_S", 0.3)
    monkeypatch.setattr(background, "_MOST_QUEUED", 5)
    broken = Broken(hang_s)
    monkeypatch.setattr(stream, "load_function", lambda _: lambda context: Background(run, "otel", broken))
    with logger_of(run, otel=OtelConfig(endpoint="http://127.0.0.1:9")) as logger:
        began = time.monotonic()
        for step in range(20):
            logger.log(step, "grpo", {"loss": 1.0})
        assert time.monotonic() - began < 60
        wait_until(lambda: broken.calls)
    assert len(read_rows(run.metrics)) == 20
    *failed, lost = read_events(run)
    assert (lost["kind"], lost["rows"]) == ("sink/lost", 20)
    assert len(failed) == (0 if hang_s else 1)
    assert all("<MY_SECRET_TOKEN>" in event["cause"] and CANARY not in event["cause"] for event in failed)


def test_sink_that_raises_is_left_out(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken()
    monkeypatch.setattr(stream, "load_function", lambda _: lambda context: broken)
    with logger_of(run, otel=OtelConfig(endpoint="http://127.0.0.1:9")) as logger:
        for step in range(3):
            logger.log(step, "grpo", {"loss": 1.0})
    assert (broken.calls, sink_events(run), len(read_rows(run.metrics))) == (1, ["sink/failed otel"], 3)


def test_full_disk_of_curves_is_only_warning(run: RunDir) -> None:
    run.path.mkdir()
    run.tensorboard.write_text("no folder")
    logger = MetricsLogger(run, LoggingConfig(wandb=WandbConfig(mode="disabled")), "addition", {})
    logger.log(1, "grpo", {"loss": 1.0})
    logger.close()
    assert sink_events(run) == ["sink/failed tensorboard"]
    assert len(read_rows(run.metrics)) == 1


def test_credentials_are_passed_by_name_and_refused_in_addresses() -> None:
    words = ["+exp=demo", "logging.mlflow.tracking_uri=https://a", "logging.otel.endpoint=http://b:4318"]
    names = secret_names(load_config(words))
    assert {"MLFLOW_TRACKING_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"} <= set(names)
    assert "MLFLOW_TRACKING_TOKEN" not in secret_names(load_config(["+exp=demo"]))
    for key in ("mlflow.tracking_uri", "otel.endpoint"):
        with pytest.raises(ConfigError, match="must not contain a user, password") as caught:
            load_config(["+exp=demo", f"logging.{key}=https://me:{CANARY}@host/path"])
        assert CANARY not in str(caught.value)


def test_queries_of_dashboard_name_exported_metrics(run: RunDir) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    append_event(run, "a/b")
    with logger_of(run, prometheus=PrometheusConfig(enabled=True)) as logger:
        logger.log(1, "grpo", {"reward/mean": 1.0})
        wait_until(lambda: ("slurm_rl_events_total", "a/b") in scrape(run))
        exported = {name for name, *_ in scrape(run)}
    assert {name for query in queries for name in re.findall(r"slurm_rl_\w+", query)} == exported - {
        "slurm_rl_events_created"
    }
    keys = {key for query in queries for key in re.findall(r'name="([^"]+)"', query)}
    assert len(keys) > 4 and find_unexplained(keys) == set()


def test_explain_masks_secret_at_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    text = explain(ValueError("x" * 970 + "k" * 40))
    assert "kkkk" not in text and len(text) <= 1000
