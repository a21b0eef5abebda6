"""Format of the turn log: the lines of one batch of episodes, and how to parse them. Pure.

    9f3b11c2 {"k": "batch", "name": "rollout-12", "seed": 81, "env": ["replay", "5c1f..."], ...}
    1d0aa6e7 {"k": "reply", "p": 3, "m": 0, "t": 1, "ids": "...", "logprobs": "...", "weight_version": 12, "text": "5"}
    77c2d210 {"k": "step",  "p": 3, "m": 0, "t": 1, "observation": "<", "reward": null, "done": false, "scores": {}}
    0c41b7aa {"k": "end",   "p": 3, "m": 1, "t": 4, "said": {"reward": 1.0, ...}}       agents only, see replay.py

Each line starts with its CRC; a file is valid up to the first damaged or incomplete line. Token ids and logprobs are
int32 and float64 bytes in base 64, so every bit is restored.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from slurm_rl.data.groups import with_calls
from slurm_rl.envs.environment import Step
from slurm_rl.envs.steps import Outcome, check_step
from slurm_rl.envs.worker import Snapshot
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.response import Response


class TurnKey(NamedTuple):
    """Identifies a turn within a batch."""

    prompt_index: int
    """Index of the prompt in the batch."""
    member: int
    """Index of the episode in the prompt's group."""
    turn: int


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


def render_header(name: str, seed: int, facts: Mapping[str, Any]) -> bytes:
    return _render({"k": "batch", "name": name, "seed": seed, **facts})


def render_reply(key: TurnKey, reply: Response, asked: Mapping[str, Any] | None = None) -> bytes:
    row: dict[str, Any] = {
        "k": "reply",
        **_fields(key),
        "ids": reply.token_ids,
        "logprobs": reply.logprobs,
        "text": reply.text,
        "truncated": reply.truncated,
        "weight_version": reply.weight_version,
    }
    if reply.token_versions:
        row["token_versions"] = array("i", reply.token_versions).tolist()
    if reply.content:
        row["content"] = reply.content
    if reply.calls:
        row["calls"] = [vars(call) for call in reply.calls]
    if asked is None:
        return _render_finite(row)
    row["asked"] = asked
    return _render(row)


def render_outcome(key: TurnKey, outcome: Outcome, snapshot: bytes | None) -> bytes:
    if isinstance(outcome, Failure):
        return _render({"k": "failure", **_fields(key), "cause": outcome.cause, "detail": outcome.detail})
    row: dict[str, Any] = {
        "k": "step",
        **_fields(key),
        "observation": outcome.observation,
        "reward": outcome.reward,
        "done": outcome.done,
        "scores": outcome.scores,
        "agent": outcome.agent,
    }
    if outcome.calls:
        row["calls"] = [vars(call) for call in outcome.calls]
    if outcome.begins:
        row["begins"] = True
    if outcome.rewards:
        row["rewards"] = outcome.rewards
    if snapshot is not None:
        row["snapshot"] = snapshot
    return _render_finite(row)


def render_verdict(index: int, member: int, verdict: Mapping[str, Any]) -> bytes:
    return _render({"k": "verdict", "p": index, "m": member, "said": dict(verdict)})


