"""`status`: the state of a run, or of every run below a folder, from their directories and from Slurm."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

from slurm_rl.cli.find import find_run, find_sweep, parse_path
from slurm_rl.cli.told import show_plainly
from slurm_rl.cli.words import read_words
from slurm_rl.errors import SlurmRLError
from slurm_rl.job.record import RunState, load_job, read_last_row
from slurm_rl.jsonl import read_last_rows
from slurm_rl.launchers.jobs import count_states, read_far_log, read_states
from slurm_rl.run_dir import RunDir
from slurm_rl.sweep.ledger import SweepDir, runs_of

_TAIL_BYTES = 1 << 16


def run(words: list[str]) -> int:
    rest = read_words("status", words).rest
    if sweep := find_sweep(rest):
        print(show_plainly(render_sweep(sweep)))
        return 0
    runs = find_runs(parse_path(rest[0])) if len(rest) == 1 else []
    print(show_plainly(render_table(runs) if runs else render_status(find_run(rest))))
    return 0


def find_runs(folder: Path) -> list[RunDir]:
    """Runs one or two levels below a folder that is not a run itself, oldest first."""
    if (folder / "plan.json").is_file():
        return []
    plans = [*folder.glob("*/plan.json"), *folder.glob("*/*/plan.json")]
    return [RunDir(path.parent) for path in sorted(plans, key=lambda path: (path.stat().st_mtime, str(path)))]


def render_sweep(sweep: SweepDir) -> str:
    """How many runs are where, then a line for each."""
    runs = runs_of(sweep)
    states = read_states(runs)
    return f"sweep   {sweep.path}\nruns    {count_states(states)}\n{render_table(runs, states)}"


def render_table(runs: list[RunDir], states: list[RunState] | None = None) -> str:
    """One line a run; one question to Slurm for all of them."""
    rows = [("RUN", "JOB", "STEP", "REWARD", "STATE")]
    for found, state in zip(runs, states or read_states(runs), strict=True):
        job, last = load_job(found), last_row(found)
        reward = f"{last['reward/mean']:.3f}" if "reward/mean" in last else "-"
        job_id = job.job_id if job else "-"
        rows.append((found.path.name, job_id, str(last.get("step", "-")), reward, str(state).partition("\n")[0]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def render_status(run: RunDir) -> str:
    """State, job, step and the newest numbers, one a line."""
    state, job, last = read_states([run])[0], load_job(run), last_row(run)
    if not last and state.error is None:
        with contextlib.suppress(SlurmRLError):  # a cluster that is gone since
            last = read_last_row(read_far_log(run) or "")
    lines = [f"run     {run.path}", f"state   {state}"]
    if job:
        lines.append(f"job     {job.job_id} ({job.launcher})")
    if last:
        lines.append(f"step    {last['step']} ({last['stage']})")
        if "reward/mean" in last:
            lines.append(f"reward  {last['reward/mean']:.3f}")
    lines.append(f"logs    {run.attempts / 'latest' / 'logs'}")
    if not state.is_alive and state.word not in ("finished", "unknown"):
        lines.append(f"resume  python -m slurm_rl resume {shlex.quote(str(run.path))}")
    return "\n".join(lines)


def last_row(run: RunDir) -> dict[str, Any]:
    """The newest row of metrics.jsonl that is not an evaluation; only the file's end is read."""
    rows = read_last_rows(run.metrics, _TAIL_BYTES)
    return next((row for row in reversed(rows) if row.get("stage") != "eval"), {})
