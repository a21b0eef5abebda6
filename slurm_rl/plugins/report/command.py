"""`report` and `samples`: reports of a run or a sweep, and the completions of a step."""

import argparse
import json

from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.output import to_printable
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger
from slurm_rl.plugins.report.episodes import render_episodes
from slurm_rl.plugins.report.html import write_report, write_sweep_report
from slurm_rl.plugins.report.leaderboard import print_leaderboard, read_standings
from slurm_rl.plugins.report.summary import print_summary, write_summary
from slurm_rl.run_dir.jsonl import read_rows


def run(args: argparse.Namespace) -> int:
    """Write summary.json and report.html again, and print the table; for a sweep, draw its leaderboard."""
    if args.goodput:
        return int(load_function("slurm_rl.plugins.goodput.command:run")(args))
    path = find_target(args.rest)
    if (sweep := SweepDir(path)).is_sweep:
        metric = load_ledger(sweep).metric
        path = write_sweep_report(sweep.path, read_standings(sweep, metric), metric)
        if args.json:
            print_leaderboard(sweep, as_json=True)
        else:
            print(path)
        return 0
    directory = open_target(path)
    summary = write_summary(directory)
    write_report(directory)
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        print_summary(summary)
    return 0


def run_samples(args: argparse.Namespace) -> int:
    """Print the completions of one step, turn by turn."""
    run = open_target(find_target(args.rest))
    rows = read_rows(run.samples) if run.samples.is_file() else []
    steps = sorted({row["step"] for row in rows if isinstance(row.get("step"), int)})
    if not steps:
        raise ConfigError(
            "a run has episodes after its first step was logged",
            seen=f"none in {run.samples}",
            action="wait for a step, or check logging.samples_per_step and python -m slurm_rl logs",
        )
    step = steps[-1] if args.step is None else args.step
    if step not in steps:
        raise ConfigError(
            "--step must be a step whose episodes were kept",
            seen=f"{step}",
            action=f"choose one from {steps[0]} to {steps[-1]}; logging.samples_per_step limits their number",
        )
    chosen = [row for row in rows if row.get("step") == step]
    print(json.dumps(chosen, indent=2) if args.json else to_printable(render_episodes(chosen)))
    return 0
