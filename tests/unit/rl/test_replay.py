"""The journal of a program's episode: matching requests to recorded turns, and restoring them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.data.prompts import Message
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.agent_trajectory import AgentTrajectory
from slurm_rl.rollout.endpoint.conversation import Conversation
from slurm_rl.rollout.endpoint.programs import Verdict, find_version
from slurm_rl.rollout.endpoint.requests import SamplingRule, parse_chat
from slurm_rl.rollout.replay import ReplayRecord
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.turn_log import PROGRAM, TurnLog
from slurm_rl.rollout.turn_log_format import History, build_histories, parse_lines, render_histories
from tests.unit.rollout.endpoint.kit import make_renderer, sampled

PROMPT = EncodedPrompt(index=0, token_ids=[5, 6], text="?", answer="")
FIRST: Message = {"role": "user", "content": "guess"}


class Episode:
    """A recorded dialogue."""

    def __init__(self, history: History | None = None) -> None:
        self.conversation = Conversation(make_renderer())
        self.record = ReplayRecord(0, 0, history or History())
        self.lines: list[bytes] = []

    def say(self, messages: list[Message], reply: str, version: int = 3, variant: str = "") -> None:
        place = self.conversation.place(self.conversation.read(messages), variant)
        found = self.record.find(place)
        if found is None:
            found = sampled(reply, version)
            self.lines.append(self.record.add(place, Response.pack(found), None))
        self.conversation.add(place, found).heard = True

    def end(self, outcome: Verdict | Failure, *, truncated: bool = False) -> None:
        closed: Any = SimpleNamespace(conversation=self.conversation, is_truncated=truncated)
        self.lines.append(self.record.end(outcome, closed))

    def again(self, newest: int | None = None) -> History:
        """Return the episode read back from the journal."""
        [history] = build_histories(parse_lines(b"".join(self.lines))[0], newest).values()
        return history


def dialogue(*said: str) -> list[Message]:
    roles = ["assistant" if place % 2 else "user" for place in range(len(said))]
    return [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]


@pytest.mark.parametrize("outcome", [Verdict(0.5, {"turns": 2.0}), Verdict(), Failure("exception", "as it is told to")])
def test_rebuild_restores_finished_episode(outcome: Verdict | Failure) -> None:
    episode = Episode()
    episode.say([FIRST], "6")
    episode.say(dialogue("guess", "6", "<"), "4")
    episode.say(dialogue("guess", "6", ">"), "8")
    episode.say([FIRST], "lost")
    episode.conversation.turns[-1].heard = False
    episode.end(outcome, truncated=True)
    history = episode.again()
    assert history == build_histories(parse_lines(b"".join(render_histories({(0, 0): history})))[0], None)[0, 0]
    verdict, closed = ReplayRecord(0, 0, history).rebuild(make_renderer())
    assert verdict == outcome and closed.is_truncated
    as_played: Any = SimpleNamespace(conversation=episode.conversation, is_truncated=True, failure=None)
    builds = [AgentTrajectory(0, 0, PROMPT, "", episode=it).completion() for it in (as_played, closed)]
    assert builds[0] == builds[1] and len(builds[0].branches) == 2


def test_find_returns_logged_replies_in_any_order() -> None:
    episode, short = Episode(), '["h"]'
    for reply, variant in (("a", ""), ("b", ""), ("c", short)):
        episode.say([FIRST], reply, variant=variant)
    again = Episode(episode.again())
    for variant in (short, "", "", ""):
        again.say([FIRST], "new", variant=variant)
    assert [said.reply.text for said in again.conversation.turns] == ["c", "a", "b", "new"]
    assert again.record.num_dropped == 0 and len(again.lines) == 1


def test_record_counts_dropped_replies_and_checks_context() -> None:
    episode = Episode()
    episode.say([FIRST], "6")
    episode.say(dialogue("guess", "6", "<"), "4")
    history = episode.again()
    history.asked[0]["key"] = "of other messages"
    again = Episode(history)
    # The program strips the reply, so its next request is equal, but the policy saw an additional token before it.
    again.say([FIRST], " 6")
    again.say(dialogue("guess", "6", "<"), "5")
    assert again.record.num_dropped == 2 and [it.reply.text for it in again.conversation.turns] == [" 6", "5"]
    assert ReplayRecord(0, 0, episode.again()).num_dropped == 2
    # The newer of two records with one name counts.
    third = Episode(build_histories(parse_lines(b"".join(episode.lines + again.lines))[0], None)[0, 0])
    third.say([FIRST], "new")
    assert third.conversation.turns[0].reply.text == " 6"


def test_end_after_unsaved_weights_is_dropped() -> None:
    episode = Episode()
    episode.say([FIRST], "6", version=3)
    episode.say(dialogue("guess", "6", "<"), "4", version=4)
    episode.end(Verdict(1.0))
    assert episode.again(4).end is not None
    history = episode.again(3)
    assert history.end is None and len(history.replies) == len(history.asked) == 1


def test_resume_removes_batches_of_lost_weights(tmp_path: Path) -> None:
    """The run repeats these steps with different weights of the same version."""
    for step, is_left in ((3, True), (4, False)):
        journal = TurnLog(tmp_path, Facts(PROGRAM, ""), keeps_all=False, report=lambda *_, **__: None)
        journal.resume(3, None)
        journal.open(SamplingSpec(1, 8, 1.0, 1.0, seed=7, batch=f"rollout-{step}"), [PROMPT])
        journal.resume(3, None)
        assert bool(list(tmp_path.glob(f"rollout-{step}-*"))) is is_left


def test_agents_drop_turns_of_unsaved_weights_in_lockstep_runs(tmp_path: Path) -> None:
    episode = Episode()
    episode.say([FIRST], "6", version=4)
    for facts, count in ((Facts("replay", ""), 1), (Facts(PROGRAM, ""), 0)):
        journal = TurnLog(tmp_path / facts.resume, facts, keeps_all=True, report=lambda *_, **__: None)
        journal.resume(3, None)
        spec = SamplingSpec(1, 8, 1.0, 1.0, seed=7, batch="rollout-3")
        journal.open(spec, [PROMPT]).write(episode.lines)
        assert len(journal.open(spec, [PROMPT]).histories) == count


@pytest.mark.parametrize(
    ("words", "is_plain"),
    [
        ({}, True),
        ({"max_tokens": 8}, True),
        ({"max_tokens": 500, "tool_choice": "none"}, True),
        ({"max_tokens": 7}, False),
        ({"stop": "."}, False),
    ],
)
def test_request_variant_depends_on_sampling_parameters(words: dict[str, Any], is_plain: bool) -> None:
    asked = parse_chat({"messages": [FIRST], **words}, SamplingRule(1.0, 1.0, 8))
    assert (asked.variant == "") is is_plain


def test_agent_version_depends_on_words_and_files(tmp_path: Path) -> None:
    files = [tmp_path / name / "agent.py" for name in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("pass")
    first = find_version(["python", str(files[0]), "x"])
    assert first == find_version(["python", str(files[1]), "x"]) != find_version(["python", str(files[1]), "y"])
    files[1].write_text("pass  # but another")
    assert first != find_version(["python", str(files[1]), "x"])
    assert find_version([f"{files[0]}:World"]) != find_version([f"{files[1]}:World"])
