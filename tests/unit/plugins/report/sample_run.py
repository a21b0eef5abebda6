"""Events and rows of a short, complete run."""

import math
from pathlib import Path
from typing import Any

from slurm_rl.run_dir.jsonl import append_row

WARMUP, GRPO = 4, 6
START = 1_800_000_000.0


def make_row(step: int, stage: str, **values: float) -> dict[str, Any]:
    return {"step": step, "stage": stage, **values, "time/stamp": START + step}


def make_rows() -> list[dict[str, Any]]:
    """Warm-up 1-4, evaluation, GRPO 5-10, evaluation; a GRPO step takes 2 s, 0.25 s of it unnamed."""
    rows = [make_row(0, "eval", **{"accuracy/greedy": 0.0, "accuracy/sampled": 0.0})]
    rows += [make_row(step, "warmup", **{"policy/loss": 2.0 / step, "time/step_s": 0.5}) for step in range(1, 5)]
    rows += [make_row(4, "eval", **{"accuracy/greedy": 0.25, "accuracy/sampled": 0.125, "time/step_s": 1.0})]
    for step in range(5, 11):
        values = {"reward/mean": step / 16, "kl/reference": math.sqrt(step) / 1000, "tokens/trained": 100}
        values |= {"time/rollout_s": 1.0, "time/train_s": 0.75, "time/step_s": 2.0, "time/tokens_per_s": 50.0}
        rows.append(make_row(step, "grpo", **values))
    rows.append(make_row(10, "eval", **{"accuracy/greedy": 0.75, "accuracy/sampled": 0.5}))
    return rows


def make_events() -> list[dict[str, Any]]:
    return [
        {"time": START - 9.5, "kind": "job/submitted", "job_id": "7"},
        {"time": START - 2.0, "kind": "attempt/started", "attempt": 1},
        {"time": START - 1.0, "kind": "trainer/started", "warmup_steps": WARMUP, "num_steps": GRPO},
        {"time": START + 10.5, "kind": "checkpoint/saved", "step": 10},
        {"time": START + 11.0, "kind": "trainer/finished"},
        {"time": START + 12.0, "kind": "attempt/ended", "outcome": "finished", "cause": "all steps done"},
    ]


def fill(path: Path, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        append_row(path, row)
