"""`logging.on_end` and the last events, by the controller's own function."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.results import tell_end
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json, write_text
from tests.unit.plugins.sinks.otlp_server import serve_otlp

END = {"state": "failed", "exit_code": 3, "cause": "out of memory: 'policy'", "step": 40}


def end_run(run: RunDir, *words: str, end: dict[str, Any] | None = END) -> list[dict[str, Any]]:
    """Write a run that has ended, tell its end, and return its events."""
    config = load_config(["+exp=demo", "name=sums", *words])
    write_text(run.config, yaml.safe_dump(config.model_dump(mode="json")))
    append_event(run, "job/ended", state="failed")
    if end is not None:
        write_json(run.end, end)
    tell_end(run)
    assert end is None or json.loads(run.end.read_text()) == end, "the outcome stays"
    return read_events(run)


def test_command_gets_end_as_variables_and_json(run: RunDir) -> None:
    command = "'cat > stdin.json; echo \"$SLURM_RL_STATE|$SLURM_RL_CAUSE|$SLURM_RL_STEP|$SLURM_RL_EXIT_CODE|$PWD\"'"
    events = end_run(run, f"logging.on_end={command}")
    assert (run.path / "on_end.log").read_text() == f"failed|out of memory: 'policy'|40|3|{run.path}\n"
    told = json.loads((run.path / "stdin.json").read_text())
    assert told == {**END, "name": "sums", "run_dir": str(run.path), "report": str(run.report)}
    assert [event["kind"] for event in events] == ["job/ended"]


@pytest.mark.parametrize(
    ("command", "cause"),
    [("echo no such list >&2; exit 7", "exit status 7"), ("sleep 600 & sleep 600", "on_end_timeout_s = 0.5")],
)
def test_failed_command_is_event(run: RunDir, command: str, cause: str) -> None:
    began = time.monotonic()
    events = end_run(run, f"logging.on_end='{command}'", "logging.on_end_timeout_s=0.5")
    assert events[-1]["kind"] == "hook/failed" and cause in events[-1]["cause"]
    assert ("no such list" in events[-1]["output"]) == ("7" in cause)
    assert time.monotonic() - began < 100


def test_requeued_run_runs_no_command(run: RunDir) -> None:
    end_run(run, "logging.on_end='touch told'", end=None)
    assert not (run.path / "told").exists()


def test_collector_gets_end_of_run(run: RunDir, tmp_path: Path) -> None:
    with serve_otlp() as collector:
        words = (f"logging.otel.endpoint={collector.url}", "logging.on_end='touch told'")
        end_run(run, *words)
        end_run(run, *words)
    assert [event["body"] for event in collector.events] == ["job ended: state failed"] * 2
    assert len(read_rows(run.events)) == 2 and (run.path / "told").exists()
