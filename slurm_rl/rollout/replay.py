"""An agent's episode in the turn log, and the logged replies that a restarted agent gets again.

    reply {..., "asked": {"at": "/1f2e.0/93ab.0", "key": "...", "context": 7, "extends": "/1f2e.0", "read": "...", ...}}
    end   {"reward": 1.0, "scores": {}, "truncated": false, "turns": [0, 1], "heard": [0, 1]}

A request is identified by its place in the dialogue (endpoint/conversation.py): the tokens that the policy reads, the
parameters, and the number of equal requests before it; not by time. So concurrent requests get their own replies in any
order. A finished episode is trained on without running its agent again.
"""

from dataclasses import dataclass
from typing import Any

from slurm_rl.data.groups import Trajectory
from slurm_rl.data.prompts import Message
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.endpoint.conversation import Conversation, DialogueRenderer, Place, Said
from slurm_rl.rollout.endpoint.episode import LiveEpisode
from slurm_rl.rollout.endpoint.programs import Verdict, read_verdict
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.turn_log_format import History, Row, compute_checksum, pack_ids, render_row, unpack_ids


@dataclass(frozen=True)
class FinishedEpisode:
    """A `LiveEpisode` after its end, restored from the turn log."""

    conversation: Conversation
    is_truncated: bool
    failure: Failure | None = None


class ReplayRecord:
    """The log of one episode while its agent runs."""

    def __init__(self, index: int, member: int, history: History) -> None:
        self.index, self.member, self.history = index, member, history
        self._turns = {request["at"]: turn for turn, request in enumerate(history.asked)}
        self._unused = dict(self._turns)
        """Logged turns that the agent has not requested again."""
        self.num_mismatched = 0
        """Logged replies to requests that have changed."""

    @property
    def num_dropped(self) -> int:
        """Logged replies that the agent, once it has ended, did not request again."""
        return self.num_mismatched + len(self._unused)

    def find(self, place: Place) -> Trajectory | None:
        """Return the logged reply to the same request, once; None if it must be sampled."""
        turn = self._unused.pop(place.name, None)
        if turn is None:
            return None
        request = self.history.asked[turn]
        if (request["key"], request["context"]) != (place.key, compute_checksum(place.context)):
            self.num_mismatched += 1
            return None
        return self.history.replies[turn].unpack()

    def add(self, place: Place, reply: Response, message: Message | None) -> bytes:
        """Add a sampled reply and return its log line.

        Args:
            message: the agent's view of the reply, if it is more than the text.
        """
        request: dict[str, Any] = {"at": place.name, "key": place.key, "context": compute_checksum(place.context)}
        if place.parent is not None:
            request["extends"] = place.parent.place.name
        elif place.tools:  # turns that extend this one have the same tools
            request["tools"] = list(place.tools)
        request |= {"read": pack_ids(place.read), "new": list(place.new)}
        if message is not None:
            request["message"] = message
        self._turns[place.name] = turn = len(self.history.replies)
        self.history.replies.append(reply)
        self.history.asked.append(request)
        return render_row(Row(self.index, self.member, turn, reply=reply, asked=request))

    def end(self, outcome: Verdict | Failure, episode: LiveEpisode) -> bytes:
        """Add the outcome and return its log line."""
        turns = [(self._turns[turn.place.name], turn.heard) for turn in episode.conversation.turns]
        self.history.end = {
            **vars(outcome),
            "truncated": episode.is_truncated,
            "turns": [number for number, _ in turns],
            "heard": [number for number, is_heard in turns if is_heard],
        }
        return render_row(Row(self.index, self.member, len(self.history.replies), end=self.history.end))

    def rebuild(self, renderer: DialogueRenderer) -> tuple[Verdict | Failure, FinishedEpisode]:
        """Restore a finished episode."""
        end = self.history.end
        assert end is not None, "it is over"
        turns: dict[str, Said] = {}
        for number in end["turns"]:
            turn = self._restore(number, turns, is_heard=number in end["heard"])
            turns[turn.place.name] = turn
        episode = FinishedEpisode(Conversation(renderer, list(turns.values())), end["truncated"])
        if "cause" in end:
            return Failure(end["cause"], end["detail"]), episode
        return read_verdict(end), episode

    def _restore(self, number: int, turns: dict[str, Said], *, is_heard: bool) -> Said:
        request, reply = self.history.asked[number], self.history.replies[number].unpack()
        parent = turns[request["extends"]] if "extends" in request else None
        place = Place(
            name=request["at"],
            parent=parent,
            read=unpack_ids(request["read"]),
            new=request["new"],
            key=request["key"],
            tools=tuple(request.get("tools", ())) if parent is None else parent.place.tools,
        )
        return Said(place, reply, request.get("message") or {"role": "assistant", "content": reply.text}, is_heard)
