"""Environments on two nodes of a real Ray cluster; after one is killed its episodes continue on the other."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.worker import Call
from slurm_rl.errors import ConfigError
from slurm_rl.node.ray_cluster import node_resource
from slurm_rl.node.stop import StopFlag
from slurm_rl.workers.environment_hosts import open_environments
from slurm_rl.workers.ray_driver import Cluster
from slurm_rl.workers.ray_nodes import OwnRayNodes

pytestmark = pytest.mark.slow

WORLD = """
import os
from slurm_rl.envs.environment import Environment, Step

class Here(Environment):
    def reset(self, row, seed):
        self.replies = []

    def step(self, reply):
        self.replies.append(reply.text)
        return Step(" ".join(self.replies), scores={"pid": os.getpid(), "node": os.getppid()})
"""


@pytest.fixture
def rays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray's test cluster of several raylets on one machine."""
    import ray
    from ray.cluster_utils import Cluster as Raylets

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    small = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    raylets = Raylets()
    nodes = [_add_node(raylets, resources={node_resource(rank): 1}, **small) for rank in range(2)]
    ray.init(address=raylets.address, namespace="slurm_rl", log_to_driver=False, logging_level="WARNING")
    try:
        yield SimpleNamespace(raylets=raylets, nodes=nodes)
    finally:
        ray.shutdown()
        raylets.shutdown()


def _add_node(raylets: Any, **options: Any) -> Any:
    """Retry: Ray gives a raylet 30 s, which may not suffice on a busy machine."""
    for left in reversed(range(4)):
        try:
            return raylets.add_node(**options)
        except Exception as error:
            if not left or "timed out" not in str(error):
                raise
    raise AssertionError("unreachable")


def cluster_of(folder: Path) -> Cluster:
    cluster = Cluster.__new__(Cluster)
    plan: Any = SimpleNamespace(num_nodes=2, accelerator="cpu", run_dir=str(folder))
    cluster.plan, cluster.stop, cluster.nodes = plan, StopFlag(), OwnRayNodes(plan)
    return cluster


def calls_of(num_replies: int) -> list[Call]:
    row = Row(index=0, prompt="", answer="")
    replies = [Reply(text="abcd"[turn], call_id=str(turn)) for turn in range(num_replies)]
    return [Call(episode=f"7.{place}.0", row=row, seed=1, replies=replies) for place in range(20)]


def numbers(steps: list[Any], name: str) -> list[int]:
    assert all(isinstance(step, Step) for step in steps), steps
    return [int(step.scores[name]) for step in steps]


def test_lost_node_costs_replay_of_its_episodes(rays: Any, tmp_path: Path) -> None:
    file, events = tmp_path / "world.py", list[Any]()
    file.write_text(WORLD)
    config = EnvironmentConfig(name=f"{file}:Here", num_workers=3, timeout_s=60.0)

    def report(kind: str, **fields: Any) -> None:
        events.append((kind, fields))

    with open_environments(cluster_of(tmp_path), config, (), report, 0) as environments:
        first = environments.play(calls_of(1))
        where = numbers(first, "pid")
        assert len(set(where)) == 3, "two processes here, one there"
        here = {pid for pid in where if psutil.Process(psutil.Process(pid).ppid()).ppid() == os.getpid()}
        theirs = set(where) - here
        assert len(here) == 2 and len(theirs) == 1
        assert numbers(environments.play(calls_of(2)), "pid") == where, "a world stays"
        rays.raylets.remove_node(rays.nodes[1], allow_graceful=False)
        deadline = time.monotonic() + 60
        while any(map(_is_alive, theirs)):
            assert time.monotonic() < deadline, "its processes outlived the node"
            time.sleep(0.1)
        found = environments.play(calls_of(3))
        assert [step.observation for step in found if isinstance(step, Step)] == ["a b c"] * 20
        assert set(numbers(found, "pid")) <= here
        stayed = [pid for pid in where if pid in here]
        assert [now for now, before in zip(numbers(found, "pid"), where, strict=True) if before in here] == stayed
        [(kind, fields)] = events
        assert kind == "environments/node_lost" and fields["episodes"] == len(where) - len(stayed)
    assert not any(map(_is_alive, here))


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_unrunnable_file_is_refused_on_other_node(rays: Any, tmp_path: Path) -> None:
    file = tmp_path / "world.py"
    file.write_text("import os\nif os.getppid() != 1:\n    raise KeyError('not here')\n")
    config = EnvironmentConfig(name=f"{file}:Here", num_workers=2, timeout_s=60.0)
    with (
        pytest.raises(ConfigError, match="not here"),
        open_environments(cluster_of(tmp_path), config, (), lambda *_, **__: None, 1),
    ):
        pass
