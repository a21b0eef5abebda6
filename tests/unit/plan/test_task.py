import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.render import render_plan
from slurm_rl.plan.task import Rendezvous, TorchrunPlan, build_torchrun_argv

FACTS = SubmitFacts("/venv/bin/python", 8, "test")
H100 = ["+cluster=nvidia_h100", "cluster.num_nodes=2"]
CPU = ["+cluster=slurm_cpu", "cluster.num_nodes=2", "cluster.cpus_per_node=4"]


def plan_of(*words: str) -> JobPlan:
    tasks = [word.removeprefix("task=") for word in words if word.startswith("task=")]
    return build_plan(load_config([f"+exp={tasks[0]}_tiny" if tasks else "+exp=demo", *words]), "/runs/a", FACTS)


def test_torchrun_has_rank_per_gpu_and_no_engines() -> None:
    plan = plan_of(*H100, "task=sft")
    assert plan.torchrun == TorchrunPlan(8, None)
    assert [(a.node, a.gpus) for a in plan.actors] == [(n, (g,)) for n in range(2) for g in range(8)]
    assert {a.role for a in plan.actors} == {"policy"}
    assert "engine" not in render_plan(plan)


def test_torchrun_ranks_on_cpu_share_cores() -> None:
    assert plan_of(*CPU, "task=dpo").torchrun == TorchrunPlan(1, 4)
    assert plan_of(*CPU, "task=dpo", "policy.num_workers=4").torchrun == TorchrunPlan(2, 2)
    assert plan_of(*CPU, "task=rm", "policy.num_workers=4", "policy.num_threads=3").torchrun == TorchrunPlan(2, 3)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([*CPU, "policy.num_workers=3"], ["3 workers on 2 nodes", "policy.num_workers=2"]),
        ([*H100, "policy.num_workers=20"], ["20 workers on 2 nodes", "at most 8 a node", "policy.num_workers=16"]),
    ],
)
def test_uneven_ranks_are_refused_with_both_numbers(words: list[str], numbers: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(*words, "task=sft")
    assert all(number in str(caught.value) for number in numbers), str(caught.value)


@pytest.mark.parametrize("task", TORCHRUN_TASKS)
def test_torchrun_environment_has_no_ray_and_vllm(task: str) -> None:
    plan = plan_of(*H100, f"task={task}")
    assert not [name for name in plan.env if name.startswith(("RAY_", "VLLM_"))]
    assert "NCCL_DEBUG" in plan.env
    assert "ray" not in render_plan(plan).lower().replace("array", "")


def test_torchrun_argv_differs_only_in_node_rank() -> None:
    plan, meet = TorchrunPlan(2, None), Rendezvous("10.0.0.1", 10300, 600.0)
    argvs = [build_torchrun_argv(plan, "python", ("x",), node=node, num_nodes=3, meet=meet) for node in range(3)]
    assert [[word for word in argv if word.startswith("--node-rank")] for argv in argvs] == [
        ["--node-rank=0"], ["--node-rank=1"], ["--node-rank=2"],
    ]  # fmt: skip
    assert len({tuple(word for word in argv if not word.startswith("--node-rank")) for argv in argvs}) == 1


def test_shared_critic_has_gpus_of_policy() -> None:
    plan = build_plan(load_config([*H100, "+exp=demo", "+algorithm=ppo"]), "/runs/a", FACTS)
    places = {role: [(a.node, a.gpus) for a in plan.actors if a.role == role] for role in ("policy", "critic")}
    assert places["critic"] == places["policy"] != []
