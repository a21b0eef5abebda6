import json

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.known_models import load_known
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.render import render_plan
from slurm_rl.plan.sbatch import submission_argv

# A run on H100 nodes with its reference on older, smaller V100 nodes.
GROUPS = [
    "cluster.num_nodes=3",
    "+cluster.nodes.v100={count: 1, gpus_per_node: 4, gpu_type: v100, gpu_mem_gb: 32, cpus_per_node: 40}",
    "+cluster.nodes.h100.count=2",
    "algorithm.kl.coef=0.001",
]
PINNED = ["policy.node_group=h100", "rollout.node_group=h100"]
REFERENCE = ["reference.num_workers=4", "reference.node_group=v100"]


def config_of(*words: str) -> RunConfig:
    return load_config(["+exp=demo", "+cluster=nvidia_h100", "model=hf", "model.path=/m", *GROUPS, *words])


def plan_of(*words: str, shape: ModelShape | None = None) -> JobPlan:
    return build_plan(config_of(*words), "/runs/a", SubmitFacts("/usr/bin/python3", 8, "test", shape))


def nodes_of(plan: JobPlan, role: str) -> list[int]:
    return [actor.node for actor in plan.actors if actor.role == role]


def test_reference_runs_on_its_group_and_other_roles_elsewhere() -> None:
    plan = plan_of(*PINNED, *REFERENCE)
    assert [(group.name, group.count, group.gpus_per_node) for group in plan.node_groups] == [
        ("h100", 2, 8),
        ("v100", 1, 4),
    ]
    assert plan.gpus_by_node == [8, 8, 4]
    assert nodes_of(plan, "reference") == [2] * 4
    assert {gpu for actor in plan.actors if actor.node == 2 for gpu in actor.gpus} == {0, 1, 2, 3}
    assert set(nodes_of(plan, "policy")) | set(nodes_of(plan, "rollout")) == {0, 1}


def test_each_group_is_component_with_its_options() -> None:
    plan = plan_of(*PINNED, *REFERENCE, "cluster.slurm.account=a1")
    argv = submission_argv(plan)
    first, second = argv[: argv.index(":")], argv[argv.index(":") + 1 :]
    assert {"--nodes=2", "--gres=gpu:h100:8", "--constraint=h100", "--account=a1", "--requeue"} <= set(first)
    assert {"--nodes=1", "--gres=gpu:v100:4", "--cpus-per-task=40", "--account=a1", "--requeue"} <= set(second)
    # The GPU type selects the nodes; options of the whole job are only in the first component.
    assert not any(word.startswith(("--constraint", "--signal", "--output", "--job-name")) for word in second)


def test_step_starts_on_both_components() -> None:
    shown = render_plan(plan_of(*PINNED, *REFERENCE))
    assert "nodes      2 x 8 nvidia GPUs, Slurm default cores (h100)\nnodes      1 x 4 nvidia GPUs, 40 cores" in shown
    step = shown.splitlines()[-1]
    assert step.count("slurm_rl.node.agent") == 2 and " : --het-group=1 --nodes=1 " in step
    assert "task-0-%t.log" in step and "task-1-%t.log" in step


def test_role_uses_all_gpus_of_its_group() -> None:
    plan = plan_of("policy.node_group=h100", "rollout.node_group=v100")
    assert len(nodes_of(plan, "policy")) == 16
    assert nodes_of(plan, "rollout") == [2] * 4


def test_critic_runs_on_its_group() -> None:
    plan = plan_of("+algorithm=ppo", *PINNED, "critic.num_workers=4", "critic.node_group=v100")
    assert nodes_of(plan, "critic") == [2] * 4


SERVICES = [
    "+reward=service",
    "reward.service.num_replicas=2",
    "reward.service.node_group=v100",
    "reward.service.address=cluster",
]
MODEL = ["reward.model.path=/rm", "reward.model.device=cuda"]
REWARD_SHAPE = ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False)


def services_of(*words: str, shape: ModelShape | None = REWARD_SHAPE) -> JobPlan:
    config = config_of(*PINNED, *SERVICES, *MODEL, *words)
    return build_plan(config, "/runs/a", SubmitFacts("/usr/bin/python3", 8, "test", None, shape))


