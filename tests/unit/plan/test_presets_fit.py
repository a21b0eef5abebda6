import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from slurm_rl.config.load import load_config, open_hydra
from slurm_rl.config.parse import parse_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.launch.sweep.sweeper import Composer
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.explain import WIDTH, render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.placement import find_idle
from slurm_rl.plan.render import render_plan
from slurm_rl.plan.setting import PHASES
from tests.tiny_models import TinyModel

CLUSTERS = sorted(path.stem for path in (conf_dir() / "cluster").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("*.yaml"))
NEEDED = {
    "ppo_llama3_8b": ["reward.model.path=/models/rm"],
    "sft_llama3_8b": ["model.path=meta-llama/Llama-3.1-8B"],
    "ray": ["cluster.address=http://head:8265"],
}
# Lines of a screen, with a critic, a reward model, the estimated speed and the next best layouts.
MOST_LINES = 54
# Nodes, and GPUs per node.
SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (2, 2), (2, 8), (4, 8)]


def plan_of(config: RunConfig) -> JobPlan:
    return build_plan(config, "/runs/a", SubmitFacts("python", 8, "test", find_shape(config.model)))


def explain(config: RunConfig, plan: JobPlan) -> str:
    return render_explanation(config, plan, None if config.external else find_shape(config.model))


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with open_hydra(None) as extra:
        yield Composer(extra)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_is_planned_or_refused_on_every_cluster(experiment: str, composer: Composer) -> None:
    assert count_planned(experiment, CLUSTERS, composer) >= 6


def test_experiments_are_planned_or_refused_on_quarter_of_clusters(composer: Composer) -> None:
    counts = [count_planned(one, CLUSTERS[at % 4 :: 4], composer) for at, one in enumerate(EXPERIMENTS)]
    assert sum(counts) >= len(EXPERIMENTS)


def count_planned(experiment: str, clusters: Sequence[str], composer: Composer) -> int:
    planned = 0
    for cluster in clusters:
        words = [f"exp={experiment}", f"cluster={cluster}", *NEEDED.get(experiment, []), *NEEDED.get(cluster, [])]
        try:
            config = parse_config(composer.compose(words), is_run=True)
            plan = plan_of(config)
        except ConfigError as error:
            assert re.search(r"got .*(\d|cpu|ray|false|nvidia)", str(error)) and "Next: " in str(error), (
                words,
                str(error),
            )
            continue
        planned += 1
        text = explain(config, plan)
        assert "not estimated" not in text, words
        lines = text.splitlines()
        assert len(lines) <= MOST_LINES and max(map(len, lines)) <= WIDTH, words
        if plan.external is None:
            assert plan.layout.policy is not None and set(plan.layout.policy.phases_gb) == set(PHASES), words
            assert all(f"{phase:>8}" in text for phase in ("load", "train", "save")), words
            assert not find_idle(plan.gpus_by_node, plan.actors), words
    return planned


@pytest.mark.parametrize("experiment", ["demo", "grpo_mathv60k", "ppo_llama3_8b", "sft_llama3_8b", "ppo_tiny"])
def test_numbers_of_gpus_are_used_or_refused_with_both_numbers(experiment: str, composer: Composer) -> None:
    for nodes, gpus in SIZES:
        sizes = [f"cluster.num_nodes={nodes}", f"cluster.gpus_per_node={gpus}"]
        words = [f"exp={experiment}", "cluster=nvidia_h200", *sizes, *NEEDED.get(experiment, [])]
        try:
            plan = plan_of(parse_config(composer.compose(words), is_run=True))
        except ConfigError as error:
            assert nodes * gpus <= 2, (words, str(error))
            assert len(re.findall(r"\d+", str(error))) >= 2 and "Next: " in str(error)
            continue
        assert not find_idle([gpus] * nodes, plan.actors), words


def test_colocated_roles_use_all_gpus_of_preset() -> None:
    plan = plan_of(load_config(["+cluster=amd_mi300", "+exp=grpo_mathv60k"]))
    assert Counter(actor.role for actor in plan.actors) == {"policy": 8, "rollout": 8}
    assert {actor.gpus for actor in plan.actors} == {(gpu,) for gpu in range(8)}
    layout = plan.layout
    assert layout.policy is not None and layout.gpu_mem_gb is not None and layout.engine_budget_gb is not None
    assert layout.policy.resident_gb + layout.engine_budget_gb < layout.gpu_mem_gb
    assert layout.policy.frozen_gb == pytest.approx(7.505 / 8, rel=1e-3), "each worker holds its part of the reference"
    assert layout.micro_batch_tokens >= 4096 + 8000, "one longest sequence"


@pytest.mark.parametrize(("nodes", "quarter"), [(1, 2), (2, 4), (4, 8)])
def test_dedicated_critic_gets_quarter_of_gpus(nodes: int, quarter: int) -> None:
    """The groups of OpenRLHF's script, --colocate_critic_reward --colocate_actor_ref, for two nodes of 8 GPUs."""
    words = ["+exp=ppo_llama3_8b", "+cluster=nvidia_h100", f"cluster.num_nodes={nodes}", *NEEDED["ppo_llama3_8b"]]
    plan = plan_of(load_config([*words, "rollout.colocate=false"]))
    used = Counter[str]()
    for actor in plan.actors:
        used[actor.role] += len(actor.gpus)
    assert used == {"policy": quarter, "critic": quarter, "rollout": 2 * quarter}
    assert plan.layout.policy is not None and plan.layout.critic is not None
    # The reference is sharded as the policy is; the reward model is whole.
    found = (plan.layout.policy.frozen_gb, plan.layout.critic.frozen_gb)
    assert found == pytest.approx((16.06 / quarter, 16.06), rel=1e-3)
    assert JobPlan.from_json(plan.to_json()) == plan


def test_idle_gpus_are_refused_unless_numbers_are_set() -> None:
    words = ["+exp=demo", "+cluster=nvidia_h100", TinyModel(num_heads=12, hidden_size=384, num_kv_heads=3).word]
    words += ["rollout.tensor_parallel_size=3", "rollout.colocate=false"]
    with pytest.raises(ConfigError, match=r"every GPU must be used; got 2 of 8 .*engines of 3.*tensor_parallel_size"):
        plan_of(load_config(words))
    assert "idle: 2 GPUs, from GPU 6 of node 0" in render_plan(plan_of(load_config([*words, "policy.num_workers=3"])))
    assert "idle: 3 GPUs" in render_plan(plan_of(load_config(["+exp=sft_tiny", words[1], "policy.num_workers=5"])))


def test_unknown_sizes_are_named() -> None:
    words = ["+exp=demo", "model=hf", "model.path=some/body", "+cluster=nvidia_h100"]
    config = load_config(words)
    text = explain(config, plan_of(config))
    assert "not estimated" in text and "the shape of some/body" in " ".join(text.split())
    config = load_config([*words, "model.path=Qwen/Qwen3-4B", "cluster.gpu_mem_gb=null"])
    assert "cluster.gpu_mem_gb=80" in explain(config, plan_of(config))
