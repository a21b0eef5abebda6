"""Model FLOPs utilization of the surviving steps, as in PaLM (arXiv:2204.02311, appendix B).

Only the FLOPs of the model count, without recomputation: 6 per parameter for a trained token, 2 for a prefilled or
sampled token. The FLOPs of attention are omitted; below 4,096 tokens they are less than a tenth for models from 7B on,
so the value is slightly too low.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.node.gpu_peaks import find_peak
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import ModelShape, parse_shape
from slurm_rl.plugins.goodput.nouns import Ledger
from slurm_rl.run_dir.jsonl import Row


@dataclass(frozen=True)
class Mfu:
    """Share of the peak FLOP/s, or the reason why it is unknown."""

    value: float | None
    why: str = ""


def compute_mfu(ledger: Ledger, rows: Sequence[Row], config: Mapping[str, Any]) -> Mfu:
    """Return the MFU of a run.

    Args:
        rows: rows of metrics.jsonl, which has the surviving steps.
        config: config.yaml as a tree.
    """
    cluster, model = config.get("cluster") or {}, config.get("model") or {}
    trained = ledger.buckets.get("trained", 0.0)
    if ledger.unit != "GPU":
        return Mfu(None, "no GPU")
    if not trained or ledger.unknown:
        return Mfu(None, "the time of steps is not known")
    name = str(cluster.get("gpu_type") or "")
    peak = find_peak(name.upper())
    if peak is None:
        return Mfu(None, f"the peak of {name} is not known" if name else "cluster.gpu_type does not say which GPU")
    shape = _find_shape(str(model.get("path") or ""))
    if shape is None:
        return Mfu(None, "the model's size is not known")
    if shape.num_experts > 1:
        return Mfu(None, "how many parameters of a mixture a token uses is not known")
    return Mfu(count_flops(rows, shape.num_parameters) / (trained * peak.tflops * 1e12))


def count_flops(rows: Sequence[Row], num_parameters: int) -> float:
    """Return the FLOPs of all training steps; evaluations are excluded, like their time.

    >>> count_flops([{"stage": "sft", "tokens/computed": 10.0}, {"stage": "eval", "tokens/sampled": 10.0}], 2)
    120.0
    """
    steps = [row for row in rows if row.get("stage") != "eval"]
    total = 0.0
    for row in steps:
        trained = float(row.get("tokens/computed") or row.get("tokens/trained") or 0.0)
        total += 6.0 * num_parameters * trained
        total += 2.0 * num_parameters * (row.get("tokens/prompt", 0.0) + row.get("tokens/sampled", 0.0))
    return total


def _find_shape(name: str) -> ModelShape | None:
    """Return the shape of a model in a local folder, or of a known model of the hub."""
    try:
        tree = json.loads((Path(name).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return find_known(name)
    return parse_shape(tree) if isinstance(tree, dict) else None
