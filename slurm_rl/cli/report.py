"""`report`: write summary.json and report.html of a run again, and print the table; of a sweep, its leaderboard."""

from __future__ import annotations

from slurm_rl.cli.find import find_run, find_sweep
from slurm_rl.cli.goodput import run_goodput
from slurm_rl.cli.results import read_standings
from slurm_rl.cli.words import read_words
from slurm_rl.launch.sweep.ledger import load_ledger
from slurm_rl.plugins.report.html import write_report, write_sweep_report
from slurm_rl.plugins.report.summary import render_summary, write_summary


def run(words: list[str]) -> int:
    told = read_words("report", words)
    if told.flags.goodput:
        return run_goodput(told)
    rest = told.rest
    if sweep := find_sweep(rest):
        ledger = load_ledger(sweep)
        print(write_sweep_report(sweep.path, read_standings(sweep, ledger, ledger.metric), ledger.metric))
        return 0
    directory = find_run(rest)
    summary = write_summary(directory)
    write_report(directory)
    from rich.console import Console

    Console().print(render_summary(summary))
    return 0
