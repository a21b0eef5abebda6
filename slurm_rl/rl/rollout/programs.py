"""Episodes that programs of others play: each goes at its own pace, and the batch is done when all are.

    row, key -> program -> request -> an engine, which takes requests at any time -> reply -> program ...

A reply's seed follows from the run, the episode and its place in the dialogue, so what others do and when changes no
token of it. An interrupted step plays its episodes again.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from slurm_rl.beats.pulse import tick
from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.endpoint.conversation import DialogueRenderer
from slurm_rl.endpoint.episode import Ask, Bounds, refuse_tools
from slurm_rl.endpoint.programs import Verdict, build_environment, end_strays, find_argv, run_program
from slurm_rl.endpoint.requests import SamplingRule
from slurm_rl.endpoint.residents import Residents
from slurm_rl.endpoint.server import Endpoint
from slurm_rl.errors import TrainingError
from slurm_rl.math.schedule import derive_seed
from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.node.joined import POLL_S
from slurm_rl.rewards.results import RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.groups import Group, SamplingSpec
from slurm_rl.rl.rollout.played import Played, build_completion, build_result, item_of, judge, row_of
from slurm_rl.rl.rollout.replies import Refused, Replied, ReplyRequest, ReplySampler
from slurm_rl.rl.rollout.sampling import Sampler
from slurm_rl.train.stop import Timer


@dataclass(frozen=True)
class PendingPrograms:
    """Prompts whose episodes have not begun: a program is started by whoever waits for it."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec


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
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._replies = ReplySampler(sampler, self._inbox.put, self._deliver, self._fail, self._refuse)
        self._spec: SamplingSpec | None = None
        """Of the batch under way."""
        self._asked: dict[str, Ask] = {}
        self._numbers = itertools.count()
        self._requests: list[ReplyRequest] = []
        self._error: BaseException | None = None
        self.endpoint = Endpoint(renderer, rule, bounds, lambda ask: self._inbox.put(lambda: self._ask(ask)))
        if rows:
            env = build_environment(os.environ, self.endpoint.url, "in each row", f"{os.getpid()}")
            self.residents = Residents(argv, env, rows)
            atexit.register(self.residents.close)

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingPrograms:
        return PendingPrograms(prompts, spec)

    def finish(self, pending: PendingPrograms, timer: Timer, within_s: float | None = None) -> list[Group]:
        with timer.phase("rollout"):
            played = self._play(pending, within_s)
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

    def _play(self, pending: PendingPrograms, within_s: float | None) -> list[Played]:
        spec = self._spec = pending.spec
        played = [
            Played(place, member, prompt, f"{spec.seed}.{place}.{member}")
            for place, prompt in enumerate(pending.prompts)
            for member in range(spec.num_completions)
        ]
        cluster = self.sampler.cluster
        deadline = None if within_s is None else time.monotonic() + within_s
        with self._running(played, spec) as jobs:
            # Each program has a deadline of its own, and so has this.
            while not all(job.done() for job in jobs):
                self._answer_requests()
                tick()
                cluster.while_waiting()
                if deadline is None:
                    cluster.stop.check()
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
            self._inbox.put(lambda: self._replies.forget(one.name))

    def _answer_requests(self) -> None:
        """Do what has come in: requests of programs go to the engines, replies of engines to programs."""
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=POLL_S)()
            while not self._inbox.empty():
                self._inbox.get()()
        requests, self._requests = self._requests, []
        self._replies.ask(requests)
        if self._error is not None:
            raise self._error

    def _ask(self, ask: Ask) -> None:
        assert self._spec is not None, "a batch is under way"
        # The first of an episode goes where its keys and values are; what it asks for beside, to whoever has room.
        name = ask.episode if ask.episode not in self._asked else f"{ask.episode}/{next(self._numbers)}"
        self._asked[name] = ask
        stop = (*self._spec.stop, *ask.stop)
        spec = replace(self._spec, num_completions=1, max_tokens=ask.max_tokens, stop=stop)
        self._requests.append(ReplyRequest(name, TokenPrompt(token_ids=ask.context), ask.seed, spec, ask.tools))

    def _deliver(self, replies: Sequence[Replied]) -> None:
        for name, completion in replies:
            ask = self._asked.pop(name)
            if name != ask.episode or not ask.is_wanted():
                self._replies.forget(name)
            ask.done.set_result(completion)

    def _refuse(self, refused: Sequence[Refused]) -> None:
        for name, why in refused:
            ask = self._asked.pop(name)
            self._replies.forget(name)
            ask.done.set_exception(refuse_tools(why))

    def _fail(self, error: BaseException) -> None:
        self._error = error

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


def build_programs(config: RunConfig, sampler: Sampler, scorer: Scorer | None, model_path: str) -> Programs:
    """The programs of `env.program`."""
    from slurm_rl.engine.load_model import load_tokenizer

    env, rollout = config.env, config.rollout
    assert env.program is not None and env.turn_tokens is not None, "the config was checked"
    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    renderer = DialogueRenderer(tokenizer, open_template(tokenizer, config.data), env.tool_parser)
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
