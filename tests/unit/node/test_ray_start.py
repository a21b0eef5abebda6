from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray._private import node, ray_constants, services
from ray.scripts import scripts

from slurm_rl.node.ray_cluster import (
    describe_ray_end,
    explain_ray_end,
    node_resource,
    parse_gpu_labels,
    render_gpu_labels,
)
from slurm_rl.node.ray_start import with_agent_port, with_timeout
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.visibility import MASK_VARIABLES, gpu_names, normalise_gpu_visibility
from slurm_rl.workers.ray_driver import Cluster
from slurm_rl.workers.ray_nodes import OwnRayNodes, find_ours
from tests.plans import plan_of


@pytest.mark.parametrize(("python", "is_named"), [("/envs/my env/bin/python", True), ("/envs/mine/bin/python", False)])
def test_explain_ray_end_names_path_with_spaces(tmp_path: Path, python: str, is_named: bool) -> None:
    log = tmp_path / "ray-0.log"
    log.write_text("----- BEGIN runtime_env_agent.err tail (exit code(s)=127) -----\n")
    error = str(explain_ray_end(plan_of(python=python), log, 1, "the head"))
    assert "runtime_env_agent died, exit code 127" in error
    assert (f"make the environment of {python} at a path without spaces" in error) == is_named
    log.write_text("Traceback\nraylet died, exit code 1\n")
    assert describe_ray_end(log, 1) == "exit status 1: raylet died, exit code 1"
    assert describe_ray_end(tmp_path / "none", 1) == "exit status 1"


def test_with_timeout_retries_until_raylet_ends() -> None:
    answers = iter([RuntimeError(), RuntimeError(), "node"])

    def get_node(address: str) -> str:
        if isinstance(answer := next(answers, RuntimeError(address)), RuntimeError):
            raise answer
        return answer

    assert with_timeout(get_node, lambda: None, 60)("a") == "node"
    with pytest.raises(SystemExit, match="raylet died, exit code 7"):
        with_timeout(get_node, lambda: 7, 60)("a")
    with pytest.raises(RuntimeError, match="a"):
        with_timeout(get_node, lambda: None, 0)("a")


def test_with_agent_port_adds_known_flag_only(tmp_path: Path) -> None:
    other = tmp_path / "raylet"
    other.write_bytes(b"a raylet of another version: dashboard_agent_listen_port is a field of its records")
    commands = []
    start = with_agent_port(lambda command, *_, **fields: commands.append(command), ["--dashboard-agent-listen-port=7"])
    for binary, kind in ((services.RAYLET_EXECUTABLE, "raylet"), (str(other), "raylet"), ("/python", "dashboard")):
        start([binary, "--a"], kind, fate_share=True)
    assert [command[2:] for command in commands] == [["--dashboard_agent_listen_port=7"], [], []]


def test_ray_has_replaced_functions() -> None:
    text = Path(node.__file__).read_text()
    assert "ray._private.services.get_node(" in text and "ray._private.services.start_raylet(" in text
    text = Path(services.__file__).read_text()
    assert "process_info = start_ray_process(" in text[text.index("def start_raylet(") :]
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    assert "has_ray_client = get_ray_client_dependency_error() is None" in Path(scripts.__file__).read_text()


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
