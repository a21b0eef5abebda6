"""Environments of the dialogues in dialogue_script.py."""

from slurm_rl.envs.environment import Environment, Reply, Row, Step

AGAIN = "Sure?"
TURNS = 3


class Calculator:
    """Tools of an episode; any answer solves it."""

    def add(self, a: int, b: int) -> str:
        """Add.

        Args:
            a: One.
            b: Two.
        """
        return str(a + b)

    def score(self, reply: Reply) -> float:
        return 1.0


class Doubter(Environment):
    """A user who asks again until there are three replies."""

    def reset(self, row: Row, seed: int) -> None:
        self.turn = 0

    def step(self, reply: Reply) -> Step:
        self.turn += 1
        return Step(reward=1.0, done=True) if self.turn == TURNS else Step(AGAIN)
