import dataclasses
import time
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import EngineLoad, ModelShape, estimate_engine
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.plan.policy_memory import estimate_policy
from slurm_rl.plan.training_states import PolicyLoad

NAMES = ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-1.5B", "meta-llama/Meta-Llama-3-70B", "meta-llama/Llama-3.1-70B")
SHAPES = {name: find_known(name) for name in NAMES}
QWEN25_7B, QWEN25_1_5B, LLAMA3_70B, LLAMA31_70B = (shape for shape in SHAPES.values() if shape is not None)
QWEN35 = dataclasses.replace(QWEN25_7B, num_linear_layers=21, architecture="Qwen3_5ForCausalLM")
GPT_OSS = dataclasses.replace(QWEN25_7B, architecture="GptOssForCausalLM")
LONG = ["cluster.num_nodes=8", "rollout.max_tokens=130048"]
H100 = [
    "+exp=demo",
    "+cluster=nvidia_h100",
    "model=hf",
    "model.path=/m",
    "data.max_prompt_tokens=1024",
    "rollout.max_tokens=3072",
]


def plan_of(shape: ModelShape, *words: str) -> JobPlan:
    facts = SubmitFacts("/usr/bin/python3", 8, "test", shape)
    return build_plan(load_config([*H100, *words]), "/runs/a", facts)


def test_estimate_policy_subtracts_adapters_and_offload() -> None:
    """70B on 8 workers by hand: 70.6e9 * 2 / 8 bytes of frozen weights; full training takes 16 bytes per parameter."""
    shape = LLAMA3_70B

    full = PolicyLoad("fsdp2", 2, 8, 2, True, 1)

    def estimate(**changes: Any) -> list[float]:
        memory = estimate_policy(shape, dataclasses.replace(full, **changes))
        return [memory.weights_gb, memory.gradients_gb, memory.optimizer_gb]

    assert estimate() == pytest.approx([70.55 / 2, 70.55 / 2, 70.55], rel=1e-3)
    assert estimate(offload="optimizer") == pytest.approx([70.55 / 2, 70.55 / 2, 0], rel=1e-3)
    assert estimate(offload="all") == [0, 0, 0]
    # A layer's seven matrices have 2 * 16384 + 2 * 9216 + 3 * 36864 rows and columns together.
    adapters = 80 * 16 * 161792 / 1e9
    assert estimate(lora_rank=16) == pytest.approx([70.55 / 4 + adapters / 2, adapters / 2, adapters], rel=1e-3)


def test_parse_shape_reads_text_config() -> None:
    text = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 9,
        "intermediate_size": 8,
    }
    assert parse_shape({"text_config": text, "tie_word_embeddings": True}) == ModelShape(2, 64, 8, 9, 4, 4, 16, True)
    assert parse_shape({"model_type": "mamba"}) is None


def test_estimate_policy_follows_zero_paper() -> None:
    """Rajbhandari et al. 2020, figure 1: 16, 4 + 12/N, 2 + 14/N, 16/N bytes per parameter in mixed precision.

    Float32 gradients, from stage 1 on, add 2 bytes per gradient.
    """
    shape, count = QWEN25_7B, QWEN25_7B.num_parameters / 1e9
    for stage, per_parameter in ((0, 16), (1, 6 + 12 / 64), (2, 2 + 16 / 64), (3, 18 / 64)):
        memory = estimate_policy(shape, PolicyLoad("deepspeed", stage, 64, 2, True, 1))
        states = memory.weights_gb + memory.gradients_gb + memory.optimizer_gb
        assert states == pytest.approx(count * per_parameter)


def test_estimate_engine_kv_cache_by_hand() -> None:
    # Keys and values of 28 layers x 4 heads x 128 in 2 bytes: 57,344 bytes per token.
    memory = estimate_engine(QWEN25_7B, EngineLoad(1, bytes_per_value=2, longest_tokens=1000))
    assert memory.kv_sequence_gb == pytest.approx(0.057344)
    # Eight GPUs share four heads: each keeps one.
    split = estimate_engine(LLAMA3_70B, EngineLoad(16, bytes_per_value=2, longest_tokens=1000))
    assert split.kv_sequence_gb == pytest.approx(2 * 80 * 1 * 128 * 2 * 1000 / 1e9)


def test_estimate_engine_reserve_by_hand() -> None:
    """Context and graphs take 2 GB; a pass over 16,384 tokens or sampling for 256 sequences the rest."""
    loads = [EngineLoad(1, 2, 1000, max_num_seqs=n, batch_tokens=16384) for n in (256, 1024)]
    passing, sampling = (estimate_engine(QWEN25_7B, load).reserve_gb - 2 for load in loads)
    assert passing == pytest.approx(16384 * (3 * 3584 + 3 * 18944) * 2 / 1e9)
    assert sampling == pytest.approx(1024 * 152064 * 32 / 1e9)
    eager = dataclasses.replace(loads[0], has_graphs=False)
    assert estimate_engine(QWEN25_7B, eager).reserve_gb == pytest.approx(passing + 1)


