"""Asynchronous episodes with real environments and an engine that replies in any order."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.data.groups import Group
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.async_episodes import AsyncEpisodes
from slurm_rl.rollout.engine import Generated, GenerationRequest
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.workers.ray_driver import Actor, ActorLost
from tests.unit.rl.episode_kit import Engine, WaveEngine, journal_of, play_episodes, pool_of, sampler_of


@pytest.fixture(scope="module")
def in_waves(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    folder = tmp_path_factory.mktemp("effects")
    with pool_of("Counted") as pool:
        return [_without_folder(group) for group in play_episodes(LockstepEpisodes, WaveEngine(), pool, folder)]


def _without_folder(group: Group) -> Any:
    return group.prompt.index, group.completions, [(it.value, it.failure, it.parts) for it in group.results]


@pytest.mark.parametrize("order", range(3))
def test_async_episodes_have_tokens_of_lockstep_in_any_order(in_waves: list[Group], tmp_path: Path, order: int) -> None:
    with pool_of("Counted") as pool:
        found = play_episodes(AsyncEpisodes, sampler_of(Engine(order), Engine(order + 9)), pool, tmp_path)
    assert [_without_folder(group) for group in found] == in_waves
    failures = [it[1] for _, _, results in in_waves for it in results]  # type: ignore[misc]
    assert failures.count(None) == 12 and failures.count("bad score") == 3, "9 replies are more than 5 turns"


def live(
    kind: str, folder: Path, lives: int, order: int, version: int = 3
) -> tuple[list[Group] | None, list[GenerationRequest]]:
    """Play until this number of replies, then drop all state except the files."""
    engine = Engine(order, lives, version)
    with pool_of(kind) as pool:
        journal = journal_of(folder / "journal", pool)
        try:
            return play_episodes(
                AsyncEpisodes, sampler_of(engine), pool, folder / "effects", journal=journal
            ), engine.asked
        except ActorLost:
            return None, engine.asked
        finally:
            journal.close()


@pytest.mark.parametrize("kind", ["Counted", "Saved"])
def test_async_episodes_killed_repeatedly_sample_no_turn_twice(
    in_waves: list[Group], tmp_path: Path, kind: str
) -> None:
    (tmp_path / "effects").mkdir()
    seeds: Counter[int] = Counter()
    found, lives = None, 0
    while found is None:
        assert lives < 20, "it does not get on"
        found, asked = live(kind, tmp_path, 13, order=lives)
        seeds.update(request.seed for request in asked)
        lives += 1
    assert [_without_folder(group) for group in found] == in_waves
    assert lives >= 3
    replies = sum(len(completion.turns) for _, completions, _ in in_waves for completion in completions)  # type: ignore[misc]
    assert len(seeds) == replies
    # Effects are named by their call; each call has one, however often it was repeated.
    names = [path.name.rpartition(".")[0] for path in (tmp_path / "effects").iterdir()]
    assert len(names) == len(set(names)) == replies


def test_resume_restarts_unrestorable_episodes(in_waves: list[Group], tmp_path: Path) -> None:
    (tmp_path / "effects").mkdir()
    live("CountedFleeting", tmp_path, 12, order=1)
    found, _ = live("CountedFleeting", tmp_path, 10**9, order=2)
    assert found is not None and [_without_folder(group) for group in found] == in_waves


class Judge:
    """A scorer that fails on a repeated item."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        self.asked += [item.completion for item in items]
        return [RewardResult(item=item, value=0.1, parts={"length": float(len(item.completion))}) for item in items]


@pytest.mark.parametrize("kind", [LockstepEpisodes, AsyncEpisodes])
def test_resume_does_not_score_episode_twice(tmp_path: Path, kind: Any) -> None:
    """Nine replies exceed five turns: such an episode has no reward of its own, so the scorer is called."""
    lives = []
    for _ in range(2):
        judge = Judge()
        sampler: Any = WaveEngine() if kind is LockstepEpisodes else sampler_of(Engine())
        with pool_of("Count") as pool:
            journal = journal_of(tmp_path / "journal", pool)
            groups = play_episodes(kind, sampler, pool, tmp_path, journal=journal, scorer=judge)
            lives.append((groups, judge.asked))
            journal.close()
    (first, asked), (second, again) = lives
    assert len(asked) == 3 and not again
    assert first == second and first[-1].results[0].parts == {"length": float(len(asked[0]))}


def test_async_episodes_resend_requests_of_lost_engine(in_waves: list[Group], tmp_path: Path) -> None:
    actors: list[Actor] = []

    def recover(lost: ActorLost) -> None:
        actors[0] = Actor(lost.actor, Engine(5))

    sampler = sampler_of(Engine(1, lives=4), Engine(2), supervisor=SimpleNamespace(recover=recover))
    actors = sampler.engines
    with pool_of("Counted") as pool:
        found = play_episodes(AsyncEpisodes, sampler, pool, tmp_path)
    assert [_without_folder(group) for group in found] == in_waves
    assert actors[0].handle.asked


def test_finish_raises_without_progress_and_obeys_stop_signal(tmp_path: Path) -> None:
    class Silent(Engine):
        def finished(self, client: str) -> list[Generated]:
            time.sleep(60)
            return []

    with pool_of("Counted") as pool:
        with pytest.raises(TrainingError, match="15 active episodes"):
            play_episodes(AsyncEpisodes, sampler_of(Silent(), timeout_s=0.5), pool, tmp_path)
        sampler = sampler_of(Silent())
        sampler.cluster.stop.signal = 15
        with pytest.raises(StopRequested):
            play_episodes(AsyncEpisodes, sampler, pool, tmp_path)
