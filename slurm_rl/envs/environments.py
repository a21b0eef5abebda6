"""Interface between episodes and environments, local or on other nodes: calls in, answers out."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from slurm_rl.envs.answers import Answer
from slurm_rl.envs.facts import Facts
from slurm_rl.envs.steps import Outcome
from slurm_rl.envs.worker import Call

_LOOK_S = 0.5


class Environments(ABC):
    """The worlds of a source: of processes of this node (pool.py), or of several nodes (spread.py)."""

    facts: Facts
    """Declarations of the class; known once its processes are ready."""
    is_closed = False

    def __init__(self, schemas: Sequence[dict[str, Any]]) -> None:
        self.schemas = schemas
        """Of the tools of env.tools."""
        self._one_batch = threading.Lock()

    @abstractmethod
    def submit(self, calls: Sequence[Call]) -> None:
        """Ask; at most one call of an episode at a time. Returns at once; from any thread."""

    @abstractmethod
    def listen(self, timeout_s: float) -> list[Answer]:
        """Answers that have come; waits up to `timeout_s` for the first, or less. In one thread."""

    @abstractmethod
    def forget(self, episodes: Sequence[str]) -> None:
        """No call of these will come again."""

    def play(self, calls: Sequence[Call]) -> list[Outcome]:
        """Answers, in the order of the calls."""
        return [answer.outcome for answer in self.ask(calls)]

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answer to each call, in order. A misbehaving environment fails only its own call."""
        answers: dict[str, Answer] = {}
        with self._one_batch:
            self.submit(calls)
            while len(answers) < len(calls):
                answers |= {answer.episode: answer for answer in self.listen(_LOOK_S)}
        return [answers[call.episode] for call in calls]
