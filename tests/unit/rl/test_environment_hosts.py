"""Environments and reward services on the nodes of a run: placement, routing, lost nodes and failures.

Calls in this process replace Ray; tests/train/test_environment_hosts.py and tests/slurm/test_node_kinds.py use Ray.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.worker import Call
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.rewards.results import RewardItem
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.workers import reward_services
from slurm_rl.workers.environment_hosts import open_environments
from tests.unit.rl.episode_kit import WORLDS
from tests.unit.rl.fake_ray import FakeCluster


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
    events = list[Any]()
    cluster: Any = FakeCluster(num_nodes=3)

    def report(kind: str, **fields: Any) -> None:
        events.append((kind, fields))

    with open_environments(cluster, config_of(4), (), report, 2) as environments:
        assert [(actor.role, actor.index, actor.node) for actor, _ in cluster.placed] == [
            ("environment", 7, 1),
            ("environment", 8, 2),
        ]
        assert cluster.options["max_concurrency"] >= 3, "submit, listen and close at once"
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
    cluster: Any = FakeCluster(num_nodes=3)
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
    cluster: Any = FakeCluster(num_nodes=2)
    config = config_of(2).model_copy(update={"name": f"{file}:World"})
    with (
        pytest.raises(ConfigError, match="environment-1"),
        open_environments(cluster, config, (), lambda *_, **__: None, 0),
    ):
        pass
    for _, handle in cluster.placed:
        handle.target.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(reward_services, "find_address", lambda: ("127.0.0.1", 0))
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(ray, "wait", lambda answers, **_: (answers, []))
    run = RunDir(tmp_path / "run")
    run.attempt(1).logs.mkdir(parents=True)
    run.secrets.mkdir(mode=0o700)
    return run


def services_of(**service: Any) -> RewardConfig:
    chosen = RewardServiceConfig(enabled=True, address="cluster", deadline_s=20.0, **service)
    return RewardConfig(verifiers={"arithmetic": 1.0}, service=chosen)


def cluster_of(count: int) -> Any:
    return FakeCluster(actors=[ActorPlan("reward", i, i + 1, (), 1) for i in range(count)])


ITEMS = [RewardItem(completion=str(n), answer=str(n % 3)) for n in range(6)]
REWARDS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_planned_places_have_services_and_failed_one_is_named(run: RunDir) -> None:
    cluster, config = cluster_of(2), services_of(node_group="old", num_replicas=2, items_per_request=1)
    with reward_services.open_rewards(cluster, config, run, run.attempt(1)) as scorer:
        assert [result.value for result in scorer.score(ITEMS)] == REWARDS
        services = [handle.target._services for _, handle in cluster.placed]
        tokens = {one.token for one in services}
        pids = [pid for one in services for pid in one.pids]
        assert len(tokens) == 1 and len(set(pids)) == 2
        [ready] = [row for row in read_rows(run.events) if row["kind"] == "reward/services_ready"]
        assert len(set(ready["urls"])) == 2
        assert {path.name for path in run.attempt(1).logs.iterdir()} == {"reward-0.log", "reward-1.log"}
        for one in services:
            one._error = RewardError("a reward service must live longer than 60 s", seen="5 deaths")
            for replica in one._replicas:
                replica.process.kill()
                replica.listener.shutdown(socket.SHUT_RDWR)
        with pytest.raises(RewardError, match="5 deaths"):
            scorer.score(ITEMS)
    processes = [replica.process for one in services for replica in one._replicas if replica.process]
    assert None not in [process.poll() for process in processes], "a service outlived the run"


def test_unplanned_services_run_on_trainer_node(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = cluster_of(0), list[Any]()

    def note(*args: Any) -> nullcontext[None]:
        asked.append(args[:4])
        return nullcontext()

    monkeypatch.setattr(reward_services, "open_scorer", note)
    with reward_services.open_rewards(cluster, services_of(), run, run.attempt(1)):
        pass
    assert asked == [(services_of(), run.secrets, run.attempt(1).logs, "127.0.0.1")] and cluster.placed == []
