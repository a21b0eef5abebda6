"""`status`: the state of a run, or of every run below a folder, from their directories and from Slurm."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_rl.cli.columns import find_screen
from slurm_rl.cli.find import find_target, open_target, require_sweep
from slurm_rl.cli.phase import describe_phase
from slurm_rl.cli.results import find_total, last_row, run_leaderboard
from slurm_rl.cli.status_picture import draw_runs
from slurm_rl.cli.status_results import describe_results
from slurm_rl.cli.status_table import STYLES, RunLine, format_age, join_row, render_runs
from slurm_rl.cli.told import show_plainly
from slurm_rl.cli.words import read_words
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.controller.record import RunState, load_job, read_last_row
from slurm_rl.launch.jobs import count_states, read_far_log, read_states
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger, runs_of, swept_overrides
from slurm_rl.node.hang_monitor import describe_silent, read_node_reports
from slurm_rl.plugins.goodput.read import read_ledger
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.run_dir.event_text import format_seconds
from slurm_rl.run_dir.jsonl import read_last_rows
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, read_json, write_text
from slurm_rl.run_dir.save_times import read_learned

_TAIL_BYTES = 1 << 16
_WATCHED = {"reward/mean": "reward", "policy/loss": "loss"}
"""The first that a row has is in the table."""


def run(words: list[str]) -> int:
    told = read_words("status", words)
    flags = told.flags
    is_ranked = flags.metric is not None or flags.json or flags.smallest_first is not None
    sweep = require_sweep(told.rest) if is_ranked else SweepDir(find_target(told.rest))
    if is_ranked or sweep.is_sweep:
        run_leaderboard(told, sweep)
        table = _build_table(sweep.path) if flags.svg else []
    elif table := _build_table(sweep.path):
        _print_table(table)
    else:
        print(show_plainly(render_status(open_target(sweep.path))))
    if flags.svg:
        save_picture(flags.svg, table, show_plainly(" ".join(told.rest)) or str(sweep.path))
    return 0


def _build_table(path: Path) -> list[RunLine]:
    """Return a row for each run of a sweep, a pipeline or a folder; nothing for a single run."""
    if (sweep := SweepDir(path)).is_sweep:
        runs, names = runs_of(sweep), _name_runs(sweep)
    elif runs := find_stages(path):
        names = [run.path.name for run in runs]
    else:
        return look_below(path)
    now = time.time()
    return [_look(run, state, name, now) for run, state, name in zip(runs, read_states(runs), names, strict=True)]


def save_picture(path: Path, table: list[RunLine], what: str) -> None:
    """The table as a file.

    Raises:
        ConfigError: there is none, as of one run.
        RunDirError: it cannot be written there.
    """
    if not table:
        action = "python -m slurm_rl status <folder> --svg FILE; a run has its pictures in report.html"
        raise ConfigError("--svg is for a pipeline, a sweep or a folder of runs", seen=what, action=action)
    with expect_writable(path, "or name another file", what="--svg"):
        write_text(path, draw_runs(table, f"{what}, {time.strftime('%Y-%m-%d %H:%M')}"))


def look_below(folder: Path) -> list[RunLine]:
    """Runs and sweeps one or two levels below a folder that is no run itself, newest first; one question to Slurm."""
    if (folder / "plan.json").is_file():
        return []
    found: dict[Path, list[RunDir]] = {}
    for plan in sorted([*folder.glob("*/plan.json"), *folder.glob("*/*/plan.json")]):
        # The runs of a sweep are one line: a thousand of them would hide all others.
        place = plan.parent.parent if SweepDir(plan.parent.parent).is_sweep else plan.parent
        found.setdefault(place, []).append(RunDir(plan.parent))
    runs = [run for those in found.values() for run in those]
    states = dict(zip((run.path for run in runs), read_states(runs), strict=True))
    lines, now = [], time.time()
    for place, those in found.items():
        name = str(place.relative_to(folder))
        if SweepDir(place).is_sweep:
            lines.append(_sum_up(name, those, [states[run.path] for run in those], now))
        else:
            lines.append(_look(those[0], states[those[0].path], name, now))
    return sorted(lines, key=lambda line: (line.age_s, line.name))


def _name_runs(sweep: SweepDir) -> list[str]:
    """Number and swept values of each run."""
    runs = load_ledger(sweep).runs
    short = [{key.rpartition(".")[2]: value for key, value in swept.items()} for swept in swept_overrides(runs)]
    told = [" ".join(f"{key}={value}" for key, value in swept.items()) for swept in short]
    return [f"{entry.index} {text}".rstrip() for entry, text in zip(runs, told, strict=True)]


def _look(run: RunDir, state: RunState, name: str, now: float) -> RunLine:
    job, last = load_job(run), last_row(run)
    watched = next(((told, last[key]) for key, told in _WATCHED.items() if key in last), None)
    total = find_total(run)
    return RunLine(
        name=name,
        state=state.word,
        age_s=now - _begin(run),
        job=job.job_id if job else "-",
        done=last.get("step", 0 if total else None),
        total=total,
        metric=watched,
        why=state.detail,
    )


def _sum_up(name: str, runs: Sequence[RunDir], states: Sequence[RunState], now: float) -> RunLine:
    """A sweep as one line."""
    ended = sum(not state.is_alive and state.word != "unknown" for state in states)
    return RunLine(name, "sweep", now - max(map(_begin, runs)), done=ended, total=len(runs), why=count_states(states))


def _begin(run: RunDir) -> float:
    """When it was submitted first."""
    return run.plan.stat().st_mtime


def _print_table(lines: Sequence[RunLine]) -> None:
    """Colours are for terminals, and for those without NO_COLOR; rich knows."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for row in render_runs(lines, find_screen()):
        text = Text(join_row(row))
        if len(row) > 1 and (style := STYLES.get(row[1].strip())):
            start = len(row[0]) + 2
            text.stylize(style, start, start + len(row[1]))
        console.print(text)


