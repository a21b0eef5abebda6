"""Metadata of a run (name, state, model, time, files) and its events as text, one line each."""

import time
from dataclasses import dataclass
from typing import Any

import yaml

from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir

LONGEST_VALUE = 300
PHRASES: dict[str, str] = {  # in the order of a run
    "job/submitted": "job submitted",
    "job/requeued": "job requeued",
    "job/requeue_refused": "Slurm refused to requeue the job",
    "eval/submitted": "evaluation of a checkpoint submitted",
    "eval/not_submitted": "evaluation of a checkpoint not submitted",
    "successor/submitted": "job that continues after this one submitted",
    "successor/refused": "no job could be submitted that continues after this one",
    "successor/takes_over": "the next job continues the run",
    "successor/not_cancelled": "the next job could not be cancelled",
    "job/stop_raised": "checkpoint requested before the time limit",
    "job/cancel_requested": "cancel requested",
    "job/ended": "job ended",
    "controller/killed": "the controller was killed",
    "controller/silent": "no heartbeat from the controller",
    "controller/recovered": "the controller answers again",
    "preflight/passed": "nodes passed the preflight",
    "node/unfit": "a node failed the preflight",
    "nodes/excluded": "nodes excluded from the job",
    "nodes/exclusion_skipped": "bad nodes not excluded",
    "nodes/not_excluded": "Slurm did not exclude nodes",
    "nodes/avoided": "nodes recorded as bad",
    "nodes/lost": "nodes lost",
    "nodes/cleaned": "leftovers of an attempt removed from nodes",
    "machines/complete": "all machines have joined",
    "node/joined": "a machine joined",
    "node/notice": "a machine received a termination notice",
    "node/left": "a machine left",
    "attempt/started": "attempt started",
    "node/started": "node started",
    "node/failed": "a node failed",
    "node/died": "the agent of a node died",
    "ray/head_ready": "Ray head is up",
    "torchrun/started": "torchrun started on the head node",
    "ray/cluster_ready": "Ray cluster is complete",
    "workers/loading": "loading weights",
    "engine/ready": "rollout engine is ready",
    "engine/replaced": "a rollout engine was replaced",
    "reward/sandbox": "sandbox of completions is ready",
    "reward/service_up": "a reward service is up",
    "reward/services_ready": "all reward services are up",
    "reward/service_died": "a reward service died",
    "judge/closed": "requests of the judge",
    "external/started": "external trainer started",
    "data/loaded": "rows loaded",
    "trainer/started": "trainer started",
    "trainer/attention": "attention implementation of the trainer",
    "trainer/not_packed": "one sequence per row",
    "trainer/adapters": "layers with adapters",
    "trainer/resumed": "trainer resumed from its checkpoint",
    "environments/node_lost": "environments of a node were lost; other nodes continue its episodes",
    "journal/opened": "episodes resumed from the journal",
    "journal/cut": "incomplete last line of a journal removed",
    "journal/dropped": "a journal was skipped",
    "journal/environment_changed": "the environment has changed",
    "journal/program_changed": "programs sent other requests than before; their recorded replies were dropped",
    "checkpoint/saved": "checkpoint saved",
    "checkpoint/copied": "checkpoint copied to checkpoint.upload_url",
    "checkpoint/fetched": "checkpoint fetched from checkpoint.upload_url",
    "checkpoint/skipped": "a checkpoint was skipped",
    "eval/started": "evaluation started",
    "eval/done": "evaluation done",
    "rank/straggling": "a rank is slower than its peers",
    "rank/hung": "a rank hangs",
    "run/out_of_memory": "out of memory",
    "trainer/finished": "trainer finished",
    "trainer/failed": "trainer failed",
    "trainer/crashed": "trainer crashed",
    "attempt/ended": "attempt ended",
    "run/copied": "copied to checkpoint.upload_url",
    "run/copy_failed": "not copied to checkpoint.upload_url",
    "file/damaged": "damaged lines of a file skipped",
    "file/mended": "incomplete last line of a file removed",
    "report/failed": "report.html and summary.json were not written",
    "sink/failed": "metrics or events do not reach their destination",
    "sink/lost": "metrics or events that a destination lacks",
    "prometheus/ready": "endpoint for Prometheus is up",
    "hook/failed": "logging.on_end failed",
    "wandb/started": "Weights & Biases started",
    "wandb/offline": "Weights & Biases runs offline",
    "wandb/failed": "Weights & Biases stopped",
}


def read_events(run: RunDir) -> list[Row]:
    """Return the events so far by time; nodes write them with different delays."""
    return sorted(read_rows(run.events), key=lambda event: float(event.get("time", 0.0)))


def render_event(event: Row) -> str:
    """Return a line for a terminal: local time, event, details.

    >>> render_event({"time": 0.0, "kind": "checkpoint/saved", "step": 40})[9:]
    'checkpoint saved: step 40'
    >>> render_event({"time": 0.0, "kind": "nodes/lost", "hosts": ["n1", "n2"], "left": {"gpu": 2}})[9:]
    'nodes lost: hosts n1, n2, left gpu 2'
    """
    clock = time.strftime("%H:%M:%S", time.localtime(float(event.get("time", 0.0))))
    return f"{clock} {describe_event(event)}"


