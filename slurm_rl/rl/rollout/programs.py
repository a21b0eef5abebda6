"""Episodes that programs of others play: each goes at its own pace, and the batch is done when all are.

    row, key -> program -> request -> queue -> all that are waiting, as one call of the engines -> reply -> program ...

A reply's seed follows from the run, the episode and its place in the dialogue, so what others do and when changes no
token of it. An interrupted step plays its episodes again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.endpoint.conversation import Conversation, DialogueRenderer
from slurm_rl.endpoint.episode import Ask, Bounds, LiveEpisode
from slurm_rl.endpoint.programs import Verdict, build_environment, end_strays, find_argv, run_program
from slurm_rl.endpoint.requests import SamplingRule
from slurm_rl.endpoint.residents import Residents
from slurm_rl.endpoint.server import Endpoint
from slurm_rl.errors import TrainingError
from slurm_rl.math.schedule import derive_seed
from slurm_rl.node.joined import POLL_S
from slurm_rl.rewards.protocol import RequestError
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.groups import Branch, Completion, Group, SamplingSpec, Turn
from slurm_rl.rl.rollout.sampling import Sampler
from slurm_rl.train.stop import Timer


@dataclass(frozen=True)
class PendingPrograms:
    """Prompts whose episodes have not begun: a program is started by whoever waits for it."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec


@dataclass
class Played:
    """An episode that a program plays."""

    place: int
    """Of its prompt in the batch."""
    member: int
    prompt: EncodedPrompt
    name: str
    verdict: Verdict | Failure | None = None
    episode: LiveEpisode | None = None
    """What was recorded, once it is over."""


