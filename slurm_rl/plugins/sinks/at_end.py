"""Last work of a run's controller: `logging.on_end`, and events that a collector lacks."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from slurm_rl.config.parse import parse_config
from slurm_rl.plugins.sinks.otel import open_otel
from slurm_rl.plugins.sinks.stream import SinkContext, explain
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json

_TAIL_CHARS = 500


def finish(run: RunDir, config: Mapping[str, Any]) -> None:
    """Send the last events, then run the command. A failure is an event; the outcome of the run stays."""
    logging = parse_config(dict(config)).logging
    if logging.otel.is_on and logging.otel.events:
        try:
            sink = open_otel(SinkContext(run, logging, str(config["name"]), config))
            for event in read_rows(run.events):
                sink.event(event)
            sink.close()
        except Exception as error:  # the host of the controller may lack the package
            append_event(run, "sink/failed", sink="otel", cause=explain(error))
    if logging.on_end is not None:
        run_command(run, str(config["name"]), logging.on_end, logging.on_end_timeout_s)


def run_command(run: RunDir, name: str, command: str, timeout_s: float) -> None:
    """Run the shell command in the run directory, with the end as variables and as JSON on stdin.

    Its output is in on_end.log. After `timeout_s` its process group is killed.
    """
    end = {**read_json(run.end), "name": name, "run_dir": str(run.path), "report": str(run.report)}
    env = {**os.environ, **{f"SLURM_RL_{key.upper()}": str(value) for key, value in end.items()}}
    log = run.path / "on_end.log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=run.path,
                env=env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                process.communicate(json.dumps(end).encode(), timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                cause = f"no end within logging.on_end_timeout_s = {timeout_s:g}"
            else:
                cause = f"exit status {process.returncode}" if process.returncode else ""
    except OSError as error:
        cause = explain(error)
    if cause:
        tail = log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:] if log.is_file() else ""
        append_event(run, "hook/failed", cause=cause, output=tail.strip())