def describe_event(event: Row) -> str:
    """Return the line of an event without the time."""
    kind = str(event.get("kind", "unknown"))
    fields = [(key, value) for key, value in event.items() if key not in ("time", "kind") and value != ""]
    details = ", ".join(f"{key} {_show(value)}" for key, value in fields)
    phrase = PHRASES.get(kind, kind)
    return f"{phrase}: {details}" if details else phrase


def _show(value: Any) -> str:
    """Return a value on one line, without control characters."""
    if isinstance(value, dict):
        value = ", ".join(f"{key} {_show(part)}" for key, part in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(_show, value))
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_VALUE else line[: LONGEST_VALUE - 1] + "…"


@dataclass(frozen=True, kw_only=True)
class RunMeta:
    """The header of a summary and of a report."""

    name: str
    """Name of the run directory."""
    state: str
    """queued, running, or how the last attempt ended; unknown before the first event."""
    model: str
    """Model of the config, or a note that it was built for the run."""
    attempts: int
    """Number of starts of the job."""
    wall_s: float
    """Seconds in which the run had nodes, over all attempts."""
    rows: dict[str, int]
    """Counts of data rows (RowCounts); empty before they are loaded."""
    paths: dict[str, str]
    """Files of interest, by name."""
    only_evaluates: bool = False
    """True for a run that only measures evaluation sets."""


def collect_meta(run: RunDir) -> RunMeta:
    """Return the metadata of a run in any state."""
    events = read_events(run)
    newest_row: Row = next(reversed(read_rows(run.metrics)), {})
    return RunMeta(
        name=run.path.name,
        state=find_state(events),
        model=find_model(read_config_text(run)),
        attempts=sum(event["kind"] == "attempt/started" for event in events),
        wall_s=round(compute_wall_s(events, last_stamp=float(newest_row.get("time/stamp", 0.0))), 3),
        rows=find_rows(events),
        paths=_paths(run),
        only_evaluates=only_evaluates(read_config_text(run)),
    )


def find_state(events: list[Row]) -> str:
    """Return the state after the newest event."""
    states = {"job/submitted": "queued", "attempt/started": "running", "trainer/finished": "finished"}
    for event in reversed(events):
        if event["kind"] == "attempt/ended":
            return str(event.get("outcome", "ended"))
        if event["kind"] in states:
            return states[event["kind"]]
    return "unknown"


def find_rows(events: list[Row]) -> dict[str, int]:
    """Return the counts of the newest attempt that loaded its data."""
    found = next((event for event in reversed(events) if event["kind"] == "data/loaded"), {})
    return {key: value for key, value in found.items() if key not in ("time", "kind")}


def compute_wall_s(events: list[Row], *, last_stamp: float) -> float:
    """Return the sum over attempts; one without an end ends with its last event or metric."""
    total = 0.0
    started: float | None = None
    seen = 0.0
    for event in events:
        if event["kind"] == "attempt/started":
            total += 0.0 if started is None else seen - started
            started = event["time"]
        elif event["kind"] == "attempt/ended" and started is not None:
            total += event["time"] - started
            started = None
        seen = event["time"]
    return total if started is None else total + max(seen, last_stamp) - started


def find_model(config_text: str) -> str:
    """Return the model's path in the config, or where the one with random weights is from."""
    config = _parse(config_text)
    if isinstance(config, dict) and config.get("external"):
        return str(config["external"].get("model") or f"of task={config.get('task')}")
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return "unknown"
    if model.get("path"):
        return str(model["path"])
    return f"{model.get('from_config')}, random weights"


def only_evaluates(config_text: str) -> bool:
    """Return whether the config has `eval.only=true`.

    >>> only_evaluates("eval: {only: true}"), only_evaluates("eval: [")
    (True, False)
    """
    config = _parse(config_text)
    return isinstance(config, dict) and isinstance(config.get("eval"), dict) and config["eval"].get("only") is True


def _parse(config_text: str) -> Any:
    """Return the parsed config; None if it is damaged."""
    try:
        return yaml.safe_load(config_text)
    except yaml.YAMLError:
        return None


def read_config_text(run: RunDir) -> str:
    """Return the text of config.yaml; "" without the file."""
    return run.config.read_text(encoding="utf-8") if run.config.is_file() else ""


def _paths(run: RunDir) -> dict[str, str]:
    found = {"export": run.export, "tensorboard": run.tensorboard, "logs": run.attempts / "latest" / "logs"}
    there = {name: str(path) for name, path in found.items() if path.exists()}
    return {"run": str(run.path), "report": str(run.report), **there}


def format_seconds(seconds: float) -> str:
    """Format a duration.

    >>> format_seconds(3725), format_seconds(65.4), format_seconds(9.26)
    ('1 h 02 min', '1 min 05 s', '9.3 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
