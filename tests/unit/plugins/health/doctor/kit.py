"""A question to a node, without a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm_rl.config.load import load_config
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.plugins.health.doctor.finding import Question


def question(folder: Path, *words: str, num_nodes: int = 1) -> Question:
    config = load_config(["+exp=demo", *words])
    plan = build_plan(config, str(folder / "run"), SubmitFacts("python", 2, "test"))
    return Question(folder, replace(plan, num_nodes=num_nodes), config.cluster.gpu_mem_gb)
