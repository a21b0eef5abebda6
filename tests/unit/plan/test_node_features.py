"""Nodes of several kinds: which role stands where, and which host becomes which rank."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launchers.slurm.hosts import order_by_feature
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan

KINDS = [
    "cluster.num_nodes=3",
    "+cluster.node_features.v100=1",
    "+cluster.node_features.h100=2",
    "algorithm.kl.coefficient=0.001",
]
PINNED = ["policy.node_feature=h100", "rollout.node_feature=h100"]
REFERENCE = ["reference.num_workers=8", "reference.node_feature=v100"]


def plan_of(*words: str) -> JobPlan:
    config = load_config(["+exp=demo", "+cluster=nvidia_h100", "model=hf", "model.path=/m", *KINDS, *words])
    return build_plan(config, "/runs/a", SubmitFacts("/usr/bin/python3", 8, "test"))


def nodes_of(plan: JobPlan, role: str) -> list[int]:
    return [actor.node for actor in plan.actors if actor.role == role]


def test_the_reference_stands_on_the_small_gpus_and_the_rest_on_the_large_ones() -> None:
    plan = plan_of(*PINNED, *REFERENCE)
    assert plan.node_features == ("h100", "h100", "v100")
    assert set(nodes_of(plan, "reference")) == {2} and len(nodes_of(plan, "reference")) == 8
    assert set(nodes_of(plan, "policy")) | set(nodes_of(plan, "rollout")) == {0, 1}
    assert plan.sbatch["constraint"] == "[v100*1&h100*2]"


def test_roles_on_kinds_of_their_own_take_all_of_them() -> None:
    plan = plan_of("policy.node_feature=h100", "rollout.node_feature=v100")
    assert len(nodes_of(plan, "policy")) == 16
    assert nodes_of(plan, "rollout") == [2] * 8


def test_no_gpu_is_given_twice() -> None:
    plan = plan_of("reference.num_workers=3")
    given = [(actor.node, gpu) for actor in plan.actors for gpu in actor.gpus]
    assert len(given) == len(set(given))
    assert len(nodes_of(plan, "reference")) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy.node_feature=a100"], ["policy.node_feature", "'a100'", "v100, h100"]),
        (["cluster.num_nodes=4"], ["3", "4", "cluster.num_nodes=3"]),
        (["job.num_spare_nodes=1"], ["job.num_spare_nodes", "1"]),
        (["reference.node_feature=v100"], ["reference.num_workers"]),
        (["reference.num_workers=1", "algorithm.kl.coefficient=0"], ["algorithm.kl.coefficient"]),
        (["cluster.slurm.constraint=ib"], ["cluster.slurm.constraint", "'ib'"]),
        ([*PINNED, "reference.num_workers=9", "reference.node_feature=v100"], ["reference.num_workers", "9 > 1 * 8"]),
        (["policy.node_feature=v100", "policy.num_workers=9"], ["policy.num_workers", "9 > 1 * 8"]),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(*words)
    assert all(word in str(caught.value) for word in said), str(caught.value)


def test_a_critic_with_gpus_of_its_own_shares_none() -> None:
    plan = plan_of("+algorithm=ppo", "critic.num_workers=3", "reference.num_workers=2")
    given = [(actor.node, gpu) for actor in plan.actors for gpu in actor.gpus]
    assert len(given) == len(set(given)) == 24, "every GPU once"
    assert nodes_of(plan, "critic") == [2, 2, 2] and nodes_of(plan, "reference") == [2, 2]


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_a_critic_that_cannot_be_is_refused(words: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(*words)
    assert all(word in str(caught.value) for word in said), str(caught.value)


def test_hosts_become_ranks_by_their_features() -> None:
    features = {"a": {"v100"}, "b": {"h100", "v100"}, "c": {"h100"}}
    assert order_by_feature(["a", "b", "c"], features, ["h100", "h100", "v100"]) == ["c", "b", "a"]
    assert order_by_feature(["a", "b", "c"], features, ["v100", "v100", "h100"]) == ["a", "b", "c"]
    with pytest.raises(BringUpError, match="2 nodes with the Slurm feature v100"):
        order_by_feature(["b", "c"], features, ["v100", "v100"])
