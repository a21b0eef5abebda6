"""Interface between episodes and environments, local or on other nodes: calls in, answers out."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from slurm_rl.envs.facts import Facts
from slurm_rl.envs.steps import Answer, Outcome
from slurm_rl.envs.worker import Call

_LOOK_S = 0.5


class Environments(ABC):
    """Environments of a source: in processes of this node (pool.py) or of several nodes (spread.py)."""

    facts: Facts
    """Declarations of the class; known once its processes are ready."""
    is_closed = False

    def __init__(self, schemas: Sequence[dict[str, Any]]) -> None:
        self.schemas = schemas
        """Schemas of env.tools."""
        self._one_batch = threading.Lock()

    @abstractmethod
    def submit(self, calls: Sequence[Call]) -> None:
        """Submit calls, at most one per episode at a time; returns at once. Thread-safe."""

    @abstractmethod
    def listen(self, timeout_s: float) -> list[Answer]:
        """Return available answers; waits up to `timeout_s` for the first. From one thread."""

    @abstractmethod
    def forget(self, episodes: Sequence[str]) -> None:
        """Release the environments of these episodes."""

    def play(self, calls: Sequence[Call]) -> list[Outcome]:
        return [answer.outcome for answer in self.ask(calls)]

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answer to each call, in order. A misbehaving environment fails only its own call."""
        answers: dict[str, Answer] = {}
        with self._one_batch:
            self.submit(calls)
            while len(answers) < len(calls):
                answers |= {answer.episode: answer for answer in self.listen(_LOOK_S)}
        return [answers[call.episode] for call in calls]
