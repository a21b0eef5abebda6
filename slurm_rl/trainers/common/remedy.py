"""The plan of a run, with what an attempt that ran out of memory has changed of it."""

from __future__ import annotations

from dataclasses import replace

from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json


def load_plan(run: RunDir) -> JobPlan:
    """plan.json; micro-batches are smaller once the run was out of memory (see launch/controller/ends.py)."""
    plan = JobPlan.from_json(read_json(run.plan))
    if not run.remedy.is_file():
        return plan
    tokens = int(read_json(run.remedy)["micro_batch_tokens"])
    return replace(plan, layout=replace(plan.layout, micro_batch_tokens=tokens))
