"""Debian's Prometheus finds a run by its file and scrapes it."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.job import LoggingConfig
from slurm_rl.run_dir.run_dir import RunDir, append_event
from slurm_rl.trainers.common.metrics_log import MetricsLogger


@pytest.fixture(scope="module")
def program() -> Path:
    root = Path("~/.cache/slurm_rl/prometheus").expanduser()
    found = root / "root/usr/bin/prometheus"
    if not found.is_file():
        root.mkdir(parents=True, exist_ok=True)
        try:
            argv = ["apt-get", "-qq", "download", "prometheus"]
            done = subprocess.run(argv, cwd=root, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("this is no Debian")
        if done.returncode:
            pytest.skip(f"Debian's packages cannot be downloaded here: {done.stderr.strip()[-200:]}")
        (archive,) = root.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root / "root")], check=True)
    return found


@pytest.fixture
def server(program: Path, tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "prometheus.yml"
    (tmp_path / "targets").mkdir()
    targets = [{"files": [f"{tmp_path}/targets/*.json"], "refresh_interval": "1s"}]
    job = {"job_name": "slurm_rl", "scrape_interval": "1s", "scrape_timeout": "1s", "file_sd_configs": targets}
    config.write_text(json.dumps({"scrape_configs": [job]}))
    listens, log = "", tmp_path / "prometheus.log"
    argv = [str(program), f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
    argv += ["--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        give_up = time.monotonic() + 30
        while not listens:
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            lines = [line for line in log.read_text().splitlines() if 'msg="Listening on"' in line]
            listens = lines[0].partition("address=")[2].split()[0] if lines else ""
            time.sleep(0.1)
        yield f"http://{listens}"
    finally:
        process.terminate()
        process.wait(30)


def query(server: str, text: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(
        f"{server}/api/v1/query?{urllib.parse.urlencode({'query': text})}", timeout=10
    ) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


@pytest.mark.slow
def test_prometheus_finds_run_and_holds_its_metrics(server: str, run: RunDir, tmp_path: Path) -> None:
    prometheus = {"enabled": True, "targets_dir": str(tmp_path / "targets")}
    sections = {"wandb": {"mode": "disabled"}, "tensorboard": False, "prometheus": prometheus}
    append_event(run, "checkpoint/saved")
    logger = MetricsLogger(run, LoggingConfig.model_validate(sections), "addition", {})
    logger.log(7, "grpo", {"reward/mean": 0.25})
    give_up = time.monotonic() + 60
    while not query(server, 'slurm_rl_events_total{kind="checkpoint/saved"}'):
        assert time.monotonic() < give_up
        time.sleep(0.2)
    (point,) = query(server, 'slurm_rl_metric{run="addition-1", stage="grpo", name="reward/mean"}')
    assert point["value"][1] == "0.25" and point["metric"]["run_dir"] == str(run.path)
    (step,) = query(server, "slurm_rl_step")
    assert step["value"][1] == "7"
    logger.close()
    assert list((tmp_path / "targets").iterdir()) == []
