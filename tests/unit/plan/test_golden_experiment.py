"""What `plan` prints for the shipped experiments on the clusters they are meant for, beside what it printed before.

A wanted change: `python -m tests.unit.plan.test_golden_experiment` writes the files again; review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plan.render import render_plan

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = [("grpo_mathv60k", "amd_mi300"), ("grpo_mathv60k", "nvidia_a100"), ("ppo_llama3_8b", "nvidia_h100")]
NEEDED = {"grpo_mathv60k": [], "ppo_llama3_8b": ["cluster.num_nodes=2", "reward.model.path=/models/llama3-8b-rm"]}
"""Experiment to what it wants to be told."""


def build(experiment: str, cluster: str) -> JobPlan:
    # A fixed machine and moment, so that the text is the same everywhere.
    words = [f"+cluster={cluster}", f"+exp={experiment}", "run_dir=/shared/runs/golden", *NEEDED[experiment]]
    config = load_config(words)
    facts = SubmitFacts("/venv/bin/python", num_cpus=8, version="VERSION", model_shape=find_shape(config.model))
    return build_plan(config, "/shared/runs/golden", facts)


def golden_file(experiment: str, cluster: str) -> Path:
    return GOLDEN / f"exp-{experiment}-{cluster}.txt"


@pytest.mark.parametrize(("experiment", "cluster"), CASES)
def test_the_plan_is_as_before(experiment: str, cluster: str) -> None:
    text = render_plan(build(experiment, cluster)) + "\n"
    assert text == golden_file(experiment, cluster).read_text()


if __name__ == "__main__":
    for case in CASES:
        golden_file(*case).write_text(render_plan(build(*case)) + "\n")
