"""Replies of a run's judges and their price, over all attempts, from the last line of judge.jsonl."""

from typing import Any

from slurm_rl.run_dir.jsonl import read_last_rows
from slurm_rl.run_dir.run_dir import RunDir

_END_BYTES = 1 << 20
"""More than any reply."""


def read_judge_total(run: RunDir) -> dict[str, Any] | None:
    """Return `replies` and `cost` of the run so far; None without a judge."""
    rows = read_last_rows(run.judge, _END_BYTES)
    return next((dict(row["total"]) for row in reversed(rows) if isinstance(row.get("total"), dict)), None)


def describe_judge(total: dict[str, Any]) -> str:
    """Return the total as text; the price only if reward.judge has prices.

    >>> describe_judge({"replies": 1200, "cost": 3.456}), describe_judge({"replies": 3, "cost": 0.0})
    ('1,200 replies, price 3.46', '3 replies')
    """
    price = f", price {total['cost']:,.2f}" if total["cost"] else ""
    return f"{total['replies']:,} replies{price}"
