"""What the journal of a batch of episodes says, and how a line of it is written. Pure.

    9f3b11c2 {"k": "batch", "name": "rollout-12", "seed": 81, "env": ["replay", "5c1f..."], ...}
    1d0aa6e7 {"k": "reply", "p": 3, "m": 0, "t": 1, "ids": "...", "logprobs": "...", "weight_version": 12, "text": "5"}
    77c2d210 {"k": "step",  "p": 3, "m": 0, "t": 1, "observation": "<", "reward": null, "done": false, "scores": {}}
    0c41b7aa {"k": "end",   "p": 3, "m": 1, "t": 4, "said": {"reward": 1.0, ...}}       of a program's; see recorded.py

Before each line its CRC: a file counts up to its first line that is damaged or has no end. Token ids and logprobs are
bytes of int32 and float64 in base 64, so that every bit comes back.
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
from slurm_rl.rollout.packed_reply import PackedReply


class TurnPlace(NamedTuple):
    """Which turn of a batch."""

    place: int
    """Of the prompt in the batch."""
    member: int
    """Of the prompt's group."""
    turn: int


@dataclass
class History:
    """What is known of one episode."""

    replies: list[PackedReply] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """Of the first replies; of the newest there may be none."""
    snapshot: Snapshot | None = None
    verdict: dict[str, Any] | None = None
    """What the reward of the config said of it, where it judges."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Of a program's episode: by what each reply was asked for."""
    end: dict[str, Any] | None = None
    """Of a program's episode that is over: what became of it."""


def render_header(name: str, seed: int, facts: Mapping[str, Any]) -> bytes:
    return _render({"k": "batch", "name": name, "seed": seed, **facts})


def render_reply(at: TurnPlace, reply: PackedReply, asked: Mapping[str, Any] | None = None) -> bytes:
    row: dict[str, Any] = {
        "k": "reply",
        "p": at.place,
        "m": at.member,
        "t": at.turn,
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
        return _render_checked(row)
    row["asked"] = asked
    return _render(row)


def render_outcome(at: TurnPlace, outcome: Outcome, snapshot: bytes | None) -> bytes:
    if isinstance(outcome, Failure):
        return _render({"k": "failure", **_at(at), "cause": outcome.cause, "detail": outcome.detail})
    row: dict[str, Any] = {
        "k": "step",
        "p": at.place,
        "m": at.member,
        "t": at.turn,
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
    return _render_checked(row)


def render_verdict(place: int, member: int, verdict: Mapping[str, Any]) -> bytes:
    return _render({"k": "verdict", "p": place, "m": member, "said": dict(verdict)})


def render_end(place: int, member: int, num_replies: int, said: Mapping[str, Any]) -> bytes:
    """Of an episode that is over after so many replies."""
    return _render({"k": "end", **_at(TurnPlace(place, member, num_replies)), "said": said})


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Rows up to the first line that is not whole, and how many bytes those have.

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
    """Episodes by place and member.

    A reply of a turn that is known takes its place, and what came after goes.

    Args:
        newest_version: a reply of newer weights than these is dropped with all after it; None: none is.
    """
    found: dict[tuple[int, int], History] = {}
    for row in rows:
        if row["k"] == "batch":
            continue
        history = found.setdefault((row["p"], row["m"]), History())
        if row["k"] == "verdict":
            history.verdict = row["said"]
        elif row["k"] == "reply":
            _add_reply(history, row, newest_version)
        elif row["k"] == "end":
            # After a reply that was dropped it is the end of another episode.
            history.end = row["said"] if row["t"] == len(history.replies) else None
        elif row["t"] == len(history.outcomes) == len(history.replies) - 1:
            _add_outcome(history, row)
    return found


def render_histories(histories: Mapping[tuple[int, int], History]) -> Iterator[bytes]:
    """Lines that say the same; of snapshots the newest alone."""
    for (place, member), history in histories.items():
        for turn, reply in enumerate(history.replies):
            yield render_reply(TurnPlace(place, member, turn), reply, history.asked[turn] if history.asked else None)
            if turn < len(history.outcomes):
                snapshot = history.snapshot
                kept = snapshot.data if snapshot is not None and snapshot.num_replies == turn + 1 else None
                yield render_outcome(TurnPlace(place, member, turn), history.outcomes[turn], kept)
        if history.end is not None:
            yield render_end(place, member, len(history.replies), history.end)
        if history.verdict is not None:
            yield render_verdict(place, member, history.verdict)


def _add_reply(history: History, row: Mapping[str, Any], newest_version: int | None) -> None:
    turn, reply = row["t"], _parse_reply(row)
    if turn > len(history.replies):
        return  # after one that was dropped
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
    history.outcomes.append(check_step(Step(**with_calls(fields))))  # an older version took what this one refuses
    if "snapshot" in row:
        history.snapshot = Snapshot(row["t"] + 1, base64.b64decode(row["snapshot"]))


def _parse_reply(row: Mapping[str, Any]) -> PackedReply:
    apart = {"k", "p", "m", "t", "ids", "logprobs", "token_versions", "asked"}
    fields = {name: value for name, value in row.items() if name not in apart}
    versions = array("i", row.get("token_versions", ())).tobytes()
    ids, logprobs = base64.b64decode(row["ids"]), base64.b64decode(row["logprobs"])
    return PackedReply(ids, logprobs, token_versions=versions, **with_calls(fields))


def _at(at: TurnPlace) -> dict[str, int]:
    return {"p": at.place, "m": at.member, "t": at.turn}


def pack_ids(token_ids: Sequence[int]) -> str:
    return _encode(array("i", token_ids).tobytes())


def unpack_ids(text: str) -> list[int]:
    return array("i", base64.b64decode(text)).tolist()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


_write = json.JSONEncoder(separators=(",", ":"), default=_encode).encode
_write_finite = msgspec.json.Encoder().encode
"""Bytes become base 64 in both."""


def _render(row: Mapping[str, Any]) -> bytes:
    return _sign(_write(row).encode())


def _render_checked(row: Mapping[str, Any]) -> bytes:
    """The same, where all numbers are known to be finite, in an eighth of the time: there are two such lines a turn."""
    try:
        return _sign(_write_finite(row))
    except UnicodeEncodeError:  # half a surrogate pair, such as a score's name may have
        return _render(row)


def _sign(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line[9:])
        return row if int(line[:8], 16) == zlib.crc32(line[9:]) and isinstance(row, dict) else None
    except ValueError:
        return None
