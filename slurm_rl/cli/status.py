"""`status`: the state of a run, or of every run below a folder, from their directories and from Slurm."""

import argparse
import contextlib
import functools
import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.output import to_printable
from slurm_rl.cli.run_facts import (
    END_BYTES,
    describe_phase,
    describe_results,
    find_cancel,
    is_of_attempt,
    read_newest_row,
    read_num_steps,
)
from slurm_rl.cli.status_json import build_run, build_runs
from slurm_rl.cli.table import STYLES, RunLine, find_screen, format_age, join_row, render_runs
from slurm_rl.cli.watch import watch
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.record import RunState, load_job, read_last_row
from slurm_rl.launch.jobs import count_states, read_far_log, read_states
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.sweep.ledger import SweepDir
from slurm_rl.node.hang_monitor import describe_silent, read_node_reports
from slurm_rl.run_dir.eval_sets import list_evals
from slurm_rl.run_dir.event_text import format_seconds
from slurm_rl.run_dir.jsonl import read_last_rows
from slurm_rl.run_dir.judge_total import describe_judge, read_judge_total
from slurm_rl.run_dir.run_dir import RunDir, read_json
from slurm_rl.run_dir.save_times import read_learned

LEADERBOARD = "slurm_rl.plugins.report.leaderboard:print_leaderboard"
GPU_TIME = "slurm_rl.plugins.goodput.read:describe_gpu_time"
_WATCHED = {"reward/mean": "reward", "policy/loss": "loss"}
"""Metric -> its heading; the table shows the first that a row has."""


def run(args: argparse.Namespace) -> int:
    path = find_target(args.rest)
    show = functools.partial(_show, path, args)
    if args.watch:
        return watch(path, show)
    show()
    return 0


def _show(path: Path, args: argparse.Namespace) -> None:
    is_ranked = args.metric is not None or args.smallest_first is not None
    if is_ranked or SweepDir(path).is_sweep:
        load_function(LEADERBOARD)(SweepDir(path), args.metric, args.smallest_first, as_json=args.json)
        return
    indent = None if args.watch else 2
    table = build_table(path)
    if args.json and table:
        print(json.dumps(build_runs(path, table), indent=indent))
    elif args.json:
        run = open_target(path)
        print(json.dumps(build_run(run, read_states([run])[0], time.time()), indent=indent))
    elif table:
        _print_table(table)
    else:
        print(to_printable(render_status(open_target(path))))


def build_table(path: Path) -> list[RunLine]:
    """Return a row for each run of a pipeline or a folder; nothing for a single run."""
    if not (runs := find_stages(path)):
        return _look_below(path)
    now = time.time()
    return [_look(run, state, run.path.name, now) for run, state in zip(runs, read_states(runs), strict=True)]


def _look_below(folder: Path) -> list[RunLine]:
    """Return runs and sweeps one or two levels below a folder, newest first, with one query to Slurm."""
    if (folder / "plan.json").is_file():
        return []
    found: dict[Path, list[RunDir]] = {}
    for plan in sorted([*folder.glob("*/plan.json"), *folder.glob("*/*/plan.json")]):
        # A sweep is one line: a thousand runs of it would hide all others.
        place = plan.parent.parent if SweepDir(plan.parent.parent).is_sweep else plan.parent
        found.setdefault(place, []).append(RunDir(plan.parent))
    runs = [run for group in found.values() for run in group]
    states = dict(zip((run.path for run in runs), read_states(runs), strict=True))
    lines, now = [], time.time()
    for place, group in found.items():
        name, of_group = str(place.relative_to(folder)), [states[run.path] for run in group]
        is_sweep = SweepDir(place).is_sweep
        lines.append(_sum_up(name, group, of_group, now) if is_sweep else _look(group[0], of_group[0], name, now))
    return sorted(lines, key=lambda line: (line.age_s, line.name))


def _look(run: RunDir, state: RunState, name: str, now: float) -> RunLine:
    job, last, total = load_job(run), read_newest_row(run), read_num_steps(run)
    return RunLine(
        name=name,
        state=state.word,
        age_s=now - run.plan.stat().st_mtime,
        job=job.job_id if job else "-",
        done=last.get("step", 0 if total else None),
        total=total,
        metric=next(((heading, last[key]) for key, heading in _WATCHED.items() if key in last), None),
        why=state.detail,
    )


def _sum_up(name: str, runs: Sequence[RunDir], states: Sequence[RunState], now: float) -> RunLine:
    """Return a sweep as one line."""
    ended = sum(not state.is_alive and state.word != "unknown" for state in states)
    age_s = now - max(run.plan.stat().st_mtime for run in runs)
    return RunLine(name, "sweep", age_s, done=ended, total=len(runs), why=count_states(states))


