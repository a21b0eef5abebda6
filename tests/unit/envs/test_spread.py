"""Environments on several nodes; each node is a local pool that a test can fail."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.spread import HostLost, SpreadEnvironments
from slurm_rl.envs.steps import Answer
from slurm_rl.envs.worker import Call
from slurm_rl.errors import RewardError
from slurm_rl.rewards.results import Failure

FILE = Path(__file__).with_name("worlds.py")


class Node:
    """`Host`: a pool that works until `end` is set."""

    def __init__(self, name: str, pool: EnvironmentPool) -> None:
        self.name, self.pool, self.num_workers = name, pool, 1
        self.end: Exception | None = None
        self.seen: set[str] = set()

    def submit(self, calls: Sequence[Call], gone: Sequence[str]) -> None:
        self.seen |= {call.episode for call in calls}
        if self.end is None:
            self.pool.forget(gone)
            self.pool.submit(calls)

    def listen(self) -> list[Answer]:
        found = self.pool.listen(0.05)
        if self.end is not None:
            raise self.end  # results are lost
        return found


@contextmanager
def nodes_of(kind: str, events: list[Any]) -> Iterator[tuple[list[Node], SpreadEnvironments]]:
    config = EnvironmentConfig(name=f"{FILE}:{kind}", timeout_s=60.0)
    with ExitStack() as stack:
        pools = [stack.enter_context(EnvironmentPool(config)) for _ in range(2)]
        nodes = [Node(f"node {place}", pool) for place, pool in enumerate(pools)]
        with SpreadEnvironments(nodes, pools[0], lambda kind, **fields: events.append((kind, fields))) as spread:
            yield nodes, spread
        for pool in pools:
            pool.__exit__()
        spread.join()
        assert not any(thread.is_alive() for thread in spread._threads)
        stack.pop_all()


def calls_of(num_replies: int, folder: str = "count", last: int = 3) -> list[Call]:
    row = Row(index=0, prompt=folder, answer=str(last))
    return [
        Call(
            episode=f"7.{place}.0",
            row=row,
            seed=1,
            replies=[Reply(text="abc"[turn], call_id=f"{place}.{turn}") for turn in range(num_replies)],
        )
        for place in range(12)
    ]


def test_nodes_keep_their_episodes() -> None:
    with nodes_of("Count", []) as (nodes, spread):
        for turn, said in enumerate(["a", "a b", "a b c"]):
            done = turn == 2
            wanted = Step(said, 1.0 if done else None, done, {"replies": turn + 1.0})
            assert spread.play(calls_of(turn + 1)) == [wanted] * 12
        assert nodes[0].seen and nodes[1].seen and not nodes[0].seen & nodes[1].seen
        assert nodes[0].seen | nodes[1].seen == {call.episode for call in calls_of(1)}
        assert not spread._homes, "nothing is kept of episodes that are over"


def test_unrecoverable_environments_fail_with_node() -> None:
    with nodes_of("Fleeting", []) as (nodes, spread):
        spread.play(calls_of(1))
        theirs = set(nodes[1].seen)
        nodes[1].end = HostLost("node 1 must answer", seen="nothing")
        calls = calls_of(2)
        found = dict(zip([call.episode for call in calls], spread.play(calls), strict=True))
    assert {name for name, outcome in found.items() if isinstance(outcome, Failure)} == theirs
    assert {outcome.cause for outcome in found.values() if isinstance(outcome, Failure)} == {"crash"}


def test_other_errors_of_node_are_raised() -> None:
    with nodes_of("Count", []) as (nodes, spread):
        nodes[1].end = RewardError("an environment process must start", seen="nothing")
        with pytest.raises(RewardError, match="process must start"):
            spread.play(calls_of(1))


def test_play_without_calls_does_nothing_and_forget_finds_node() -> None:
    with nodes_of("Count", []) as (nodes, spread):
        assert spread.play([]) == []
        spread.play(calls_of(1))
        spread.forget([call.episode for call in calls_of(1)])
        assert not spread._homes
        assert spread.play(calls_of(2)) == [Step("a b", None, False, {"replies": 2.0})] * 12
        assert not any(node.pool._processes[0].open for node in nodes)
