"""A run that scores in services of its own, one of which is killed, equals one that scores in the trainer."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from slurm_rl.node.ports import FIRST_PORT
from slurm_rl.run_dir.jsonl import read_rows
from tests.whole_run import exact_rows, start_run


@pytest.mark.slow
def test_rewards_over_http_change_nothing_though_a_service_is_killed(whole_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "served"
    process = start_run(run_dir, "+reward=service", "reward.service.num_replicas=2")
    give_up = time.monotonic() + 300
    while not any(row["stage"] == "grpo" for row in read_rows(run_dir / "metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < give_up, process.communicate()[0]
        time.sleep(0.05)
    events = read_rows(run_dir / "events.jsonl")
    os.kill(next(event["pid"] for event in events if event["kind"] == "reward/service_up"), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert exact_rows(run_dir) == exact_rows(whole_run)
    events = read_rows(run_dir / "events.jsonl")
    assert [event["how"] for event in events if event["kind"] == "reward/service_died"] == ["exit status -9"]
    [ready] = [event for event in events if event["kind"] == "reward/services_ready"]
    ports = [int(url.rpartition(":")[2].removesuffix("/get_reward")) for url in ready["urls"]]
    assert len(set(ports)) == 2
    assert all(FIRST_PORT <= port < 32_768 for port in ports), "not of the attempt's own block"
    assert stat.S_IMODE((run_dir / "secrets" / "reward-token").stat().st_mode) == 0o600
