"""An episode that a program has played: what it was worth, and the tokens that are trained on."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_rl.data.groups import Completion
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.environment import ToolCall
from slurm_rl.envs.tools import check_call
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.ended import ask_scorer
from slurm_rl.rollout.endpoint.conversation import Conversation, Said, text_of
from slurm_rl.rollout.endpoint.episode import LiveEpisode
from slurm_rl.rollout.endpoint.programs import Verdict
from slurm_rl.rollout.journal import BatchJournal
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.paths import Path, join_paths
from slurm_rl.rollout.recorded import EndedEpisode

_COSTLY = {"pattern", "patternProperties", "$ref", "$dynamicRef"}
_BY_NAME = {"properties", "$defs", "definitions", "dependentSchemas"}
"""Keywords whose keys are names and not keywords."""


@dataclass
class Played:
    """An episode that a program plays."""

    place: int
    """Of its prompt in the batch."""
    member: int
    prompt: EncodedPrompt
    name: str
    verdict: Verdict | Failure | None = None
    episode: LiveEpisode | EndedEpisode | None = None
    """What was recorded, once it is over."""
    judged: dict[str, Any] | None = None
    """What the reward of the config has said of it before."""


def row_of(prompt: EncodedPrompt, seed: int) -> dict[str, Any]:
    """What a program reads."""
    return {
        "prompt": prompt.text,
        "messages": prompt.messages,
        "answer": prompt.answer,
        "index": prompt.index,
        "info": dict(prompt.info),
        "seed": seed,
    }


def conversation_of(one: Played) -> Conversation:
    assert one.episode is not None, "it is over"
    return one.episode.conversation


def is_truncated(one: Played) -> bool:
    return one.episode is not None and one.episode.is_truncated


def judge(one: Played) -> Verdict | Failure:
    """What became of it. A program that ends badly after a limit was reached has not failed: its policy went on."""
    verdict = one.verdict
    assert verdict is not None, "it is over"
    if one.episode is not None and one.episode.failure is not None:
        return one.episode.failure
    if isinstance(verdict, Failure) and verdict.cause == "exception" and is_truncated(one):
        verdict = Verdict()
    if isinstance(verdict, Verdict) and not any(said.heard for said in conversation_of(one).turns):
        return Failure("exception", "the program asked for no reply, or heard none")
    return verdict


def item_of(one: Played) -> RewardItem:
    """Its last reply, to be judged."""
    prompt = one.prompt
    heard = [said for said in conversation_of(one).turns if said.heard]
    return RewardItem(
        completion=heard[-1].reply.text if heard else "",
        answer=prompt.answer,
        prompt=prompt.text,
        messages=prompt.messages,
        truncated=is_truncated(one) or (bool(heard) and heard[-1].reply.truncated),
    )


def build_result(one: Played, item: RewardItem, verdict: Verdict | Failure) -> RewardResult:
    """What the program said; nothing said is worth nothing where a limit ended it, else a failure."""
    if isinstance(verdict, Verdict) and verdict.reward is None:
        if not is_truncated(one):
            verdict = Failure("bad score", "the program said no reward, and no reward is configured")
        else:
            verdict = replace(verdict, reward=0.0)
    if isinstance(verdict, Failure):
        return RewardResult(item=item, value=None, failure=verdict.cause, detail=verdict.detail)
    return RewardResult(item=item, value=verdict.reward, parts=dict(verdict.scores))


def score_played(played: Sequence[Played], scorer: Scorer | None, journal: BatchJournal | None) -> list[RewardResult]:
    """One a episode; a failed one has a cause and no value. Whom the journal knows a verdict of is not judged again."""
    verdicts, items = [judge(one) for one in played], [item_of(one) for one in played]
    judged = {at: RewardResult(item=items[at], **one.judged) for at, one in enumerate(played) if one.judged is not None}
    if scorer is not None:
        left = [at for at, it in enumerate(verdicts) if isinstance(it, Verdict) and it.reward is None]
        left = [at for at in left if at not in judged]
        found = ask_scorer(scorer, [items[at] for at in left], [played[at] for at in left], journal)
        judged |= dict(zip(left, found, strict=True))
    return [judged.get(at) or build_result(one, items[at], verdicts[at]) for at, one in enumerate(played)]


def build_completion(one: Played) -> Completion:
    """Its branches end to end; one alone behind the row's own prompt needs none."""
    paths = []
    for branch in conversation_of(one).branches():
        path = Path(array("i", branch[0].context))
        for number, said in enumerate(branch):
            if number:
                path.token_ids.extend(said.read)
                path.turns[-1] = replace(path.turns[-1], observation=said.text_read)
            path.add(PackedReply.of(said.reply))
            after = branch[number + 1] if number + 1 < len(branch) else None
            path.turns[-1] = replace(path.turns[-1], calls=tuple(_calls_of(said, after)))
        paths.append(path)
    text = paths[-1].turns[-1].reply if paths else ""
    return join_paths(paths, one.prompt.packed, text, is_truncated(one))


def _calls_of(said: Said, after: Said | None) -> Iterator[ToolCall]:
    """Calls of a turn with what its program said of them in the next, and what was wrong with them by their schemas."""
    schemas = {tool["function"]["name"]: drop_costly(tool["function"]["parameters"]) for tool in said.tools}
    ids = iter([call["id"] for call in said.message.get("tool_calls", ())])
    told = {message.get("tool_call_id"): text_of(message) for message in after.new} if after is not None else {}
    for call in said.reply.calls if said.tools else ():
        error, _, _ = check_call(call, schemas)
        # Those that could not be read were handed on as text, and have no name there.
        handed_on = next(ids, None) if call.error is None else None
        yield replace(call, error=error, result=told.get(handed_on, ""))


def drop_costly(schema: Any) -> Any:
    """Return a program's JSON schema without the keywords whose check can take exponential time.

    >>> drop_costly({"properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}}})
    {'properties': {'pattern': {'type': 'string'}}}
    """
    if isinstance(schema, list):
        return [drop_costly(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _COSTLY}
    return {key: _drop_in(key, value) for key, value in kept.items()}


def _drop_in(key: str, value: Any) -> Any:
    if key in ("const", "enum"):
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: drop_costly(one) for name, one in value.items()}
    return drop_costly(value)
