"""The supervisor replaces lost engines. Engines here are handles that respond when the test does."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.errors import TrainingError
from slurm_rl.node.stop import StopFlag
from slurm_rl.plugins.health.evidence import read_evidence
from slurm_rl.rollout.engine_supervisor import MAX_RESTARTS, EngineSupervisor
from slurm_rl.rollout.load_balancer import AsyncSampler
from slurm_rl.rollout.sampling import Sampler
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, write_json
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster
from tests.unit.rl.batch_kit import make_prompts
from tests.unit.rl.fake_ray import SamplerEngine

SPEC = SamplingSpec(1, 8, 1.0, 1.0, seed=3)


class Run:
    """Two engines of a run; the first one is dead at the check."""

    def __init__(self, folder: Path, *fresh: SamplerEngine, continuous: bool = False) -> None:
        self.run = RunDir(folder)
        self.attempt = self.run.attempt(1)
        self.attempt.logs.mkdir(parents=True)
        self.cluster = Cluster.__new__(Cluster)
        self.cluster.stop = StopFlag()
        self.cluster.plan = SimpleNamespace(actors=[SimpleNamespace(role="rollout", index=n, node=n) for n in (0, 1)])  # type: ignore[assignment]
        self.cluster.gather = self.gather  # type: ignore[method-assign]
        self.first, self.second, self.fresh = SamplerEngine(dies=True), SamplerEngine(), list(fresh)
        self.engines = [Actor("rollout-0", self.first), Actor("rollout-1", self.second)]
        self.starts: list[tuple[int, int]] = []
        self.supervisor = EngineSupervisor(
            self.cluster, self.engines, self.start, self.run, self.attempt, start_timeout_s=60, can_replace=True
        )
        self.supervisor.reload = self.reload
        self.sampler: Sampler = (
            AsyncSampler(self.cluster, self.engines, 60, self.supervisor, max_num_seqs=16, staleness=1)
            if continuous
            else Sampler(self.cluster, self.engines, 60, self.supervisor)
        )
        self.reload()

    def start(self, index: int, generation: int) -> Actor:
        self.starts.append((index, generation))
        return Actor(f"rollout-{index}", self.fresh.pop(0))

    def gather(self, calls: Any, *, timeout_s: float, what: str, stoppable: bool = True) -> list[Any]:
        for actor, answer in calls:
            if answer is not True:
                lost = ActorLost("it must live")
                lost.actor, lost.handle = actor.name, actor.handle
                raise lost
        return [True] * len(calls)

    def reload(self) -> None:
        for engine in self.engines:
            engine.handle.version = 7


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    killed: list[Any] = []
    monkeypatch.setattr(ray, "kill", lambda handle, no_restart: killed.append(handle))
    return killed


@pytest.mark.parametrize("continuous", [False, True])
def test_recover_resends_requests_after_weights(tmp_path: Path, no_ray: list[Any], continuous: bool) -> None:
    run = Run(tmp_path, SamplerEngine(), continuous=continuous)
    fresh = run.fresh[0]
    groups = run.sampler.finish(run.sampler.start(make_prompts(4), SPEC))
    assert [group.prompt.index for group in groups] == [0, 1, 2, 3]
    assert {it for group in groups for completion in group.completions for it in completion.versions()} == {7}
    assert run.starts == [(0, 1)] and no_ray == [run.first] and run.engines[0].handle is fresh
    [event] = [row for row in read_rows(run.run.events) if row["kind"] == "engine/replaced"]
    assert (event["engine"], event["count"]) == ("rollout-0", 1)
    if not continuous:  # with continuous sampling, any free engine gets them
        assert [call[:2] for call in fresh.calls] == [call[:2] for call in run.first.calls] and len(
            run.second.calls
        ) == 1


def test_recover_suspects_node_after_max_restarts(tmp_path: Path) -> None:
    run = Run(tmp_path, *[SamplerEngine(starts=False) for _ in range(MAX_RESTARTS)])
    write_json(run.attempt.beats(0), {"rank": 0, "host": "n17", "late": [], "beats": []})
    with pytest.raises(TrainingError, match="replaced 3 times"):
        run.sampler.finish(run.sampler.start(make_prompts(2), SPEC))
    assert run.starts == [(0, 1), (0, 2), (0, 3)]
    [evidence] = read_evidence(run.run)
    assert (evidence["node"], evidence["check"], evidence["strength"]) == ("n17", "engine", "soft")


def test_recover_replaces_engine_once_for_concurrent_callers(tmp_path: Path) -> None:
    run = Run(tmp_path, SamplerEngine())
    lost = ActorLost("it must live")
    lost.actor, lost.handle = "rollout-0", run.first
    threads = [threading.Thread(target=run.supervisor.recover, args=(lost,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert run.starts == [(0, 1)]


def test_recover_waits_while_policy_trains(tmp_path: Path) -> None:
    """The policy has no consistent weights then: requests wait for the next transfer."""
    run = Run(tmp_path, SamplerEngine())
    run.supervisor.lock.acquire()
    sampling = threading.Thread(target=lambda: run.sampler.finish(run.sampler.start(make_prompts(2), SPEC)))
    sampling.start()
    sampling.join(timeout=0.5)
    assert sampling.is_alive() and run.starts == []
    run.supervisor.lock.release()
    sampling.join(timeout=60)
    assert not sampling.is_alive() and run.starts == [(0, 1)]


def test_finish_within_limit_does_not_replace_engine(tmp_path: Path) -> None:
    run = Run(tmp_path, SamplerEngine())
    with pytest.raises(ActorLost):
        run.sampler.finish(run.sampler.start(make_prompts(2), SPEC), within_s=5.0)
    assert run.starts == []


def test_recover_raises_for_colocated_engines_and_other_actors(tmp_path: Path) -> None:
    run = Run(tmp_path, SamplerEngine())
    other = ActorLost("policy-0 must live")
    other.actor = "policy-0"
    with pytest.raises(ActorLost, match="policy-0"):
        run.supervisor.recover(other)
    run.supervisor.can_replace = False
    with pytest.raises(ActorLost):
        run.sampler.finish(run.sampler.start(make_prompts(2), SPEC))
    assert run.starts == []


def test_check_replaces_late_engine_once_per_generation(tmp_path: Path) -> None:
    run = Run(tmp_path, SamplerEngine(), SamplerEngine())
    run.supervisor._reader = threading.current_thread()  # only this thread reads

    def tell(name: str) -> None:
        late = {"name": name, "node": "n1", "phase": "generate", "age_s": 70.0, "deadline_s": 60.0}
        write_json(run.attempt.beats(0), {"rank": 0, "host": "n1", "late": [late], "beats": []})

    def look() -> None:
        run.supervisor._late = run.supervisor._read_late()
        run.supervisor.check()

    look()
    assert run.starts == []
    tell("rollout-0")
    look()
    look()  # the agent may still report the old incarnation
    assert run.starts == [(0, 1)]
    tell("rollout-0.1")
    look()
    assert run.starts == [(0, 1), (0, 2)]
