from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.node.ray_cluster import node_resource, parse_gpu_labels, render_gpu_labels
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.visibility import MASK_VARIABLES, gpu_names, normalise_gpu_visibility
from slurm_rl.workers.ray_driver import Cluster
from slurm_rl.workers.ray_nodes import OwnRayNodes, find_ours

HEX = st.text("0123456789abcdef", min_size=8, max_size=8)
INDEX = st.integers(0, 15).map(str)
UUID = HEX.map(lambda text: f"GPU-{text}-7c1d-4a0b-9f52-1be0a1b2c3d4")
MIG = st.one_of(
    HEX.map(lambda text: f"MIG-{text}-5d2c-5b40-8c1f-1be0a1b2c3d4"),
    HEX.map(lambda text: f"MIG-GPU-{text}-7c1d-4a0b-9f52-1be0a1b2c3d4/7/0"),
)
MASKS = st.one_of(*(st.lists(kind, min_size=1, max_size=8, unique=True) for kind in (INDEX, UUID, MIG)))


def nodes_of_ray(*masks: list[str]) -> list[dict[str, Any]]:
    """Return `ray.nodes()` of nodes with these GPUs, last rank first."""
    from ray._private.label_utils import parse_node_labels_string

    found = [
        {
            "Alive": True,
            "Resources": {node_resource(rank): 1.0},
            "Labels": parse_node_labels_string(render_gpu_labels(mask)),
        }
        for rank, mask in enumerate(masks)
    ]
    return [{**found[0], "Alive": False, "Labels": {}}, *reversed(found)]


@given(first=MASKS, second=MASKS)
def test_actor_gets_gpus_by_names_in_mask(first: list[str], second: list[str]) -> None:
    count = min(len(first), len(second))
    names = []
    for mask in (first, second):
        change = normalise_gpu_visibility({"CUDA_VISIBLE_DEVICES": ",".join(mask)}, "nvidia", count)
        names.append(gpu_names(change.set, "nvidia", count))
    nodes = OwnRayNodes.__new__(OwnRayNodes)
    nodes.gpus = [parse_gpu_labels(node["Labels"]) for node in find_ours(nodes_of_ray(*names), 2)]
    actor = ActorPlan("policy", 0, node=1, gpus=tuple(range(count)), num_threads=1)
    cluster: Any = Cluster.__new__(Cluster)
    cluster.nodes, cluster.plan = nodes, type("Plan", (), {"accelerator": "nvidia"})
    assert cluster._visible_gpus(actor) == {MASK_VARIABLES["nvidia"]: ",".join(second[:count])}


def test_gpu_names_without_mask_are_indices() -> None:
    assert gpu_names({}, "nvidia", 2) == ["0", "1"]
    assert gpu_names({}, "cpu", 0) == []
    assert [parse_gpu_labels(node["Labels"]) for node in find_ours(nodes_of_ray([]), 1)] == [[]]


@pytest.mark.parametrize(
    ("role", "gpus", "num_threads", "expected"),
    [
        ("policy", (3,), None, {"OMP_NUM_THREADS": "12"}),
        ("critic", (3,), 5, {"OMP_NUM_THREADS": "5"}),
        ("reference", (0, 1), None, {"OMP_NUM_THREADS": "25"}),
        ("rollout", (0, 1), None, {}),  # vLLM serves with one GPU, which Ray assigns
        ("policy", (), None, {}),
    ],
)
def test_trainers_on_gpus_share_cores(
    role: str, gpus: tuple[int, ...], num_threads: int | None, expected: dict[str, str]
) -> None:
    nodes = OwnRayNodes.__new__(OwnRayNodes)
    nodes.cpus = [4, 100]
    cluster: Any = Cluster.__new__(Cluster)
    cluster.nodes, cluster.plan = nodes, type("Plan", (), {"gpus_per_node": 8, "gpus_on": lambda self, rank: 8})()
    assert cluster._threads(ActorPlan(role, 0, node=1, gpus=gpus, num_threads=num_threads)) == expected
