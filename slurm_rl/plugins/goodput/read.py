"""Read the ledger and the MFU of run directories.

Model FLOPs utilization as in PaLM (arXiv:2204.02311, appendix B), over the surviving steps: 6 FLOPs per active
parameter for a trained token, 2 for a prefilled or sampled token. The FLOPs of attention are omitted; below 4,096
tokens they are less than a tenth for models from 7B on.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from slurm_rl.node.gpu_peaks import find_peak
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.plugins.goodput.ledger import build_ledger
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.plugins.goodput.types import Ledger
from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json


class Mfu(NamedTuple):
    """Share of the peak FLOP/s, or the reason why it is unknown."""

    value: float | None
    why: str = ""


def read_steps(run: RunDir) -> dict[int, list[Row]]:
    """Return the rows of steps.jsonl by attempt."""
    return {number: read_rows(run.attempt(number).steps) for number in run.attempt_numbers()}


def read_ledger(run: RunDir) -> Ledger | None:
    """Return the current ledger; None before the first attempt, or if the run has no controller."""
    plan = read_json(run.plan) if run.plan.is_file() else {}
    unit = "GPU" if plan.get("gpus_per_node") else "node"
    return build_ledger(read_rows(run.events), read_steps(run), unit=unit)


def find_runs(folder: Path) -> list[RunDir]:
    """Return the run itself, or all runs one to three levels below the folder."""
    if (folder / "plan.json").is_file():
        return [RunDir(folder)]
    plans = [plan for depth in ("*", "*/*", "*/*/*") for plan in folder.glob(f"{depth}/plan.json")]
    return [RunDir(plan.parent) for plan in sorted(plans)]


def describe_gpu_time(run: RunDir) -> str | None:
    """Return the time held and its shares in one line; None before the first attempt."""
    ledger = read_ledger(run)
    return None if ledger is None else render_line(ledger)


def read_mfu(run: RunDir, ledger: Ledger) -> Mfu:
    """Return the MFU of a run from its metrics and config."""
    try:
        config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        config = None
    return compute_mfu(ledger, read_rows(run.metrics), config if isinstance(config, dict) else {})


def compute_mfu(ledger: Ledger, rows: Sequence[Row], config: Mapping[str, Any]) -> Mfu:
    """Return the MFU of a run.

    Args:
        rows: rows of metrics.jsonl, which has the surviving steps.
        config: config.yaml as a tree.
    """
    trained = ledger.buckets.get("trained", 0.0)
    if ledger.unit != "GPU":
        return Mfu(None, "no GPU")
    if not trained or ledger.unknown:
        return Mfu(None, "the step times are unknown")
    name = str((config.get("cluster") or {}).get("gpu_type") or "")
    peak = find_peak(name.upper())
    if peak is None:
        return Mfu(None, f"the peak of {name} is unknown" if name else "cluster.gpu_type is not set")
    model = str((config.get("model") or {}).get("path") or "")
    try:
        tree = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
        shape = parse_shape(tree) if isinstance(tree, dict) else None
    except (OSError, ValueError):
        shape = find_known(model)
    if shape is None:
        return Mfu(None, "the size of the model is unknown")
    return Mfu(count_flops(rows, shape.active_parameters) / (trained * peak.tflops * 1e12))


def count_flops(rows: Sequence[Row], num_parameters: int) -> float:
    """Return the FLOPs of all training steps; evaluations are excluded, like their time.

    >>> count_flops([{"stage": "sft", "tokens/computed": 10.0}, {"stage": "eval", "tokens/sampled": 10.0}], 2)
    120.0
    """
    total = 0.0
    for row in (row for row in rows if row.get("stage") != "eval"):
        total += 6.0 * num_parameters * float(row.get("tokens/computed") or row.get("tokens/trained") or 0.0)
        total += 2.0 * num_parameters * (row.get("tokens/prompt", 0.0) + row.get("tokens/sampled", 0.0))
    return total


def summarize_goodput(run: RunDir) -> dict[str, float | str]:
    """Return shares and ratios for the summary of W&B; the end of the current attempt is not in it yet."""
    ledger = read_ledger(run)
    if ledger is None:
        return {}
    shares = {name: seconds / ledger.held_s for name, seconds in ledger.buckets.items() if ledger.held_s}
    ratios = {"goodput": ledger.goodput, "ettr": ledger.ettr, "mfu": read_mfu(run, ledger).value}
    found = {f"goodput/{name}": value for name, value in {**shares, **ratios}.items() if value is not None}
    return {"goodput/sentence": render_line(ledger), **found}
