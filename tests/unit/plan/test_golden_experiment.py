"""What `plan` prints for the shipped experiments on the clusters they are meant for, beside what it printed before.

A wanted change: `python -m tests.unit.plan.test_golden_experiment` writes the files again; review the diff.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plan.memory import parse_shape
from slurm_rl.plan.render import render_plan

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = list(itertools.product(["grpo_mathv60k"], ["amd_mi300", "nvidia_a100"]))
# Of config.json of Qwen/Qwen2.5-VL-3B-Instruct, what decides its size.
QWEN2_5_VL_3B = {
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "intermediate_size": 11008,
    "vocab_size": 151936,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048},
}
# A fixed machine and moment, so that the text is the same everywhere.
FACTS = SubmitFacts(python="/venv/bin/python", num_cpus=8, version="VERSION", model_shape=parse_shape(QWEN2_5_VL_3B))


def build(experiment: str, cluster: str) -> JobPlan:
    words = [f"+cluster={cluster}", f"+exp={experiment}", "run_dir=/shared/runs/golden"]
    return build_plan(load_config(words), "/shared/runs/golden", FACTS)


def golden_file(experiment: str, cluster: str) -> Path:
    return GOLDEN / f"exp-{experiment}-{cluster}.txt"


@pytest.mark.parametrize(("experiment", "cluster"), CASES)
def test_the_plan_is_as_before(experiment: str, cluster: str) -> None:
    text = render_plan(build(experiment, cluster)) + "\n"
    assert text == golden_file(experiment, cluster).read_text()


@pytest.mark.parametrize(("experiment", "cluster"), CASES)
def test_the_layout_fits(experiment: str, cluster: str) -> None:
    """Two GPUs a node, each with a policy worker and an engine, and both in its memory at once."""
    plan = build(experiment, cluster)
    places = [(actor.role, list(actor.gpus)) for actor in plan.actors if actor.node == 1]
    assert places == [("policy", [0]), ("policy", [1]), ("rollout", [0]), ("rollout", [1])]
    layout = plan.layout
    assert layout.policy is not None and layout.gpu_mem_gb is not None and layout.engine_budget_gb is not None
    assert layout.policy.total_gb + layout.engine_budget_gb < layout.gpu_mem_gb
    assert layout.micro_batch_tokens >= 4096 + 8000, "one longest sequence"


if __name__ == "__main__":
    for case in CASES:
        golden_file(*case).write_text(render_plan(build(*case)) + "\n")