def render_end(index: int, member: int, num_replies: int, outcome: Mapping[str, Any]) -> bytes:
    """Render the end of an agent's episode after `num_replies`."""
    return _render({"k": "end", **_fields(TurnKey(index, member, num_replies)), "said": outcome})


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the rows before the first invalid line, and their length in bytes.

    >>> parse_lines(render_header("rollout-1", 7, {}) + b"5c1f77aa {")[1]
    51
    """
    rows: list[dict[str, Any]] = []
    end = 0
    for line in data.split(b"\n")[:-1]:
        row = _parse(line)
        if row is None:
            break
        rows.append(row)
        end += len(line) + 1
    return rows, end


def build_histories(rows: Iterable[Mapping[str, Any]], newest_version: int | None) -> dict[tuple[int, int], History]:
    """Return the episodes by prompt index and member. A repeated turn replaces the logged one and all after it.

    Args:
        newest_version: drop replies of newer weights, and all turns after them; None keeps all.
    """
    histories: dict[tuple[int, int], History] = {}
    for row in rows:
        if row["k"] == "batch":
            continue
        history = histories.setdefault((row["p"], row["m"]), History())
        if row["k"] == "verdict":
            history.verdict = row["said"]
        elif row["k"] == "reply":
            _add_reply(history, row, newest_version)
        elif row["k"] == "end":
            # If a reply was dropped, this is the end of another episode.
            history.end = row["said"] if row["t"] == len(history.replies) else None
        elif row["t"] == len(history.outcomes) == len(history.replies) - 1:
            _add_outcome(history, row)
    return histories


def render_histories(histories: Mapping[tuple[int, int], History]) -> Iterator[bytes]:
    """Render histories as lines; keeps only the newest snapshot."""
    for (index, member), history in histories.items():
        for turn, reply in enumerate(history.replies):
            key = TurnKey(index, member, turn)
            yield render_reply(key, reply, history.asked[turn] if history.asked else None)
            if turn < len(history.outcomes):
                snapshot = history.snapshot
                data = snapshot.data if snapshot is not None and snapshot.num_replies == turn + 1 else None
                yield render_outcome(key, history.outcomes[turn], data)
        if history.end is not None:
            yield render_end(index, member, len(history.replies), history.end)
        if history.verdict is not None:
            yield render_verdict(index, member, history.verdict)


def _add_reply(history: History, row: Mapping[str, Any], newest_version: int | None) -> None:
    turn, reply = row["t"], _parse_reply(row)
    if turn > len(history.replies):
        return  # an earlier turn was dropped
    del history.replies[turn:], history.outcomes[turn:], history.asked[turn:]
    history.verdict = history.end = None
    if history.snapshot is not None and history.snapshot.num_replies > turn:
        history.snapshot = None
    if newest_version is None or max(reply.versions(), default=reply.weight_version) <= newest_version:
        history.replies.append(reply)
        history.asked += [row["asked"]] if "asked" in row else []


def _add_outcome(history: History, row: Mapping[str, Any]) -> None:
    if row["k"] == "failure":
        history.outcomes.append(Failure(row["cause"], row["detail"]))
        return
    fields = {name: value for name, value in row.items() if name not in {"k", "p", "m", "t", "snapshot"}}
    history.outcomes.append(check_step(Step(**with_calls(fields))))
    if "snapshot" in row:
        history.snapshot = Snapshot(row["t"] + 1, base64.b64decode(row["snapshot"]))


def _parse_reply(row: Mapping[str, Any]) -> Response:
    packed = {"k", "p", "m", "t", "ids", "logprobs", "token_versions", "asked"}
    fields = {name: value for name, value in row.items() if name not in packed}
    versions = array("i", row.get("token_versions", ())).tobytes()
    ids, logprobs = base64.b64decode(row["ids"]), base64.b64decode(row["logprobs"])
    return Response(ids, logprobs, token_versions=versions, **with_calls(fields))


def _fields(key: TurnKey) -> dict[str, int]:
    return {"p": key.prompt_index, "m": key.member, "t": key.turn}


def pack_ids(token_ids: Sequence[int]) -> str:
    return _encode(array("i", token_ids).tobytes())


def unpack_ids(text: str) -> list[int]:
    return array("i", base64.b64decode(text)).tolist()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


_dump = json.JSONEncoder(separators=(",", ":"), default=_encode).encode
_dump_finite = msgspec.json.Encoder().encode
"""Both encode bytes in base 64."""


def _render(row: Mapping[str, Any]) -> bytes:
    return _sign(_dump(row).encode())


def _render_finite(row: Mapping[str, Any]) -> bytes:
    """Render a row of finite numbers, in an eighth of the time; there are two such lines per turn."""
    try:
        return _sign(_dump_finite(row))
    except UnicodeEncodeError:  # a lone surrogate, for example in the name of a score
        return _render(row)


def _sign(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line[9:])
        return row if int(line[:8], 16) == zlib.crc32(line[9:]) and isinstance(row, dict) else None
    except ValueError:
        return None
