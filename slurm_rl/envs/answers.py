"""Messages from an environment process to the trainer: msgpack of plain types, so that they contain no code.

    Said(facts=Facts("replay", "5c1f..."))     once, after the import of the user's file
    Said(answers=[...])                         finished steps

The trainer decodes them by these types; other bytes count as a crash of the process.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slurm_rl.envs.environment import Step
from slurm_rl.envs.facts import Facts, Refused
from slurm_rl.envs.steps import Outcome, check_step
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import describe_error


class Answer(NamedTuple):
    episode: str
    outcome: Outcome
    snapshot: bytes | None = None
    """State after the call, with resume="snapshot"."""


class _Packed(msgspec.Struct, array_like=True):
    """An answer; it has either a step or a failure."""

    episode: str
    step: Step | None
    failure: Failure | None
    snapshot: bytes | None


class Said(msgspec.Struct, array_like=True):
    answers: list[msgspec.Raw] = []
    facts: Facts | None = None
    refused: Refused | None = None

    def read(self) -> list[Answer]:
        """Return the answers; raises ValueError or msgspec.DecodeError for invalid ones."""
        return [_unpack(_decode_answer(raw)) for raw in self.answers]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Said).decode
_decode_answer = msgspec.msgpack.Decoder(_Packed).decode


def pack_answer(answer: Answer) -> msgspec.Raw:
    """Return an answer as bytes. A step that cannot be encoded (for example an int above 64 bits) is a failure."""
    step, failure = (answer.outcome, None) if isinstance(answer.outcome, Step) else (None, answer.outcome)
    try:
        return msgspec.Raw(encode(_Packed(answer.episode, step, failure, answer.snapshot)))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        failure = Failure("bad score", f"the step cannot be sent: {describe_error(error)}")
        return msgspec.Raw(encode(_Packed(answer.episode, None, failure, None)))


def _unpack(packed: _Packed) -> Answer:
    if packed.step is not None and packed.failure is None:
        return Answer(packed.episode, check_step(packed.step), packed.snapshot)
    if packed.failure is None or packed.step is not None:
        raise ValueError("an answer must be a step or a failure")
    return Answer(packed.episode, packed.failure)
