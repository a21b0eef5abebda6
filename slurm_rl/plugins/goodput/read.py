"""Read the ledger of a run directory, and add the ledgers of several runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from slurm_rl.plugins.goodput.holds import NOT_BILLED, Billed
from slurm_rl.plugins.goodput.ledger import build_ledger
from slurm_rl.plugins.goodput.mfu import Mfu, compute_mfu
from slurm_rl.plugins.goodput.nouns import BUCKETS, Charge, Ledger
from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json


def read_steps(run: RunDir) -> dict[int, list[Row]]:
    """Return the rows of steps.jsonl by attempt."""
    return {number: read_rows(run.attempt(number).steps) for number in run.attempt_numbers()}


def read_jobs(run: RunDir) -> list[str]:
    """Return the jobs of all attempts."""
    begun = [row for row in read_rows(run.events) if row.get("kind") == "attempt/started"]
    return list(dict.fromkeys(str(row.get("job")) for row in begun))


def read_ledger(run: RunDir, *, since: float | None = None, billed: Billed = NOT_BILLED) -> Ledger | None:
    """Return the current ledger; None before the first attempt, or if the run has no controller.

    Args:
        since: Unix time; omit everything before it.
        billed: accounting records of its jobs.
    """
    plan = read_json(run.plan) if run.plan.is_file() else {}
    gpus = int(plan.get("gpus_per_node") or 0)
    each = gpus or 1
    idle = int(plan.get("num_spare_nodes") or 0)
    nodes = int(plan.get("num_nodes") or 1) + idle
    return build_ledger(
        read_rows(run.events),
        read_steps(run),
        unit="GPU" if gpus else "node",
        units=nodes * each,
        spare=idle * each,
        since=since or 0.0,
        billed=billed,
    )


def read_mfu(run: RunDir, ledger: Ledger) -> Mfu:
    """Return the MFU of a run from its metrics and config."""
    try:
        config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        config = None
    return compute_mfu(ledger, read_rows(run.metrics), config if isinstance(config, dict) else {})


def add_ledgers(ledgers: Sequence[Ledger]) -> Ledger | None:
    """Return the sum of ledgers; None if there are none.

    Raises:
        ValueError: GPU-seconds and node-seconds do not add up.
    """
    if not ledgers:
        return None
    if len({ledger.unit for ledger in ledgers}) > 1:
        raise ValueError("GPU-seconds and node-seconds do not add up")
    charges: dict[object, Charge] = {}
    for charge in (charge for ledger in ledgers for charge in ledger.charges):
        before = charges.get(charge.cause)
        both = _add(each.buckets for each in (before, charge) if each)
        charges[charge.cause] = Charge(charge.cause, charge.attempts + (before.attempts if before else 0), both)
    return Ledger(
        ledgers[0].unit,
        attempts=sum(ledger.attempts for ledger in ledgers),
        held_s=sum(ledger.held_s for ledger in ledgers),
        queue_s=sum(ledger.queue_s for ledger in ledgers),
        queue_unit_s=sum(ledger.queue_unit_s for ledger in ledgers),
        buckets={**dict.fromkeys(BUCKETS, 0.0), **_add(ledger.buckets for ledger in ledgers)},
        charges=tuple(sorted(charges.values(), key=lambda charge: -charge.seconds)),
        phases=_add(ledger.phases for ledger in ledgers),
        unknown=_count_unknown(ledgers),
    )


def _add(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def _count_unknown(ledgers: Sequence[Ledger]) -> tuple[str, ...]:
    count = sum(bool(ledger.unknown) for ledger in ledgers)
    return (f"{count} of {len(ledgers)} runs left no times of steps",) if count else ()


def find_runs(folder: Path) -> list[RunDir]:
    """Return the run itself, or all runs one to three levels below the folder."""
    if (folder / "plan.json").is_file():
        return [RunDir(folder)]
    plans = [plan for depth in ("*", "*/*", "*/*/*") for plan in folder.glob(f"{depth}/plan.json")]
    return [RunDir(plan.parent) for plan in sorted(plans)]