def test_services_with_model_have_gpu_each_on_their_group() -> None:
    plan = services_of("reference.num_workers=2", "reference.node_group=v100", "reward.model.dtype=bfloat16")
    given = [(actor.role, actor.node, actor.gpus) for actor in plan.actors if actor.node == 2]
    assert sorted(given) == [
        ("reference", 2, (0,)),
        ("reference", 2, (1,)),
        ("reward", 2, (2,)),
        ("reward", 2, (3,)),
    ]
    assert "reward-0 on GPU 2, reward-1 on GPU 3" in render_plan(plan)


def test_evaluation_places_services_on_their_group() -> None:
    task = ["eval.only=true", "data.train=''", "+eval.sets.sums.data=addition", "algorithm.kl.coef=0"]
    plan = services_of(*task, "policy.node_group=null")
    assert [group.name for group in plan.node_groups] == ["v100", "h100"]
    assert nodes_of(plan, "reward") == [0, 0] and set(nodes_of(plan, "rollout")) == {1, 2}


def test_services_without_model_run_on_cpu_nodes() -> None:
    cpu = "+cluster.nodes.cpu={count: 2, gpus_per_node: 0, partition: long}"
    words = [*PINNED, *REFERENCE, *SERVICES, "cluster.num_nodes=5", cpu, "reward.service.node_group=cpu"]
    plan = plan_of(*words)
    assert [(actor.node, actor.gpus) for actor in plan.actors if actor.role == "reward"] == [(3, ()), (4, ())]
    text = render_explanation(config_of(*words), plan, None)
    assert "in each of 2 services of the run on nodes of cpu" in " ".join(text.split())


def test_services_spread_over_equal_nodes() -> None:
    words = ["+reward=service", "reward.service.address=cluster", "reward.service.num_replicas=4"]
    assert nodes_of(alike(*words), "reward") == [], "all next to the trainer"
    assert nodes_of(alike(*words, "reward.service.spread=true"), "reward") == [0, 1, 2, 0]


def test_services_on_gpus_need_no_group_on_equal_nodes() -> None:
    plan = alike(*SERVICES[:2], *MODEL, "reward.service.address=cluster", "reference.num_workers=1")
    given = [(actor.node, gpu) for actor in plan.actors for gpu in actor.gpus]
    assert nodes_of(plan, "reward") == [2, 2] and len(given) == len(set(given))


def test_reward_model_must_fit_gpus_of_its_group() -> None:
    plan = services_of("reference.num_workers=2", "reward.model.dtype=bfloat16")
    memory = plan.layout.service
    # Llama's 8 billion weights minus the output layer, 2 bytes each.
    assert memory is not None and memory.weights_gb == pytest.approx(15.0, abs=0.1) and memory.total_gb < 32
    assert JobPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(ConfigError, match="the reward models of a service must fit its GPU") as caught:
        services_of("reward.num_workers=2", "reference.num_workers=2", "reward.model.dtype=bfloat16")
    assert "> 32.0 GB: 2 workers, each weights 15.0" in str(caught.value)
    # Unknown models are not estimated.
    assert services_of("reference.num_workers=2", shape=None).layout.service is None


def test_cpu_group_gets_no_gpu_process() -> None:
    cpu = "+cluster.nodes.cpu={count: 2, gpus_per_node: 0, partition: long, mem_gb_per_node: 64}"
    plan = plan_of(cpu, "cluster.num_nodes=5", *PINNED, *REFERENCE)
    assert plan.gpus_by_node == [8, 8, 4, 0, 0]
    assert {actor.node for actor in plan.actors} == {0, 1, 2}
    last = plan.het[-1]
    assert (last["nodes"], last["partition"], last["mem"]) == (2, "long", "64G")
    assert "gres" not in last and "constraint" not in last


