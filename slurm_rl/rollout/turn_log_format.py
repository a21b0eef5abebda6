"""Format of the turn log: the lines of one batch of episodes, and how to parse them. Pure.

    9f3b11c2 {"batch": {"name": "rollout-12", "seed": 81, "env": ["replay", "5c1f..."], ...}}
    1d0aa6e7 {"p": 3, "m": 0, "t": 1, "reply": ["<token ids>", "<logprobs>", "5", false, 12]}
    77c2d210 {"p": 3, "m": 0, "t": 1, "step": {"observation": "<", "reward": null, "done": false, "scores": {}, ...}}
    0c41b7aa {"p": 3, "m": 1, "t": 4, "end": {"reward": 1.0, ...}}                      agents only, see replay.py

Each line starts with its CRC; a file is valid up to the first damaged or incomplete line. Token ids and logprobs are
int32 and float64 bytes in base 64, so every bit is restored.
"""

import base64
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from slurm_rl.envs.environment import Step
from slurm_rl.envs.steps import Outcome, check_step
from slurm_rl.envs.worker import Snapshot
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.response import Response

TurnKey: TypeAlias = tuple[int, int, int]
"""Index of the prompt in the batch, index of the episode in the prompt's group, and turn."""


@dataclass
class History:
    """Logged turns of one episode."""

    replies: list[Response] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """Outcome of each reply; the newest reply may have none yet."""
    snapshot: Snapshot | None = None
    verdict: dict[str, Any] | None = None
    """Result of the configured reward, if it scored the episode."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Agents only: the request of each reply."""
    end: dict[str, Any] | None = None
    """Agents only: outcome of a finished episode."""


class Row(msgspec.Struct, omit_defaults=True):
    """One line: the header of the batch, or a turn's reply, its outcome, or the end or verdict of an episode."""

    p: int = -1
    """Index of the prompt in the batch."""
    m: int = -1
    """Index of the episode in the prompt's group."""
    t: int = -1
    """Turn; with `end`, the number of replies."""
    batch: dict[str, Any] | None = None
    reply: Response | None = None
    asked: dict[str, Any] | None = None
    """Agents only: the request of the reply."""
    step: Step | None = None
    failure: Failure | None = None
    snapshot: bytes | None = None
    verdict: dict[str, Any] | None = None
    end: dict[str, Any] | None = None


def render_outcome(key: TurnKey, outcome: Outcome, snapshot: bytes | None) -> bytes:
    if isinstance(outcome, Failure):
        return render_row(Row(*key, failure=outcome))
    return render_row(Row(*key, step=outcome, snapshot=snapshot))


def parse_lines(data: bytes) -> tuple[list[Row], int]:
    """Return the rows before the first invalid line, and their length in bytes.

    >>> parse_lines(render_row(Row(batch={"name": "rollout-1", "seed": 7})) + b"5c1f77aa {")[1]
    49
    """
    rows: list[Row] = []
    end = 0
    with suppress(ValueError, msgspec.ValidationError):
        for line in data.split(b"\n")[:-1]:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                break
            rows.append(msgspec.convert(json.loads(line[9:]), Row))
            end += len(line) + 1
    return rows, end


def build_histories(rows: Iterable[Row], newest_version: int | None) -> dict[tuple[int, int], History]:
    """Return the episodes by prompt index and member. A repeated turn replaces the logged one and all after it.

    Args:
        newest_version: drop replies of newer weights, and all turns after them; None keeps all.
    """
    histories: dict[tuple[int, int], History] = {}
    for row in rows:
        if row.batch is not None:
            continue
        history = histories.setdefault((row.p, row.m), History())
        if row.verdict is not None:
            history.verdict = row.verdict
        elif row.reply is not None:
            _add_reply(history, row, row.reply, newest_version)
        elif row.end is not None:
            # If a reply was dropped, this is the end of another episode.
            history.end = row.end if row.t == len(history.replies) else None
        elif row.t == len(history.outcomes) == len(history.replies) - 1:
            history.outcomes.append(row.failure or check_step(row.step))
            if row.snapshot is not None:
                history.snapshot = Snapshot(row.t + 1, row.snapshot)
    return histories


def render_histories(histories: Mapping[tuple[int, int], History]) -> Iterator[bytes]:
    """Render histories as lines; keeps only the newest snapshot."""
    for (index, member), history in histories.items():
        for turn, reply in enumerate(history.replies):
            key, snapshot = (index, member, turn), history.snapshot
            yield render_row(Row(*key, reply=reply, asked=history.asked[turn] if history.asked else None))
            if turn < len(history.outcomes):
                data = snapshot.data if snapshot is not None and snapshot.num_replies == turn + 1 else None
                yield render_outcome(key, history.outcomes[turn], data)
        if history.end is not None:
            yield render_row(Row(index, member, len(history.replies), end=history.end))
        if history.verdict is not None:
            yield render_row(Row(index, member, verdict=history.verdict))


def _add_reply(history: History, row: Row, reply: Response, newest_version: int | None) -> None:
    turn = row.t
    if turn > len(history.replies):
        return  # an earlier turn was dropped
    del history.replies[turn:], history.outcomes[turn:], history.asked[turn:]
    history.verdict = history.end = None
    if history.snapshot is not None and history.snapshot.num_replies > turn:
        history.snapshot = None
    if newest_version is None or max(reply.versions(), default=reply.weight_version) <= newest_version:
        history.replies.append(reply)
        history.asked += [] if row.asked is None else [row.asked]


def pack_ids(token_ids: Sequence[int]) -> str:
    return base64.b64encode(array("i", token_ids).tobytes()).decode()


def unpack_ids(text: str) -> list[int]:
    return array("i", base64.b64decode(text)).tolist()


def compute_checksum(token_ids: Sequence[int], before: int = 0) -> int:
    """Return the CRC of token ids that follow others with the CRC `before`."""
    return zlib.crc32(array("i", token_ids).tobytes(), before)


_encode = msgspec.json.Encoder().encode
"""In an eighth of the time of `json`, for the two lines of each turn."""


def render_row(row: Row) -> bytes:
    text = b""
    if row.asked is None and row.verdict is None and row.end is None:
        with suppress(UnicodeEncodeError):  # half a surrogate pair, for example in the arguments of a tool call
            text = _encode(row)
    # What an agent sent may hold any number and text, of which msgspec writes only finite numbers and valid Unicode.
    text = text or json.dumps(msgspec.to_builtins(row), separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)
