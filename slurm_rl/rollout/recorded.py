"""What the journal has of an episode that a program plays, and what of it its program hears again.

    reply {..., "asked": {"at": "/1f2e.0/93ab.0", "key": "...", "context": 7, "extends": "/1f2e.0", "read": "...", ...}}
    end   {"reward": 1.0, "scores": {}, "truncated": false, "turns": [0, 1], "heard": [0, 1]}

A request is known by its place in the dialogue (endpoint/conversation.py), which follows from what the policy reads,
from how it is asked and from how often it was asked before; never from the time. So concurrent requests get their own
replies in whatever order they come. Of an episode that is over all is there to train on without its program.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.data.groups import Completion
from slurm_rl.data.prompts import Message
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.endpoint.conversation import Conversation, DialogueRenderer, Place, Said
from slurm_rl.rollout.endpoint.episode import LiveEpisode
from slurm_rl.rollout.endpoint.programs import Verdict, read_verdict
from slurm_rl.rollout.journal_lines import (
    History,
    TurnPlace,
    pack_ids,
    render_end,
    render_reply,
    unpack_ids,
)
from slurm_rl.rollout.packed_reply import PackedReply


@dataclass(frozen=True)
class EndedEpisode:
    """As `LiveEpisode` is when it is closed."""

    conversation: Conversation
    is_truncated: bool
    failure: Failure | None = None


class Record:
    """One episode in the journal, as it is played."""

    def __init__(self, place: int, member: int, history: History) -> None:
        self.place, self.member, self.history = place, member, history
        self._turns = {asked["at"]: turn for turn, asked in enumerate(history.asked)}
        self._left = dict(self._turns)
        """Recorded before, and not asked for since."""
        self.num_other = 0
        """Replies that were recorded where the program has asked for something else."""

    @property
    def num_dropped(self) -> int:
        """Recorded replies that the program, now that it has ended, has not asked for again."""
        return self.num_other + len(self._left)

    def find(self, place: Place) -> Completion | None:
        """The recorded reply to the same request, once; None where it is to be sampled."""
        turn = self._left.pop(place.name, None)
        if turn is None:
            return None
        asked = self.history.asked[turn]
        if (asked["key"], asked["context"]) != (place.key, _checksum(place.context)):
            self.num_other += 1
            return None
        return self.history.replies[turn].unpack()

    def add(self, place: Place, reply: PackedReply, message: Message | None) -> bytes:
        """Take a reply that was sampled; returns its line of the journal.

        Args:
            message: what the program gets of it, where that is more than its text.
        """
        turn, history = len(self.history.replies), self.history
        asked: dict[str, Any] = {"at": place.name, "key": place.key, "context": _checksum(place.context)}
        if place.parent is not None:
            asked["extends"] = place.parent.name
        elif place.tools:  # those of what extends it are the same
            asked["tools"] = list(place.tools)
        asked |= {"read": pack_ids(place.read), "new": list(place.new)}
        if message is not None:
            asked["message"] = message
        history.replies.append(reply)
        history.asked.append(asked)
        self._turns[place.name] = turn
        return render_reply(TurnPlace(self.place, self.member, turn), reply, asked)

    def end(self, outcome: Verdict | Failure, episode: LiveEpisode) -> bytes:
        """Take what became of it; returns that line."""
        turns = [(self._turns[said.name], said.heard) for said in episode.conversation.turns]
        self.history.end = {
            **vars(outcome),
            "truncated": episode.is_truncated,
            "turns": [turn for turn, _ in turns],
            "heard": [turn for turn, is_heard in turns if is_heard],
        }
        return render_end(self.place, self.member, len(self.history.replies), self.history.end)

    def rebuild(self, renderer: DialogueRenderer) -> tuple[Verdict | Failure, EndedEpisode]:
        """An episode that is over, as it was when its program had ended."""
        end = self.history.end
        assert end is not None, "it is over"
        known: dict[str, Said] = {}
        for turn in end["turns"]:
            said = self._said(turn, known, is_heard=turn in end["heard"])
            known[said.name] = said
        episode = EndedEpisode(Conversation(renderer, list(known.values())), end["truncated"])
        if "cause" in end:
            return Failure(end["cause"], end["detail"]), episode
        return read_verdict(end), episode

    def _said(self, turn: int, known: dict[str, Said], *, is_heard: bool) -> Said:
        asked, reply = self.history.asked[turn], self.history.replies[turn].unpack()
        parent = known[asked["extends"]] if "extends" in asked else None
        tools = tuple(asked.get("tools", ())) if parent is None else parent.tools
        message = asked.get("message") or {"role": "assistant", "content": reply.text}
        return Said(asked["at"], parent, unpack_ids(asked["read"]), reply, asked["new"], tools, message, is_heard)


def _checksum(token_ids: Sequence[int]) -> int:
    return zlib.crc32(array("q", token_ids).tobytes())