def test_each_role_must_fit_gpus_of_its_group() -> None:
    shape = load_known()["qwen/qwen3-4b"]
    plan = plan_of(*PINNED, *REFERENCE, shape=shape)
    assert plan.layout.capacities_gb == {"policy": 80.0, "rollout": 80.0, "reference": 32.0}
    assert plan.layout.reference is not None and plan.layout.reference.total_gb < 32
    config = config_of(*PINNED, *REFERENCE)
    assert "reference GPU, of 32" in render_explanation(config, plan, shape)
    with pytest.raises(ConfigError, match="a reference worker must fit its GPU") as caught:
        plan_of(*PINNED, *REFERENCE, "cluster.nodes.v100.gpu_mem_gb=10", shape=shape)
    assert "> 10.0 GB" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["policy.node_group=a100"], ["policy.node_group", "'a100'", "v100, h100"]),
        (["cluster.num_nodes=4"], ["3", "4", "cluster.num_nodes=3"]),
        (["job.num_spare_nodes=1"], ["job.num_spare_nodes", "1"]),
        (["reference.node_group=v100"], ["reference.num_workers"]),
        (["+algorithm=ppo", "critic.node_group=v100"], ["critic.node_group", "critic.dedicated_gpus=true"]),
        (["reference.num_workers=1", "algorithm.kl.coef=0"], ["algorithm.kl.coef"]),
        (["cluster.slurm.constraint=ib"], ["cluster.slurm.constraint", "'ib'"]),
        (["cluster.slurm.nodelist=n1"], ["cluster.slurm.nodelist", "'n1'"]),
        (["+cluster.slurm.extra.gpus_per_node=2"], ["cluster.slurm.extra.gpus_per_node", "'2'"]),
        (["cluster.topology.segment=2"], ["cluster.nodes.v100.count must be divisible", "1 and 2", "count=2"]),
        ([*PINNED, "reference.num_workers=9", "reference.node_group=v100"], ["reference.num_workers", "9 > 1 * 4"]),
        (["policy.node_group=v100", "policy.num_workers=9"], ["policy.num_workers", "9 > 1 * 4"]),
        ([*SERVICES[1:3]], ["reward.service.node_group", "'v100'", "reward.service.enabled=true"]),
        ([*SERVICES[:3]], ["reward.service.address=cluster", "'loopback'"]),
        (["reward.service.spread=true"], ["reward.service.spread", "reward.service.enabled=true"]),
        ([*SERVICES, "reward.service.node_group=a100"], ["reward.service.node_group", "'a100'", "v100, h100"]),
        ([*SERVICES, *MODEL, "reward.model.device=cuda:1"], ["reward.model.device=cuda", "'cuda:1'"]),
        (
            [*PINNED, *SERVICES, *MODEL, "reward.service.num_replicas=5"],
            ["reward.service.num_replicas", "nodes with v100", "5 > 1 * 4"],
        ),
        (
            [*SERVICES, *MODEL, "cluster.nodes.v100.gpus_per_node=0"],
            ["reward.service.node_group", "with GPUs", "'v100'"],
        ),
        (["policy.num_workers=99"], ["policy.num_workers", "99 > 20"]),
        (
            ["cluster.nodes.v100.gpus_per_node=0", "policy.node_group=v100"],
            ["policy.node_group", "with GPUs", "'v100'"],
        ),
    ],
)
def test_impossible_groups_are_refused(words: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(*words)
    assert all(word in str(caught.value) for word in parts), str(caught.value)


def test_torchrun_needs_equal_nodes() -> None:
    with pytest.raises(ConfigError, match=r"v100: 4, h100: 8"):
        load_config(["+exp=sft_llama3_8b", "+cluster=nvidia_h100", *GROUPS[:3]])


def alike(*words: str) -> JobPlan:
    split = ("+exp=demo", "+cluster=nvidia_h100", "model=hf", "model.path=/m", "rollout.colocate=false", GROUPS[3])
    config = load_config([*split, "cluster.num_nodes=3", *words])
    return build_plan(config, "/runs/a", SubmitFacts("/usr/bin/python3", 8, "test"))


def test_dedicated_critic_shares_no_gpu() -> None:
    plan = alike("+algorithm=ppo", "critic.num_workers=3", "reference.num_workers=2")
    given = [(actor.node, gpu) for actor in plan.actors for gpu in actor.gpus]
    assert len(given) == len(set(given)) == 24, "every GPU once"
    assert nodes_of(plan, "critic") == [2, 2, 2] and nodes_of(plan, "reference") == [2, 2]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["critic.num_workers=2"], ["critic.num_workers", "+algorithm=ppo"]),
        (["reward.model.path=/rm", "reward.model.device=critic"], ["reward.model.device=critic", "+algorithm=ppo"]),
        (
            ["+algorithm=ppo", "reward.model.path=/rm", "reward.model.device=critic", "reward.service.enabled=true"],
            ["reward.service.enabled", "reward.model.device=cpu"],
        ),
        (["+algorithm=ppo", "critic.num_workers=25"], ["critic.num_workers", "25 > 3 * 8"]),
    ],
)
def test_impossible_critic_is_refused(words: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        alike(*words)
    assert all(word in str(caught.value) for word in parts), str(caught.value)
