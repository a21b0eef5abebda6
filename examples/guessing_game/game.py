"""Guess a digit from 1 to 8: the answer to a wrong guess is `<` (the digit is smaller), `>` or, of no digit, `!`."""

from __future__ import annotations

from slurm_rl.envs.environment import Environment, Reply, Row, Step

TURNS = 4


class Guess(Environment):
    def reset(self, row: Row, seed: int) -> None:
        self.secret, self.turn = int(row.answer), 0

    def step(self, reply: Reply) -> Step:
        self.turn += 1
        text = reply.text.strip()
        guess = int(text) if text in set("12345678") else None
        found, over = guess == self.secret, self.turn == TURNS
        if found or over:
            return Step(reward=float(found), done=True, scores={"turns_needed": self.turn} if found else {})
        if guess is None:
            return Step("!")
        return Step("<" if self.secret < guess else ">")