class Programs:
    """`Rollouts` of programs.

    Args:
        scorer: judges the last reply of an episode whose program said no reward; None where it must.
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: DialogueRenderer,
        rule: SamplingRule,
        bounds: Bounds,
        scorer: Scorer | None,
        *,
        argv: Sequence[str],
        at_once: int,
        rows: int,
        timeout_s: float,
    ) -> None:
        self.sampler, self.scorer = sampler, scorer
        self.argv, self.timeout_s = argv, timeout_s
        self.at_once = at_once * max(rows, 1)
        self.residents: Residents | None = None
        self._asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        self.endpoint = Endpoint(renderer, rule, bounds, self._asks.put)
        if rows:
            env = build_environment(os.environ, self.endpoint.url, "in each row", f"{os.getpid()}")
            self.residents = Residents(argv, env, rows)
            atexit.register(self.residents.close)

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingPrograms:
        return PendingPrograms(prompts, spec)

    def finish(self, pending: PendingPrograms, timer: Timer, within_s: float | None = None) -> list[Group]:
        played = self._play(pending, timer, within_s)
        with timer.phase("reward"):
            results = self._score(played)
        size = pending.spec.num_completions
        return [
            Group(
                prompt,
                [build_completion(one) for one in played[place * size : (place + 1) * size]],
                results[place * size : (place + 1) * size],
            )
            for place, prompt in enumerate(pending.prompts)
        ]

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return self.finish(self.start(prompts, spec), Timer())

    def _play(self, pending: PendingPrograms, timer: Timer, within_s: float | None) -> list[Played]:
        spec = pending.spec
        played = [
            Played(place, member, prompt, f"{spec.seed}.{place}.{member}")
            for place, prompt in enumerate(pending.prompts)
            for member in range(spec.num_completions)
        ]
        deadline = None if within_s is None else time.monotonic() + within_s
        with self._running(played, spec) as jobs:
            while not all(job.done() for job in jobs):
                with timer.phase("environment"):
                    asks = self._take_asks()
                if asks:
                    with timer.phase("rollout"):
                        self._sample(asks, spec, within_s)
                elif deadline is None:
                    self.sampler.cluster.stop.check()
                elif time.monotonic() > deadline:
                    raise TrainingError(f"the programs must end within {within_s:g} s", seen="some that had not")
        for job in jobs:
            job.result()
        return played

    @contextlib.contextmanager
    def _running(self, played: Sequence[Played], spec: SamplingSpec) -> Iterator[list[Future[None]]]:
        """The programs, so many at once; none of them when it is over."""
        self.endpoint.ensure_up()
        stop = threading.Event()
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="program") as threads:
            try:
                yield [threads.submit(self._run, one, spec, stop) for one in played]
            finally:
                stop.set()
                threads.shutdown(cancel_futures=True)
                end_strays([one.name for one in played])

    def _run(self, one: Played, spec: SamplingSpec, stop: threading.Event) -> None:
        key = self.endpoint.open(one.name, derive_seed(spec.seed, one.place, one.member))
        try:
            url, seed = self.endpoint.url, derive_seed(spec.seed, "environment", one.place)
            row = {"episode": one.name, "base_url": url, "api_key": key, **row_of(one.prompt, seed)}
            if self.residents is not None:
                one.verdict = self.residents.play(one.name, row, self.timeout_s, stop)
            else:
                env = build_environment(os.environ, url, key, one.name)
                one.verdict = run_program(self.argv, env, row, self.timeout_s, stop)
        finally:
            one.episode = self.endpoint.close(one.name)

    def _take_asks(self) -> list[Ask]:
        """All that are waiting; after a while none."""
        asks: list[Ask] = []
        with contextlib.suppress(queue.Empty):
            asks.append(self._asks.get(timeout=POLL_S))
            while True:
                asks.append(self._asks.get_nowait())
        return asks

    def _sample(self, asks: Sequence[Ask], spec: SamplingSpec, within_s: float | None) -> None:
        """Have the engines answer, those of one kind in one call."""
        kinds: dict[tuple[int, tuple[str, ...]], list[Ask]] = {}
        for ask in asks:
            if ask.is_wanted():
                kinds.setdefault((ask.max_tokens, ask.stop), []).append(ask)
            else:
                ask.done.set_exception(RequestError("an episode that is over has no replies", status=410))
        for (max_tokens, stop), alike in kinds.items():
            own = replace(spec, num_completions=1, max_tokens=max_tokens, stop=(*spec.stop, *stop))
            prompts = [EncodedPrompt(index=0, token_ids=ask.context, text="", answer="") for ask in alike]
            pending = self.sampler.start(prompts, own, [ask.seed for ask in alike])
            for ask, group in zip(alike, self.sampler.finish(pending, within_s), strict=True):
                ask.done.set_result(group.completions[0])

    def _score(self, played: Sequence[Played]) -> list[RewardResult]:
        """One a episode; a failed one has a cause and no value."""
        verdicts = [judge(one) for one in played]
        items = [item_of(one) for one in played]
        asked = [place for place, it in enumerate(verdicts) if isinstance(it, Verdict) and it.reward is None]
        found = self.scorer.score([items[place] for place in asked]) if self.scorer and asked else []
        judged = dict(zip(asked, found, strict=False))
        return [
            judged.get(place) or build_result(played[place], item, verdicts[place]) for place, item in enumerate(items)
        ]


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


@dataclass
class _Growing:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)


def build_completion(one: Played) -> Completion:
    """Its branches end to end; one alone behind the row's own prompt needs none."""
    made = _Growing()
    branches = conversation_of(one).branches()
    for branch in branches:
        start = len(made.token_ids)
        for number, said in enumerate(branch):
            if number:
                made.token_ids += said.read
                made.turns[-1] = replace(made.turns[-1], observation=said.text_read)
            first = len(made.token_ids)
            made.token_ids += said.reply.token_ids
            made.logprobs += said.reply.logprobs
            made.turns.append(Turn(first, len(made.token_ids), said.reply.text))
        made.branches.append(Branch(branch[0].context, start, len(made.token_ids)))
    is_plain = [branch.context for branch in made.branches] == [one.prompt.token_ids]
    return Completion(
        made.token_ids,
        made.logprobs,
        branches[-1][-1].reply.text if branches else "",
        is_truncated(one),
        branches[0][0].reply.weight_version if branches else -1,
        turns=made.turns,
        branches=[] if is_plain else made.branches,
    )


def build_programs(config: RunConfig, sampler: Sampler, scorer: Scorer | None, model_path: str) -> Programs:
    """The programs of `env.program`."""
    from slurm_rl.engine.load_model import load_tokenizer

    env, rollout = config.env, config.rollout
    assert env.program is not None and env.turn_tokens is not None, "the config was checked"
    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    renderer = DialogueRenderer(tokenizer, open_template(tokenizer, config.data))
    return Programs(
        sampler,
        renderer,
        SamplingRule(rollout.temperature, rollout.top_p, env.turn_tokens, env.overrule_sampling),
        Bounds(env.max_turns, config.data.max_prompt_tokens + rollout.max_tokens),
        scorer,
        argv=find_argv(env.program),
        at_once=env.program_at_once,
        rows=env.program_rows,
        timeout_s=env.program_timeout_s,
    )
