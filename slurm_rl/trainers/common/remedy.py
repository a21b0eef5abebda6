"""Plan of a run, adapted after an out-of-memory failure."""

from dataclasses import replace

from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json


def load_plan(run: RunDir) -> JobPlan:
    """Read plan.json, with smaller micro-batches after an out-of-memory failure (see launch/controller/ends.py)."""
    plan = JobPlan.from_json(read_json(run.plan))
    if not run.remedy.is_file():
        return plan
    tokens = int(read_json(run.remedy)["micro_batch_tokens"])
    return replace(plan, layout=replace(plan.layout, micro_batch_tokens=tokens))
