"""`report`: write summary.json and report.html of a run again, and print the table."""

from __future__ import annotations

from slurm_rl.cli.find import find_run
from slurm_rl.cli.words import read_words
from slurm_rl.report.html import write_report
from slurm_rl.report.summary import render_summary, write_summary


def run(words: list[str]) -> int:
    from rich.console import Console

    directory = find_run(read_words("report", words).rest)
    summary = write_summary(directory)
    write_report(directory)
    Console().print(render_summary(summary))
    return 0
