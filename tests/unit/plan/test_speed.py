from typing import Any

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.node.gpu_peaks import find_peak
from slurm_rl.plan.gpus import find_gpu, load_gpus
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step_times import StepEstimate
from tests.layout_table import PAGE, PUBLISHED, plan_of, render_page

MODEL = "Qwen/Qwen3-8B"


def step_of(plan: JobPlan) -> StepEstimate:
    assert plan.layout.step is not None
    return plan.layout.step


def test_estimates_are_near_published_steps() -> None:
    for source, model, nodes, words, _, seconds in PUBLISHED:
        estimated = step_of(plan_of(model, nodes, 8, *words)).total_s
        assert 0.5 < estimated / seconds < 2, (source, model, nodes, estimated)


def test_page_of_layouts_is_current() -> None:
    """To update: `python -m tests.layout_table write`."""
    assert render_page() == PAGE.read_text()


def test_gpu_table_agrees_with_node_checks() -> None:
    for gpu in load_gpus():
        peak = find_peak(gpu.name.partition(" ")[0])
        assert gpu.source and (peak is None or peak.tflops == gpu.tflops), gpu.name


@pytest.mark.parametrize(
    ("cluster", "words", "name"),
    [
        ("nvidia_a100", [], "A100 80 GB"),
        ("nvidia_a100", ["cluster.gpu_mem_gb=40"], "A100 40 GB"),
        ("nvidia_h200", ["cluster.gpu_type=null"], "H200"),
        ("amd_mi300", [], "MI300X"),
        ("amd_mi250", [], "MI250X"),
        ("nvidia_h100", ["cluster.gpu_type=null", "cluster.detected='nvidia-smi: 8 x NVIDIA L40S'"], "L40S"),
        ("nvidia_h100", ["cluster.gpu_type=rtx", "cluster.gpu_mem_gb=24"], "A100 40 GB"),
    ],
)
def test_gpu_is_found_by_name_or_memory(cluster: str, words: list[str], name: str) -> None:
    from slurm_rl.config.load import load_config

    assert find_gpu(load_config(["+exp=demo", f"+cluster={cluster}", *words]), "policy").name == name


def test_synchronous_loop_shares_gpus_and_stale_one_splits_them() -> None:
    sync, stale = plan_of(MODEL, 1, 8), plan_of(MODEL, 1, 8, "rollout.max_off_policy_steps=1")
    assert (sync.layout.colocate, sync.weight_transfer) == (True, "ipc")
    assert (stale.layout.colocate, stale.weight_transfer) == (False, "nccl")
    times = step_of(stale)
    assert times.total_s == max(times.seconds["sample"], sum(times.seconds.values()) - times.seconds["sample"])


def test_synchronous_split_states_its_cause() -> None:
    """8B: 12.3 GB of states and 2 GB of gathered embeddings leave no room for 0.85 of the GPU."""
    layout = plan_of(MODEL, 1, 8, "rollout.gpu_memory_utilization=0.85", "policy.offload=none").layout
    assert not layout.colocate and "do not fit (sample takes" in layout.split_why
    assert plan_of(MODEL, 1, 8, "rollout.colocate=false").layout.split_why == ""


def test_explicit_values_are_kept() -> None:
    words = ["rollout.colocate=false", "policy.num_workers=2", "rollout.tensor_parallel_size=2", "policy.offload=all"]
    plan = plan_of(MODEL, 1, 8, *words, "policy.micro_batch_tokens=5000", "model.gradient_checkpointing=true")
    layout, roles = plan.layout, [actor.role for actor in plan.actors]
    assert (layout.colocate, layout.tensor_parallel_size, layout.offload) == (False, 2, "all")
    assert (layout.micro_batch_tokens, layout.gradient_checkpointing) == (5000, True)
    assert (roles.count("policy"), roles.count("rollout")) == (2, 3)


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"rollout.gpu_memory_utilization": 0.35}, "sample"),
        ({"rollout.max_num_seqs": 16}, "sample"),
        ({"policy.offload": "optimizer"}, "train"),
        ({"model.gradient_checkpointing": "true", "policy.micro_batch_tokens": 8192}, "train"),
        ({"algorithm.kl.coef": 0.1}, "logprobs"),
        ({"rollout.weight_transfer": "ray"}, "sync"),
    ],
)
def test_costs_appear_in_their_phase(change: dict[str, Any], slower: str) -> None:
    fixed = {"rollout.colocate": "true", "rollout.tensor_parallel_size": 1, "policy.offload": "none"}
    fixed |= {"rollout.gpu_memory_utilization": 0.5, "ray.object_store_gb": 100}
    plain, changed = (
        step_of(plan_of(MODEL, 2, 8, *(f"{key}={value}" for key, value in values.items())))
        for values in (fixed, fixed | change)
    )
    assert changed.seconds[slower] > plain.seconds[slower]


def test_engine_with_little_room_says_its_cost() -> None:
    times = step_of(plan_of(MODEL, 1, 8, "rollout.gpu_memory_utilization=0.3", "rollout.tensor_parallel_size=1"))
    assert times.num_concurrent < times.num_asked and times.waiting_s > 0


def test_store_that_cannot_hold_weights_is_refused() -> None:
    words = ["rollout.weight_transfer=ray", "rollout.colocate=false"]
    with pytest.raises(ConfigError, match=r"ray\.object_store_gb.*got 65\.5 GB .*32"):
        plan_of("Qwen/Qwen3-32B", 4, 8, *words)
    plan_of("Qwen/Qwen3-32B", 4, 8, *words, "ray.object_store_gb=140")