def test_layout_fills_in_open_sizes() -> None:
    small = plan_of(QWEN25_7B, "cluster.num_nodes=2").layout
    assert small.colocate and small.micro_batch_tokens >= 4096
    assert small.policy is not None and small.policy.total_gb <= 80
    large = plan_of(LLAMA3_70B, "cluster.num_nodes=16", "model.gradient_checkpointing=true").layout
    assert large.tensor_parallel_size >= 4, "140 GB over 4 x 68 GB; not over 2"


@pytest.mark.parametrize(
    ("shape", "words", "numbers"),
    [
        (LLAMA3_70B, ["cluster.num_nodes=1"], ["GB >", "cluster.gpu_mem_gb", "78.0 GB", "8 workers"]),
        (LLAMA3_70B, ["rollout.tensor_parallel_size=1"], ["GB > 68.0 GB", "tensor_parallel_size=1"]),
        (QWEN25_7B, ["rollout.tensor_parallel_size=8"], ["28 heads over 8 GPUs", "1, 2, 4"]),
        (QWEN25_7B, ["policy.micro_batch_tokens=400000"], ["GB >", "400000"]),
        (LLAMA3_70B, ["rollout.max_tokens=8192"], ["1024 + 8192 > 8192"]),
        (LLAMA31_70B, [*LONG, "policy.context_parallel=1"], ["micro-batches of 131072", "context_parallel=8"]),
        (LLAMA31_70B, [*LONG, "policy.context_parallel=5"], ["64 and 8 heads over 5 ranks", "1, 2, 4, 8"]),
        (LLAMA31_70B, [*LONG, "policy.context_parallel=16"], ["context_parallel=16, 8 workers on a node"]),
        (LLAMA31_70B, [*LONG, "policy.context_parallel=8", "model.attention=sdpa"], ["model.attention=sdpa"]),
        (QWEN35, ["policy.context_parallel=2"], ["text model with attention in every layer", "got Qwen3_5"]),
        (GPT_OSS, ["policy.context_parallel=2"], ["without caps or sinks", "got GptOssForCausalLM"]),
        (LLAMA31_70B, ["policy.num_replicas=3"], ["must divide", "3 * 1 with"]),
    ],
)
def test_oversized_layout_is_refused_with_both_numbers(shape: ModelShape, words: list[str], numbers: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(shape, *words)
    assert all(number in str(caught.value) for number in numbers), str(caught.value)


@pytest.mark.parametrize(
    ("words", "shape", "seen"),
    [
        (["model=hf", "model.path=/m"], dataclasses.replace(QWEN25_7B, head_dim=72), "heads of 72"),
        (
            ["model=hf", "model.path=/m"],
            dataclasses.replace(QWEN25_7B, num_linear_layers=21),
            "set model.dtype=bfloat16",
        ),
    ],
)
def test_head_size_without_cpu_kernel_is_refused(words: list[str], shape: ModelShape | None, seen: str) -> None:
    facts = SubmitFacts("/usr/bin/python3", 8, "test", shape)
    with pytest.raises(ConfigError, match=seen):
        build_plan(load_config(["+exp=demo", *words]), "/runs/a", facts)
    build_plan(load_config(["+exp=sft_tiny", *words]), "/runs/a", facts)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (LLAMA3_70B, ["cluster.num_nodes=1"]),
        (QWEN25_7B, ["policy.micro_batch_tokens=400000"]),
        (QWEN25_7B, ["cluster.num_nodes=2", "policy.logprob_chunk_tokens=null", "policy.micro_batch_tokens=32000"]),
        (
            QWEN25_7B,
            ["cluster.gpus_per_node=2", "model.gradient_checkpointing=false", "policy.micro_batch_tokens=16384"],
        ),
    ],
)
def test_change_named_by_refusal_fits(shape: ModelShape, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(shape, *words)
    change = str(caught.value.action).partition(", ")[0]
    kept = [word for word in words if word.partition("=")[0] != change.partition("=")[0]]
    layout = plan_of(shape, *kept, change).layout
    assert layout.policy is not None and max(layout.policy.phases_gb.values()) <= 80, change


def test_long_sequences_share_rows_and_fit() -> None:
    layout = plan_of(LLAMA31_70B, *LONG).layout
    assert layout.context_parallel == 8 and layout.micro_batch_tokens == 131072
    assert layout.policy is not None and layout.policy.total_gb <= 72
    assert layout.fill_in(load_config(H100)).policy.context == 8
    assert plan_of(LLAMA31_70B, "cluster.num_nodes=8").layout.context_parallel == 1


def test_replicas_hold_more_states() -> None:
    words = ["cluster.num_nodes=4", "policy.num_workers=16", "rollout.colocate=false", "policy.offload=none"]
    whole, replicas = (plan_of(QWEN25_7B, *words, f"policy.num_replicas={n}").layout.policy for n in (1, 2))
    assert whole is not None and replicas is not None
    assert replicas.optimizer_gb == pytest.approx(2 * whole.optimizer_gb)


def test_layout_recomputes_only_if_memory_requires() -> None:
    small, large = plan_of(QWEN25_1_5B).layout, plan_of(LLAMA3_70B, "cluster.num_nodes=16").layout
    assert (small.gradient_checkpointing, large.gradient_checkpointing) == (False, True)
    config = large.fill_in(load_config(H100))
    assert config.model.gradient_checkpointing is True
    assert config.policy.chunk_tokens == large.logprob_chunk_tokens
    assert config.policy.micro_batch_tokens == large.micro_batch_tokens
    chosen = plan_of(QWEN25_1_5B, "model.gradient_checkpointing=true", "policy.logprob_chunk_tokens=100").layout
    assert (chosen.gradient_checkpointing, chosen.logprob_chunk_tokens) == (True, 100)


def test_offloaded_states_must_fit_host_memory() -> None:
    words = ["cluster.num_nodes=4", "policy.offload=all"]
    # 16 bytes for 70.55e9 parameters by 32 workers, 8 of them on a node.
    assert plan_of(LLAMA3_70B, *words).layout.host_gb["train"] == pytest.approx(16 * 70.55 / 4, rel=1e-3)
    with pytest.raises(ConfigError, match=r"cluster\.mem_gb_per_node; got .* GB > 256 GB"):
        plan_of(LLAMA3_70B, *words, "cluster.mem_gb_per_node=256")


def test_unknown_model_has_no_estimate() -> None:
    facts = SubmitFacts("/usr/bin/python3", 8, "test", None)
    plan = build_plan(load_config(H100), "/runs/a", facts)
    assert (plan.layout.tensor_parallel_size, plan.layout.micro_batch_tokens) == (1, 8192)
    assert plan.layout.policy is None and plan.layout.unknown is not None


def test_concurrent_roles_on_cpu_share_cores() -> None:
    def threads(staleness: int) -> dict[str, int | None]:
        facts = SubmitFacts("/usr/bin/python3", 8, "test", None)
        words = ["+exp=demo", f"rollout.max_off_policy_steps={staleness}", "rollout.num_engines=3"]
        return {actor.role: actor.num_threads for actor in build_plan(load_config(words), "/runs/a", facts).actors}

    assert threads(0) == {"policy": 8, "rollout": 2}
    assert threads(1) == {"policy": 2, "rollout": 2}


def test_plan_round_trips_through_json() -> None:
    plan = plan_of(QWEN25_7B, "cluster.num_nodes=2")
    assert JobPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("num_nodes", [2**power for power in range(11)])
def test_gpus_are_used_once_on_up_to_1024_nodes(num_nodes: int) -> None:
    plan = build_plan(config_of(num_nodes), "/runs/a", facts_of(num_nodes))
    assert len({(actor.node, gpu) for actor in plan.actors for gpu in actor.gpus}) == 8 * num_nodes


def test_planning_time_is_linear_in_nodes() -> None:
    """Eight times the nodes take eight times as long; quadratic work would take 64 times."""

    def seconds(num_nodes: int) -> float:
        config, facts, times = config_of(num_nodes), facts_of(num_nodes), []
        for _ in range(5):
            start = time.process_time()
            build_plan(config, "/runs/a", facts)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(2048) / seconds(256) < 24


def config_of(num_nodes: int) -> RunConfig:
    return load_config([*H100, f"cluster.num_nodes={num_nodes}", "model.gradient_checkpointing=true"])


def facts_of(num_nodes: int) -> SubmitFacts:
    return SubmitFacts("/usr/bin/python3", 8, "test", LLAMA3_70B if num_nodes > 8 else QWEN25_7B)


def test_colocated_engines_leave_memory_for_resident_states() -> None:
    """1.5B on one GPU: 18.5 GB of weights, moments and gathered embedding, and 0.85 of the GPU for the engine."""
    words = ("cluster.gpus_per_node=1", "model.gradient_checkpointing=true", "policy.offload=none")
    words += ("rollout.gpu_memory_utilization=0.85",)
    with pytest.raises(ConfigError, match=r"together with a sampling engine") as caught:
        plan_of(QWEN25_1_5B, *words)
    action = str(caught.value.action).partition(", ")[0]
    assert action == "rollout.gpu_memory_utilization=0.72"
    layout = plan_of(QWEN25_1_5B, *words, action).layout
    assert layout.policy is not None and layout.engine_budget_gb is not None
    assert layout.policy.resident_gb + layout.engine_budget_gb <= 80
    with pytest.raises(ConfigError, match=r"utilization=0\.72"):
        plan_of(QWEN25_1_5B, *words, "rollout.gpu_memory_utilization=0.73")


def test_estimate_policy_counts_unreduced_gradients() -> None:
    """Up to a share of the GPU whole gradients replace the shards, which grow while they shrink."""
    shape = QWEN25_7B
    load = PolicyLoad("fsdp2", 0, 8, 2, True, 4096)
    whole = shape.num_parameters * 4
    now, held, more = (
        estimate_policy(shape, dataclasses.replace(load, held_bytes=share * whole)).gradients_gb
        for share in (0.99, 1.0, 0.0)
    )
    assert now == more < held == pytest.approx(whole / 1e9)