def render_status(run: RunDir) -> str:
    """State, job, step and the newest numbers, one a line."""
    state, job, last = read_states([run])[0], load_job(run), last_row(run)
    if not last and state.error is None:
        with contextlib.suppress(SlurmRLError):  # a cluster that no longer exists
            last = read_last_row(read_far_log(run) or "")
    lines = [f"run     {run.path}", f"state   {state}"]
    if job:
        lines.append(f"job     {job.job_id} ({job.launcher})")
    if state.word == "running" and (phase := describe_phase(run, time.time())):
        lines.append(f"phase   {phase}")
    if last:
        lines += _tell_row(last, find_total(run), is_alive=state.is_alive, now=time.time())
    lines += describe_results(run)
    lines += _tell_trouble(run, is_alive=state.is_alive)
    if ledger := read_ledger(run):
        lines.append(f"time    {render_line(ledger)}")
    lines += _tell_learned(run)
    lines.append(f"logs    {run.attempts / 'latest' / 'logs'}")
    if not state.is_alive and state.word not in ("finished", "unknown"):
        lines.append(f"resume  python -m slurm_rl resume {shlex.quote(str(run.path))}")
    return "\n".join(lines)


def _tell_learned(run: RunDir) -> list[str]:
    """Return the lead time measured from the run's saves; empty before."""
    measured = read_learned(run)
    if measured.lead_s is None:
        return []
    saves, rest = format_seconds(measured.save_s), format_seconds(measured.rest_s)
    return [
        f"lead    {measured.lead_s} s from the stop signal to the time limit: step {rest} + save {saves} + margin 80 s"
    ]


def _tell_trouble(run: RunDir, *, is_alive: bool) -> list[str]:
    """Return silent ranks, and the smaller micro-batches after running out of memory."""
    lines = []
    if is_alive and (numbers := run.attempt_numbers()):
        lines += [
            f"silent  {words}" for words in describe_silent(read_node_reports(run.attempt(numbers[-1])), time.time())
        ]
        lines += _tell_silent_controller(run)
    if run.remedy.is_file():
        remedy = read_json(run.remedy)
        lines.append(
            f"memory  ran out in attempt {remedy['attempt']} ({remedy['where']}); "
            f"since then policy.micro_batch_tokens={remedy['micro_batch_tokens']}"
        )
    return lines


def _tell_silent_controller(run: RunDir) -> list[str]:
    """Explain a wait for Slurm, which alone can restart a job whose controller's node was lost."""
    kinds = ("controller/silent", "controller/recovered", "attempt/started", "attempt/ended")
    told = [row for row in read_last_rows(run.events, _TAIL_BYTES) if row.get("kind") in kinds]
    if not told or told[-1]["kind"] != "controller/silent":
        return []
    ago = format_age(time.time() - told[-1]["time"])
    return [
        f"silent  {told[-1]['host']}, the controller's node, since {ago} and {told[-1]['seconds']:g} s; "
        "whoever lends the machines has to give it up first, Slurm after SlurmdTimeout (scontrol show config)"
    ]


def _tell_row(last: dict[str, Any], total: int, *, is_alive: bool, now: float) -> list[str]:
    """Return step, pace and watched metrics of the newest row."""
    step = int(last["step"])
    of_all = f" of {total}, {min(1.0, step / total):.0%}" if total else ""
    lines = [f"step    {step}{of_all} ({last['stage']})"]
    seconds = last.get("time/step_s")
    if is_alive and seconds is not None:
        left = f", about {format_seconds(seconds * max(0, total - step))} left" if total else ""
        ago = f", the last {format_age(now - last['time/stamp'])} ago" if "time/stamp" in last else ""
        lines.append(f"pace    {format_seconds(seconds)} a step{ago}{left}")
    if "reward/mean" in last:
        lines.append(f"reward  {last['reward/mean']:.3f}")
    elif "policy/loss" in last:
        lines.append(f"loss    {last['policy/loss']:.3f}")
    return lines
