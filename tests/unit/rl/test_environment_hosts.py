"""Environments on the nodes of a run: placement, routing, lost nodes and changed files.

Calls in this process replace Ray; tests/train/test_environment_hosts.py uses Ray.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.worker import Call
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.workers.environment_hosts import open_environments
from slurm_rl.workers.ray_driver import Actor
from tests.unit.rl.episode_kit import WORLDS


class Handle:
    """Call methods at once instead of `method.remote(...)`, until the node is lost."""

    def __init__(self, target: Any) -> None:
        self.target, self.is_lost = target, False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        found = getattr(self.target, name)(*args)
        return ray.exceptions.ActorDiedError() if self.is_lost else found


@dataclass
class HereCluster:
    """A fake cluster; all its nodes are this process."""

    num_nodes: int
    placed: list[tuple[ActorPlan, Handle]] = field(default_factory=list)

    @property
    def plan(self) -> Any:
        return SimpleNamespace(num_nodes=self.num_nodes)

    def place(self, actor: ActorPlan, cls: type, *args: Any, max_concurrency: int) -> Actor:
        assert max_concurrency >= 3, "submit, listen and close at once"
        self.placed.append((actor, Handle(cls(*args))))
        return Actor(f"{actor.role}-{actor.index}", self.placed[-1][1])

    def gather(self, calls: Sequence[tuple[Actor, Any]], *, timeout_s: float, what: str) -> list[Any]:
        return [answer for _, answer in calls]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def get(answer: Any, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda answers, **_: (answers, []))
    # A host removes it in its own process; here that is the test process, which may lack it.
    main = vars(sys.modules["__main__"])
    file = main.get("__file__")
    yield
    main.pop("__file__", None)
    if file is not None:
        main["__file__"] = file


def calls_of(num_replies: int) -> list[Call]:
    row = Row(index=0, prompt="count", answer="3")
    said = [Reply(text="abc"[turn], call_id=str(turn)) for turn in range(num_replies)]
    return [Call(episode=f"7.{place}.0", row=row, seed=1, replies=said) for place in range(20)]


def config_of(num_workers: int) -> EnvironmentConfig:
    return EnvironmentConfig(name=f"{WORLDS}:Count", num_workers=num_workers, timeout_s=60.0)


def test_lost_node_replays_its_episodes() -> None:
    cluster, events = HereCluster(3), list[Any]()

    def report(kind: str, **fields: Any) -> None:
        events.append((kind, fields))

    any_cluster: Any = cluster
    with open_environments(any_cluster, config_of(4), (), report, 2) as environments:
        assert [(actor.role, actor.index, actor.node) for actor, _ in cluster.placed] == [
            ("environment", 7, 1),
            ("environment", 8, 2),
        ]
        pools = [handle.target._pool for _, handle in cluster.placed]
        assert [pool.config.num_workers for pool in pools] == [1, 1]
        assert environments.play(calls_of(1)) == [Step("a", None, False, {"replies": 1.0})] * 20
        assert all(process.holds for pool in pools for process in pool._processes)
        cluster.placed[1][1].is_lost = True
        assert environments.play(calls_of(2)) == [Step("a b", None, False, {"replies": 2.0})] * 20
        assert environments.play(calls_of(3)) == [Step("a b c", 1.0, True, {"replies": 3.0})] * 20
        pids = [process.process.pid for pool in pools for process in pool._processes]
    assert [kind for kind, _ in events] == ["environments/node_lost"]
    assert events[0][1]["node"] == "environment-8" and events[0][1]["episodes"] > 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "a process outlived the run"


def test_single_host_uses_worker_of_trainer() -> None:
    cluster: Any = HereCluster(3)
    with open_environments(cluster, config_of(1), (), lambda *_, **__: None, 0) as environments:
        assert isinstance(environments, EnvironmentPool) and not cluster.placed
        assert environments.play(calls_of(1))[0] == Step("a", None, False, {"replies": 1.0})


def test_file_that_differs_between_nodes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "world.py"
    # Nodes are processes here, so the file differs between processes.
    file.write_text(
        "import os\nfrom slurm_rl.envs.environment import Environment\n"
        "class World(Environment):\n    version = str(os.getpid())\n"
    )
    cluster: Any = HereCluster(2)
    config = config_of(2).model_copy(update={"name": f"{file}:World"})
    with (
        pytest.raises(ConfigError, match="environment-1"),
        open_environments(cluster, config, (), lambda *_, **__: None, 0),
    ):
        pass
    for _, handle in cluster.placed:
        handle.target.close()