def _print_table(lines: Sequence[RunLine]) -> None:
    """Print the table; rich adds colours on a terminal without NO_COLOR."""
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
    """Return state, job, step and the newest numbers, one per line."""
    state, job, last = read_states([run])[0], load_job(run), read_newest_row(run)
    if not last and state.error is None:
        with contextlib.suppress(SlurmRLError):  # a cluster that no longer exists
            last = read_last_row(read_far_log(run) or "")
    lines = [f"run     {run.path}", f"state   {state}"]
    if job:
        lines.append(f"job     {job.job_id} ({job.launcher})")
    if state.word == "running" and (phase := describe_phase(run, time.time())):
        lines.append(f"phase   {phase}")
    if state.is_alive and (since := find_cancel(run)):
        ago = format_age(time.time() - since)
        lines.append(f"cancel  requested {ago} ago: it saves what it has, then ends")
    if last:
        has_pace = state.word == "running" and is_of_attempt(run, last)
        lines += _describe_row(last, read_num_steps(run), has_pace=has_pace, now=time.time())
    lines += describe_results(run)
    if total := read_judge_total(run):
        lines.append(f"judge   {describe_judge(total)}")
    lines += _describe_evals(run)
    lines += _describe_problems(run, is_alive=state.is_alive)
    if gpu_time := load_function(GPU_TIME)(run):
        lines.append(f"time    {gpu_time}")
    lines += _describe_lead(run)
    if state.is_alive and run.prometheus.is_file():
        lines += [f"scrape  http://{one}/metrics" for group in read_json(run.prometheus) for one in group["targets"]]
    lines.append(f"logs    {run.attempts / 'latest' / 'logs'}")
    if not state.is_alive and state.word not in ("finished", "unknown"):
        lines.append(f"resume  python -m slurm_rl resume {shlex.quote(str(run.path))}")
    return "\n".join(lines)


def _describe_evals(run: RunDir) -> list[str]:
    """Return the states of the jobs of eval.on_checkpoint, and each that failed."""
    evals = list_evals(run)
    if not evals:
        return []
    states = dict(zip(evals, read_states([*evals.values()]), strict=True))
    bad = {step: state for step, state in states.items() if not state.is_alive and state.word != "finished"}
    lines = [f"evals   {count_states(states.values())}"]
    return [*lines, *(f"eval    step {step} {state}; {evals[step].path}" for step, state in bad.items())]


def _describe_lead(run: RunDir) -> list[str]:
    """Return the lead time measured from the run's saves; empty before."""
    measured = read_learned(run)
    if measured.lead_s is None:
        return []
    saves, rest = format_seconds(measured.save_s), format_seconds(measured.rest_s)
    return [
        f"lead    {measured.lead_s} s from the stop signal to the time limit: step {rest} + save {saves} + margin 80 s"
    ]


def _describe_problems(run: RunDir, *, is_alive: bool) -> list[str]:
    """Return silent ranks, and the smaller micro-batches after running out of memory."""
    lines = []
    if is_alive and (numbers := run.attempt_numbers()):
        reports = read_node_reports(run.attempt(numbers[-1]))
        lines += [f"silent  {text}" for text in describe_silent(reports, time.time())]
        lines += _describe_silent_controller(run)
        lines += _describe_refused_successor(run)
    if run.remedy.is_file():
        remedy = read_json(run.remedy)
        lines.append(
            f"memory  ran out in attempt {remedy['attempt']} ({remedy['where']}); "
            f"since then policy.micro_batch_tokens={remedy['micro_batch_tokens']}"
        )
    return lines


def _describe_refused_successor(run: RunDir) -> list[str]:
    """Explain that the run will not continue after its job."""
    kinds = ("successor/submitted", "successor/refused", "job/submitted")
    events = [row for row in read_last_rows(run.events, END_BYTES) if row.get("kind") in kinds]
    if not events or events[-1]["kind"] != "successor/refused":
        return []
    return [
        f"limit   the run ends with job {events[-1]['job']}: this cluster does not restart jobs, and the node "
        f"could not submit the next one ({events[-1]['cause']}); afterwards type resume"
    ]


def _describe_silent_controller(run: RunDir) -> list[str]:
    """Explain the wait for Slurm after the node of the controller was lost; only Slurm can restart the job."""
    kinds = ("controller/silent", "controller/recovered", "attempt/started", "attempt/ended")
    events = [row for row in read_last_rows(run.events, END_BYTES) if row.get("kind") in kinds]
    if not events or events[-1]["kind"] != "controller/silent":
        return []
    ago = format_age(time.time() - events[-1]["time"])
    return [
        f"silent  {events[-1]['host']}, the controller's node, since {ago} and {events[-1]['seconds']:g} s; "
        "its scheduler must release the nodes first; Slurm does after SlurmdTimeout (scontrol show config)"
    ]


def _describe_row(last: dict[str, Any], total: int, *, has_pace: bool, now: float) -> list[str]:
    """Return step, pace and watched metrics of the newest row."""
    step = int(last["step"])
    of_all = f" of {total}, {min(1.0, step / total):.0%}" if total else ""
    lines = [f"step    {step}{of_all} ({last['stage']})"]
    seconds = last.get("time/step_s")
    if has_pace and seconds is not None:
        left = f", about {format_seconds(seconds * max(0, total - step))} left" if total else ""
        ago = f", the last {format_age(now - last['time/stamp'])} ago" if "time/stamp" in last else ""
        lines.append(f"pace    {format_seconds(seconds)} a step{ago}{left}")
    lines += [f"{name:<8}{last[key]:.3f}" for key, name in _WATCHED.items() if key in last][:1]
    return lines
