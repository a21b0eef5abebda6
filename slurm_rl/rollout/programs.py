"""Episodes that programs of others play: each goes at its own pace, and the batch is done when all are.

    row, key -> program -> request -> an engine, which takes requests at any time -> reply -> program ...

A reply's seed follows from the run, the episode and its place in the dialogue, so what others do and when changes no
token of it. Each goes to the journal before its program hears of it, and so does the end of an episode: of an
interrupted step those under way begin anew, and hear again what is recorded of what they ask for.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.errors import TrainingError
from slurm_rl.node.heartbeat import beat
from slurm_rl.node.stop import Timer
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rewards.values import describe_error
from slurm_rl.rollout.endpoint.conversation import DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Ask, Bounds, LiveEpisode, refuse_request
from slurm_rl.rollout.endpoint.programs import (
    Verdict,
    build_environment,
    end_strays,
    find_argv,
    find_version,
    run_program,
)
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.residents import Residents
from slurm_rl.rollout.endpoint.server import Endpoint
from slurm_rl.rollout.journal import PROGRAM, BatchJournal, Journal
from slurm_rl.rollout.journal_lines import History
from slurm_rl.rollout.played import Played, build_completion, row_of, score_played
from slurm_rl.rollout.recorded import Record
from slurm_rl.rollout.replies import ReplySampler
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.rollout.sampling import Sampler


@dataclass(frozen=True)
class PendingPrograms:
    """Prompts whose episodes have not begun: a program is started by whoever waits for it."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec
    journal: BatchJournal | None


