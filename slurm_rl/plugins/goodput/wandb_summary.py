"""Goodput of a run for the summary of its W&B page."""

from __future__ import annotations

from slurm_rl.plugins.goodput.read import read_ledger, read_mfu
from slurm_rl.plugins.goodput.words import render_line
from slurm_rl.run_dir.run_dir import RunDir


def summarize_goodput(run: RunDir) -> dict[str, float | str]:
    """Return shares and ratios of the ledger so far; the end of the current attempt is not in it yet."""
    ledger = read_ledger(run)
    if ledger is None:
        return {}
    shares = {name: seconds / ledger.held_s for name, seconds in ledger.buckets.items() if ledger.held_s}
    ratios = {"goodput": ledger.goodput, "ettr": ledger.ettr, "mfu": read_mfu(run, ledger).value}
    found = {name: value for name, value in {**shares, **ratios}.items() if value is not None}
    return {"goodput/sentence": render_line(ledger), **{f"goodput/{name}": value for name, value in found.items()}}
