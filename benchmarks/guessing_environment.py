"""The game of environments_vs_trl.py as an environment of slurm_rl and of TRL (with methods as tools). A digit from 1
to 8 is guessed in four replies; `<` and `>` give its direction, `=` means found, and any other reply ends the game, as
a reply without a call does in TRL. `:` starts the policy's turn.
"""

from typing import Any

from slurm_rl.envs.environment import Environment, Reply, Row, Step

TURNS = 4
DIGITS = "12345678"


class Game:
    """One game, used by both sides."""

    def __init__(self, secret: str) -> None:
        self.secret, self.found = int(secret), False

    def say(self, guess: int) -> str:
        """Return the answer to a guess."""
        self.found = self.found or guess == self.secret
        return "=" if guess == self.secret else "<" if self.secret < guess else ">"


class OurGuess(Environment):
    def reset(self, row: Row, seed: int) -> None:
        self.game, self.turn = Game(row.answer), 0

    def step(self, reply: Reply) -> Step:
        self.turn += 1
        guess = reply.text.strip()
        answer = self.game.say(int(guess)) if guess in set(DIGITS) else None
        if answer is None or self.turn == TURNS:
            return Step(reward=float(self.game.found), done=True)
        return Step(f"{answer}:")


class TrlGuess:
    """Environment for TRL's `environment_factory`."""

    most_guesses = 0
    """Largest number of guesses in one game so far."""

    def reset(self, **row: Any) -> None:
        self._game, self._guesses = Game(row["answer"]), 0

    def guess(self, number: int) -> str:
        """Guess the digit.

        Args:
            number: The digit.
        """
        self._guesses += 1
        TrlGuess.most_guesses = max(TrlGuess.most_guesses, self._guesses)
        return self._game.say(int(number))

    def get_reward(self) -> float:
        return float(self._game.found)


TEMPLATE = """\
{%- for message in messages -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{%- set asked = call.function.arguments -%}
{%- if call.function.name != "guess" -%}{{ call.function.name }}{{ asked | tojson }}{%- endif -%}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}:{%- endif -%}"""
"""The smallest template that TRL accepts for tools: it must write a call's name and arguments. A guess is written as
its sampled digit; other names occur only in TRL's check.
"""
RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": ":",
    "fields": {
        "tool_calls": {
            "open_pattern": rf"(?P<digit>[{DIGITS}])",
            "close_pattern": r"(?=[\s\S])",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "guess", "arguments": {"number": "{digit}"}}},
        },
        "content": {"content": "text"},
    },
}
"""How transformers parses a reply: a digit is a call of `guess`."""