class Programs:
    """`Rollouts` of programs.

    Args:
        scorer: judges the last reply of an episode whose program said no reward; None where it must.
        journal: None: nothing is noted.
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
        journal: Journal | None = None,
    ) -> None:
        self.sampler, self.scorer, self.journal = sampler, scorer, journal
        self.argv, self.timeout_s = argv, timeout_s
        self.facts = Facts(PROGRAM, find_version(argv))
        self.at_once = at_once * max(rows, 1)
        self.residents: Residents | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._replies = ReplySampler(sampler, self._inbox.put, self._deliver, self._fail, self._refuse)
        self._batch: PendingPrograms | None = None
        """That is under way."""
        self._records: dict[str, Record] = {}
        """Of its episodes."""
        self._asked: dict[str, Ask] = {}
        self._numbers = itertools.count()
        self._playing = threading.Lock()
        """Batches go one after the other, whoever waits for them."""
        self._requests: list[ReplyRequest] = []
        self._error: BaseException | None = None
        self.endpoint = Endpoint(renderer, rule, bounds, lambda ask: self._inbox.put(lambda: self._ask(ask)))
        if rows:
            env = build_environment(os.environ, self.endpoint.url, "in each row", f"{os.getpid()}")
            self.residents = Residents(argv, env, rows)
            atexit.register(self.residents.close)

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingPrograms:
        journal = self.journal.open(spec, prompts, self.facts) if self.journal is not None else None
        return PendingPrograms(prompts, spec, journal)

    def finish(self, pending: PendingPrograms, timer: Timer, within_s: float | None = None) -> list[Group]:
        with timer.phase("rollout"), self._playing:
            played = self._play(pending, within_s)
        with timer.phase("reward"):
            results = score_played(played, self.scorer, pending.journal)
        if pending.journal is not None:
            pending.journal.histories.clear()  # from here on it is of use to another process alone
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
        spec, self._batch = pending.spec, pending
        played = self._recall(pending)
        cluster = self.sampler.cluster
        deadline = None if within_s is None else time.monotonic() + within_s
        with self._running(played, spec) as jobs:
            # Each program has a deadline of its own, and so has this.
            while not all(job.done() for job in jobs):
                self._answer_requests()
                beat()
                cluster.while_waiting()
                if deadline is None:
                    cluster.stop.check()
                elif time.monotonic() > deadline:
                    raise TrainingError(f"the programs must end within {within_s:g} s", seen="some that had not")
        for job in jobs:
            job.result()
        self._tell_dropped()
        return played

    def _recall(self, pending: PendingPrograms) -> list[Played]:
        """The episodes of a batch; those whose end is in the journal as they were."""
        spec, self._records = pending.spec, {}
        known = pending.journal.histories if pending.journal is not None else {}
        played = []
        for place, prompt in enumerate(pending.prompts):
            for member in range(spec.num_completions):
                record = Record(place, member, known.setdefault((place, member), History()))
                one = Played(place, member, prompt, f"{spec.seed}.{place}.{member}")
                if record.history.end is None:
                    self._records[one.name] = record
                else:
                    one.verdict, one.episode = record.rebuild(self.endpoint.renderer)
                    one.judged = record.history.verdict
                played.append(one)
        return played

    def _tell_dropped(self) -> None:
        dropped = [record.num_dropped for record in self._records.values() if record.num_dropped]
        if dropped and self.journal is not None and self._batch is not None:
            batch = self._batch.spec.batch
            self.journal.report("journal/program_changed", batch=batch, episodes=len(dropped), replies=sum(dropped))

    @contextlib.contextmanager
    def _running(self, played: Sequence[Played], spec: SamplingSpec) -> Iterator[list[Future[None]]]:
        """The programs, so many at once; none of them when it is over."""
        self.endpoint.ensure_up()
        stop = threading.Event()
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="program") as threads:
            try:
                yield [threads.submit(self._run, one, spec, stop) for one in played if one.verdict is None]
            finally:
                stop.set()
                threads.shutdown(cancel_futures=True)
                end_strays([one.name for one in played], os.environ)
                with contextlib.suppress(OSError):  # of a disk that has been told, or is the next to be
                    self._empty_inbox()

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
        except Exception as error:  # whatever it is, it is of this episode
            one.verdict = Failure("exception", f"the program could not be run: {describe_error(error)}")
        finally:
            one.episode = episode = self.endpoint.close(one.name)
            self._inbox.put(lambda: self._end(one, episode, stop))

    def _answer_requests(self) -> None:
        """Do what has come in: requests of programs go to the engines, replies of engines to programs."""
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=POLL_S)()
            self._empty_inbox()
        requests, self._requests = self._requests, []
        self._replies.ask(requests)
        if self._error is not None:
            raise self._error

    def _empty_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _end(self, one: Played, episode: LiveEpisode, stop: threading.Event) -> None:
        self._replies.forget(one.name)
        outcome = episode.failure or one.verdict
        if outcome is None or not (isinstance(outcome, Verdict) or self._is_its_own(outcome, stop)):
            return
        self._note([self._records[one.name].end(outcome, episode)])

    def _is_its_own(self, failure: Failure, stop: threading.Event) -> bool:
        """Whether a program failed by itself. One that a signal ended may have gone down with its machine, and one
        that failed while all were being ended with its run: those are played again."""
        return failure.cause != "crash" and not stop.is_set() and not self.sampler.cluster.stop.is_set()

    def _note(self, lines: Sequence[bytes]) -> None:
        if self._batch is not None and self._batch.journal is not None:
            self._batch.journal.write(lines)

    def _ask(self, ask: Ask) -> None:
        assert self._batch is not None, "a batch is under way"
        record = self._records.get(ask.episode)
        known = record.find(ask.place) if record is not None else None
        if known is not None:
            ask.done.set_result(known)
            return
        batch_spec = self._batch.spec
        # The first of an episode goes where its keys and values are; what it asks for beside, to whoever has room.
        name = ask.episode if ask.episode not in self._asked else f"{ask.episode}/{next(self._numbers)}"
        self._asked[name] = ask
        stop = (*batch_spec.stop, *ask.stop)
        spec = replace(batch_spec, num_completions=1, max_tokens=ask.max_tokens, stop=stop)
        self._requests.append(ReplyRequest(name, array("i", ask.context).tobytes(), ask.seed, spec, ask.tools))

    def _deliver(self, replies: Sequence[Replied]) -> None:
        found = [(self._asked.pop(name), name, reply, reply.unpack()) for name, reply in replies]
        records = [(self._records.get(ask.episode), ask, reply, completion) for ask, _, reply, completion in found]
        self._note(
            [
                record.add(ask.place, reply, ask.answer(completion))
                for record, ask, reply, completion in records
                if record is not None and record.history.end is None
            ]
        )
        for ask, name, _, completion in found:
            if name != ask.episode or not ask.is_wanted():
                self._replies.forget(name)
            ask.done.set_result(completion)

    def _refuse(self, refused: Sequence[Refused]) -> None:
        for name, why in refused:
            ask = self._asked.pop(name)
            self._replies.forget(name)
            ask.done.set_exception(refuse_request(why))

    def _fail(self, error: BaseException) -> None:
        self._error = error


def build_programs(
    config: RunConfig, sampler: Sampler, scorer: Scorer | None, model_path: str, journal: Journal | None = None
) -> Programs:
    """The programs of `env.agent_command`."""
    from slurm_rl.models.load_model import load_tokenizer

    env, rollout = config.env, config.rollout
    assert env.agent_command is not None and env.turn_tokens is not None, "the config was checked"
    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    renderer = DialogueRenderer(tokenizer, open_template(tokenizer, config.data), env.tool_parser)
    return Programs(
        sampler,
        renderer,
        SamplingRule(rollout.temperature, rollout.top_p, env.turn_tokens, env.ignore_request_sampling),
        Bounds(env.max_turns, config.data.max_prompt_tokens + rollout.max_tokens),
        scorer,
        argv=find_argv(env.agent_command),
        at_once=env.agent_concurrency,
        rows=env.agent_rows_per_process,
        timeout_s=env.agent_timeout_s,
        journal=journal,
    )
