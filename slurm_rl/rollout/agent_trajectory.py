"""An episode that an external agent plays: its reward, and the tokens to train on."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_rl.data.groups import Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.environment import ToolCall
from slurm_rl.envs.tools import check_call
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.conversation_tree import BranchBuilder, join_branches
from slurm_rl.rollout.endpoint.conversation import Conversation, Said, join_contents, text_of
from slurm_rl.rollout.endpoint.episode import LiveEpisode
from slurm_rl.rollout.endpoint.programs import Verdict
from slurm_rl.rollout.replay import FinishedEpisode
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.sampling import reward_item
from slurm_rl.rollout.scoring import score_items
from slurm_rl.rollout.turn_log import BatchLog

_EXPENSIVE = {"pattern", "patternProperties", "$ref", "$dynamicRef"}
_NAME_MAPS = {"properties", "$defs", "definitions", "dependentSchemas"}
"""Keywords with names as keys, not keywords."""


@dataclass
class AgentTrajectory:
    """One episode of an agent."""

    index: int
    """Index of the prompt in the batch."""
    member: int
    prompt: EncodedPrompt
    name: str
    verdict: Verdict | Failure | None = None
    episode: LiveEpisode | FinishedEpisode | None = None
    """The recorded episode, once it is over."""
    logged_reward: dict[str, Any] | None = None
    """Result of the configured reward from the turn log."""

    @property
    def conversation(self) -> Conversation:
        assert self.episode is not None, "it is over"
        return self.episode.conversation

    @property
    def is_truncated(self) -> bool:
        return self.episode is not None and self.episode.is_truncated

    def row(self, seed: int) -> dict[str, Any]:
        """Return the row that the agent reads."""
        prompt = self.prompt
        return {
            "prompt": prompt.text,
            "messages": prompt.messages,
            "answer": prompt.answer,
            "index": prompt.index,
            "info": dict(prompt.info),
            "seed": seed,
        }

    def outcome(self) -> Verdict | Failure:
        """Return the verdict. An agent that exits with an error after a limit was reached has not failed."""
        verdict = self.verdict
        assert verdict is not None, "it is over"
        if self.episode is not None and self.episode.failure is not None:
            return self.episode.failure
        if isinstance(verdict, Failure) and verdict.cause == "exception" and self.is_truncated:
            verdict = Verdict()
        if isinstance(verdict, Verdict) and not any(turn.heard for turn in self.conversation.turns):
            return Failure("exception", "the program requested no reply, or received none")
        return verdict

    def reward_item(self) -> RewardItem:
        """Return the last reply, to be scored."""
        heard = [turn for turn in self.conversation.turns if turn.heard]
        truncated = self.is_truncated or (bool(heard) and heard[-1].reply.truncated)
        return reward_item(self.prompt, heard[-1].reply.text if heard else "", truncated=truncated)

    def result(self, item: RewardItem, outcome: Verdict | Failure) -> RewardResult:
        """Return the agent's own reward. No reward counts 0 after a limit, and is a failure otherwise."""
        if isinstance(outcome, Verdict) and outcome.reward is None:
            if not self.is_truncated:
                outcome = Failure("bad score", "the program printed no reward, and no reward is configured")
            else:
                outcome = replace(outcome, reward=0.0)
        if isinstance(outcome, Failure):
            return outcome.result(item)
        return RewardResult(item=item, value=outcome.reward, parts=dict(outcome.scores))

    def completion(self) -> Trajectory:
        """Concatenate the branches; a single branch after the row's prompt needs no `Branch`."""
        branches = []
        for turns in self.conversation.branches():
            branch = BranchBuilder(array("i", turns[0].place.context))
            for number, turn in enumerate(turns):
                if number:
                    branch.token_ids.extend(turn.place.read)
                    branch.turns[-1] = replace(branch.turns[-1], observation=join_contents(turn.place.new))
                branch.add(Response.pack(turn.reply))
                after = turns[number + 1] if number + 1 < len(turns) else None
                branch.turns[-1] = replace(branch.turns[-1], calls=tuple(_tool_calls(turn, after)))
            branches.append(branch)
        text = branches[-1].turns[-1].reply if branches else ""
        return join_branches(branches, self.prompt.packed, text, self.is_truncated)


def score_trajectories(
    trajectories: Sequence[AgentTrajectory], scorer: Scorer | None, log: BatchLog | None
) -> list[RewardResult]:
    """Return one result per trajectory; the value of a failed one is None. Results in the log are reused."""
    outcomes, items = [one.outcome() for one in trajectories], [one.reward_item() for one in trajectories]
    scored = {
        at: RewardResult(item=items[at], **one.logged_reward)
        for at, one in enumerate(trajectories)
        if one.logged_reward is not None
    }
    if scorer is not None:
        left = [at for at, it in enumerate(outcomes) if isinstance(it, Verdict) and it.reward is None]
        left = [at for at in left if at not in scored]
        results = score_items(scorer, [items[at] for at in left], [trajectories[at] for at in left], log)
        scored |= dict(zip(left, results, strict=True))
    return [scored.get(at) or one.result(items[at], outcomes[at]) for at, one in enumerate(trajectories)]


def _tool_calls(turn: Said, after: Said | None) -> Iterator[ToolCall]:
    """Yield the calls of a turn with their results from the next turn, and their errors by the tools' schemas."""
    schemas = {tool["function"]["name"]: drop_expensive(tool["function"]["parameters"]) for tool in turn.place.tools}
    ids = iter([call["id"] for call in turn.message.get("tool_calls", ())])
    new = after.place.new if after is not None else ()
    results = {message.get("tool_call_id"): text_of(message) for message in new}
    for call in turn.reply.details.calls if turn.place.tools and turn.reply.details else ():
        error, _, _ = check_call(call, schemas)
        # Calls that could not be parsed were passed to the agent as text, without an id.
        call_id = next(ids, None) if call.error is None else None
        yield replace(call, error=error, result=results.get(call_id, ""))


def drop_expensive(schema: Any) -> Any:
    """Return an agent's JSON schema without keywords that can take exponential time to check.

    >>> drop_expensive({"properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}}})
    {'properties': {'pattern': {'type': 'string'}}}
    """
    if isinstance(schema, list):
        return [drop_expensive(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _EXPENSIVE}
    return {key: _drop_within(key, value) for key, value in kept.items()}


def _drop_within(key: str, value: Any) -> Any:
    if key in ("const", "enum"):
        return value
    if key in _NAME_MAPS and isinstance(value, Mapping):
        return {name: drop_expensive(one) for name, one in value.items()}
    return drop_expensive(value)
