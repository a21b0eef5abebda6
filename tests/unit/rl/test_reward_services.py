"""Reward services on their own nodes: one per planned place, a common token, and causes of failures.

Calls in this process replace Ray; tests/slurm/test_node_kinds.py uses Ray.
"""

import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.errors import RewardError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.rewards.results import RewardItem
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.workers import reward_services
from slurm_rl.workers.ray_driver import Actor


class Handle:
    """Call methods at once instead of `method.remote(...)`."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.target, name))


@dataclass
class HereCluster:
    plan: Any
    nodes: Any = field(default_factory=lambda: SimpleNamespace(host=lambda: "127.0.0.1"))
    hosts: list[Any] = field(default_factory=list)

    def place(self, actor: ActorPlan, cls: type, *args: Any) -> Actor:
        self.hosts.append(cls(*args))
        return Actor(f"{actor.role}-{actor.index}", Handle(self.hosts[-1]))

    def gather(self, calls: Sequence[tuple[Actor, Any]], *, timeout_s: float, what: str) -> list[Any]:
        return [answer for _, answer in calls]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(reward_services, "find_address", lambda: ("127.0.0.1", 0))
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(ray, "wait", lambda answers, **_: (answers, []))
    run = RunDir(tmp_path / "run")
    run.attempt(1).logs.mkdir(parents=True)
    run.secrets.mkdir(mode=0o700)
    return run


def config_of(**service: Any) -> RewardConfig:
    chosen = RewardServiceConfig(enabled=True, address="cluster", deadline_s=20.0, **service)
    return RewardConfig(verifiers={"arithmetic": 1.0}, service=chosen)


def cluster_of(count: int) -> Any:
    return HereCluster(SimpleNamespace(actors=[ActorPlan("reward", i, i + 1, (), 1) for i in range(count)]))


ITEMS = [RewardItem(completion=str(n), answer=str(n % 3)) for n in range(6)]
REWARDS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_planned_places_have_services_and_failed_one_is_named(run: RunDir) -> None:
    cluster, config = cluster_of(2), config_of(node_group="old", num_replicas=2, items_per_request=1)
    with reward_services.open_rewards(cluster, config, run, run.attempt(1)) as scorer:
        assert [result.value for result in scorer.score(ITEMS)] == REWARDS
        tokens = {host._services.token for host in cluster.hosts}
        pids = [pid for host in cluster.hosts for pid in host._services.pids]
        assert len(tokens) == 1 and len(set(pids)) == 2
        [ready] = [row for row in read_rows(run.events) if row["kind"] == "reward/services_ready"]
        assert len(set(ready["urls"])) == 2
        assert {path.name for path in run.attempt(1).logs.iterdir()} == {"reward-0.log", "reward-1.log"}
        for host in cluster.hosts:
            host._services._error = RewardError("a reward service must live longer than 60 s", seen="5 deaths")
            for replica in host._services._replicas:
                replica.process.kill()
                replica.listener.shutdown(socket.SHUT_RDWR)
        with pytest.raises(RewardError, match="5 deaths"):
            scorer.score(ITEMS)
    assert not any(map(alive, cluster.hosts)), "a service outlived the run"


def alive(host: Any) -> bool:
    return any(replica.process.poll() is None for replica in host._services._replicas if replica.process)


def test_unplanned_services_run_on_trainer_node(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = cluster_of(0), list[Any]()

    def note(*args: Any) -> nullcontext[None]:
        asked.append(args[:4])
        return nullcontext()

    monkeypatch.setattr(reward_services, "open_scorer", note)
    with reward_services.open_rewards(cluster, config_of(), run, run.attempt(1)):
        pass
    assert asked == [(config_of(), run.secrets, run.attempt(1).logs, "127.0.0.1")] and cluster.hosts == []
