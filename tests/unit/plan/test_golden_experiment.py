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
COLOCATED = list(itertools.product(["grpo_mathv60k"], ["amd_mi300", "nvidia_a100"]))
CASES = [*COLOCATED, ("ppo_llama3_8b", "nvidia_h100")]
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
# The same of meta-llama/Meta-Llama-3-8B.
LLAMA3_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
MODELS: dict[str, tuple[dict[str, object], list[str]]] = {
    "grpo_mathv60k": (QWEN2_5_VL_3B, ["cluster.num_nodes=2", "cluster.gpus_per_node=2"]),
    "ppo_llama3_8b": (LLAMA3_8B, ["cluster.num_nodes=2", "reward.model.path=/models/llama3-8b-rm"]),
}
"""Experiment to its model, and what it wants to be told."""


def build(experiment: str, cluster: str) -> JobPlan:
    shape, more = MODELS[experiment]
    # A fixed machine and moment, so that the text is the same everywhere.
    facts = SubmitFacts(python="/venv/bin/python", num_cpus=8, version="VERSION", model_shape=parse_shape(shape))
    words = [f"+cluster={cluster}", f"+exp={experiment}", "run_dir=/shared/runs/golden", *more]
    return build_plan(load_config(words), "/shared/runs/golden", facts)


def golden_file(experiment: str, cluster: str) -> Path:
    return GOLDEN / f"exp-{experiment}-{cluster}.txt"


@pytest.mark.parametrize(("experiment", "cluster"), CASES)
def test_the_plan_is_as_before(experiment: str, cluster: str) -> None:
    text = render_plan(build(experiment, cluster)) + "\n"
    assert text == golden_file(experiment, cluster).read_text()


@pytest.mark.parametrize(("experiment", "cluster"), COLOCATED)
def test_the_layout_fits(experiment: str, cluster: str) -> None:
    """Two GPUs a node, each with a policy worker and an engine, and both in its memory at once."""
    plan = build(experiment, cluster)
    places = [(actor.role, list(actor.gpus)) for actor in plan.actors if actor.node == 1]
    assert places == [("policy", [0]), ("policy", [1]), ("rollout", [0]), ("rollout", [1])]
    layout = plan.layout
    assert layout.policy is not None and layout.gpu_mem_gb is not None and layout.engine_budget_gb is not None
    assert layout.policy.total_gb + layout.engine_budget_gb < layout.gpu_mem_gb
    assert layout.policy.frozen_gb > 7, "each worker holds the reference, too"
    assert layout.micro_batch_tokens >= 4096 + 8000, "one longest sequence"


def test_the_critic_stands_with_the_reward_model_and_the_policy_with_the_reference() -> None:
    """The groups of OpenRLHF's script, --colocate_critic_reward --colocate_actor_ref, on its 16 GPUs."""
    plan = build("ppo_llama3_8b", "nvidia_h100")
    places = [(actor.role, (actor.node, *actor.gpus)) for actor in plan.actors]
    assert [place for role, place in places if role == "policy"] == [(0, gpu) for gpu in range(4)]
    assert [place for role, place in places if role == "critic"] == [(1, gpu) for gpu in range(4, 8)]
    assert [place for role, place in places if role == "rollout"] == [(0, 4, 5), (0, 6, 7), (1, 0, 1), (1, 2, 3)]
    assert plan.layout.policy is not None and plan.layout.critic is not None
    assert (plan.layout.policy.frozen_gb, plan.layout.critic.frozen_gb) == pytest.approx((16.06, 16.06), rel=1e-3)
    assert JobPlan.from_json(plan.to_json()) == plan


if __name__ == "__main__":
    for case in CASES:
        golden_file(*case).write_text(render_plan(build(*case)) + "\n")
