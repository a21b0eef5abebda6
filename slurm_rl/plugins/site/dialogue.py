"""Answers to all questions: from the command line, from a terminal, or what is likely."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.site.findings import Findings
from slurm_rl.plugins.site.questions import Answer, Question, next_question, take_answer, take_default

Asker = Callable[[Question], str | None]
"""What somebody says to a question; "" takes the default, None says that nobody is there any more."""
_TRIES = 3


def answer_all(findings: Findings, told: Mapping[str, str], ask: Asker | None) -> dict[str, Answer]:
    """Every question with its answer.

    Args:
        told: on the command line, by key.
        ask: None: nobody is there.

    Raises:
        ConfigError: an answer that cannot be; no partition is open to this user.
    """
    answers: dict[str, Answer] = {}
    while (question := next_question(findings, answers)) is not None:
        if question.key in told:
            answers[question.key] = take_answer(question, told[question.key], "told on the command line")
        elif ask is None or not question.text:
            answers[question.key] = take_default(question)
        else:
            answers[question.key] = _ask(question, ask)
    return answers


def _ask(question: Question, ask: Asker) -> Answer:
    for _ in range(_TRIES):
        said = ask(question)
        if said is None:
            break
        if not said:
            return Answer(question.default, f"asked; {question.why}")
        try:
            return take_answer(question, said, "asked")
        except ConfigError as error:
            print(error, file=sys.stderr)
    return take_default(question)


def ask_terminal(question: Question) -> str | None:
    """On a terminal; what is asked is not output."""
    choices = f" ({', '.join(question.choices)})" if question.choices else ""
    print(f"{question.text}{choices} [{question.default or 'none'}]: ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None
