"""Episodes in free order: each goes on as soon as its own step is there, so engines sample while environments step.

    one thread:   replies of engines  -> journal -> their environments
                  steps that ended    -> journal -> the engines, or the episode is over
                  new batches         -> whatever the journal has of them, then the same

Every reply has a seed of its own, so its tokens are those of waves in float32, in whatever order replies come. What is
in the journal is not sampled again. Batches that are in flight together (`rollout.max_off_policy_steps`) share this
thread.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace

from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.answers import Answer
from slurm_rl.envs.environments import Environments
from slurm_rl.envs.worker import Call
from slurm_rl.errors import TrainingError
from slurm_rl.node.heartbeat import beat
from slurm_rl.node.stop import Timer
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.ended import gather_groups, score_episodes
from slurm_rl.rollout.episode import (
    Episode,
    Limits,
    note_answer,
    note_reply,
)
from slurm_rl.rollout.journal import BatchJournal, Journal
from slurm_rl.rollout.replies import ReplySampler
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.rollout.sampling import Sampler

_LISTEN_S = 0.5


@dataclass(eq=False)
class FreeBatch:
    """Episodes under way, of one batch."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec
    """Of single replies."""
    num_members: int
    journal: BatchJournal | None
    episodes: list[Episode] = field(default_factory=list)
    """In order of place, then member."""
    num_open: int = 0
    done: Future[None] = field(default_factory=Future)
    num_events: int = 0
    """Replies and steps so far."""
    lines: list[bytes] = field(default_factory=list)
    """Of the journal, to be written."""


class FreeEpisodes:
    """`Rollouts` of several turns in free order.

    Args:
        scorer: judges the last reply of an episode whose environment gave no reward; None where it must.
        journal: None: nothing is noted.
    """

    def __init__(
        self,
        sampler: Sampler,
        pool: Environments,
        renderer: TurnRenderer,
        limits: Limits,
        scorer: Scorer | None,
        journal: Journal | None = None,
    ) -> None:
        self.sampler, self.pool, self.renderer, self.limits, self.scorer = sampler, pool, renderer, limits, scorer
        self.journal = journal
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._replies = ReplySampler(sampler, self._inbox.put, self._take_replies, self._fail, self._refuse)
        self._under_way: dict[str, tuple[Episode, FreeBatch]] = {}
        self._batches: set[FreeBatch] = set()
        self._calls: list[Call] = []
        self._requests: list[ReplyRequest] = []
        self._has_begun = False

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> FreeBatch:
        journal = self.journal.open(spec, prompts, self.pool.facts) if self.journal is not None else None
        single = replace(spec, max_tokens=self.limits.turn_tokens, num_completions=1)
        batch = FreeBatch(prompts, single, spec.num_completions, journal)
        if not self._has_begun:
            self._has_begun = True
            threading.Thread(target=self._loop, name="episodes", daemon=True).start()
            threading.Thread(target=self._listen, name="environments", daemon=True).start()
        self._inbox.put(lambda: self._begin(batch))
        return batch

    def finish(self, pending: FreeBatch, timer: Timer, within_s: float | None = None) -> list[Group]:
        with timer.phase("rollout"):
            self._wait(pending, within_s)
        with timer.phase("reward"):
            results = score_episodes(pending.episodes, self.scorer, pending.journal)
        return gather_groups(pending.prompts, pending.episodes, results)

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return self.finish(self.start(prompts, spec), Timer())

    def _wait(self, batch: FreeBatch, within_s: float | None) -> None:
        cluster, seen = self.sampler.cluster, -1
        timeout_s = self.sampler.timeout_s if within_s is None else within_s
        deadline = time.monotonic() + timeout_s
        while not wait([batch.done], POLL_S).done:
            if within_s is None:
                cluster.stop.check()
            cluster.while_waiting()
            if batch.num_events != seen:
                seen = batch.num_events
                beat()
                if within_s is None:
                    deadline = time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"a batch of episodes must get on within {timeout_s:g} s",
                    seen=f"no reply and no step of the {batch.num_open} that are under way",
                    action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
                )
        batch.done.result()

    # ---- the thread of all episodes ------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            todo = self._inbox.get()
            self._replies.pace.gather()
            try:
                todo()
                while not self._inbox.empty():
                    self._inbox.get()()
                self._flush()
            except BaseException as error:  # whoever waits for a batch must hear of it
                self._fail(error)

    def _listen(self) -> None:
        """A thread of its own, since what environments and engines say comes by two ways."""
        try:
            while not self.pool.is_closed:
                if answers := self.pool.listen(_LISTEN_S):
                    self._inbox.put(functools.partial(self._take_answers, answers))
                    self._replies.pace.rest()
        except BaseException as error:
            self._inbox.put(functools.partial(self._fail, error))

    def _begin(self, batch: FreeBatch) -> None:
        known = batch.journal.histories if batch.journal is not None else {}
        self._batches.add(batch)
        for place, prompt in enumerate(batch.prompts):
            for member in range(batch.num_members):
                episode = Episode(place, member, prompt, batch.spec.seed, history=known.pop((place, member), None))
                self._play_history(episode)
                if self.pool.facts.resume == "restart" and not episode.ended:
                    episode = Episode(place, member, prompt, batch.spec.seed)
                batch.episodes.append(episode)
                batch.num_open += 1
                self._under_way[episode.name] = episode, batch
                self._go_on(episode, batch)

    def _play_history(self, episode: Episode) -> None:
        """Be where the journal ends."""
        for reply in list(episode.history.replies) if episode.history is not None else ():
            episode.add_reply(reply)
            answer = episode.recall()
            if answer is None:
                return  # in doubt: the environment is asked again, under the same name
            episode.add_answer(answer, self.renderer, self.limits)
            if episode.ended:
                return

    def _go_on(self, episode: Episode, batch: FreeBatch) -> None:
        if episode.ended:
            batch.num_open -= 1
            del self._under_way[episode.name]
            self._replies.forget(episode.name)
            if episode.truncated:
                self.pool.forget([episode.name])
        elif len(episode.digests) < len(episode.replies):
            self._calls.append(episode.next_call())
        else:
            read, images = episode.path.whole.tobytes(), episode.prompt.images
            self._requests.append(ReplyRequest(episode.name, read, episode.next_seed, batch.spec, images=images))

    def _take_replies(self, replies: Sequence[Replied]) -> None:
        for name, reply in replies:
            if name in self._under_way:
                episode, batch = self._under_way[name]
                episode.add_reply(reply)
                batch.lines.append(note_reply(episode))
                batch.num_events += 1
                self._go_on(episode, batch)

    def _refuse(self, refused: Sequence[Refused]) -> None:
        for name, why in refused:
            if name in self._under_way:
                episode, batch = self._under_way[name]
                episode.fail(Failure("exception", f"the engine refused its request: {why}"))
                batch.num_events += 1
                self._go_on(episode, batch)

    def _take_answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.episode in self._under_way:
                episode, batch = self._under_way[answer.episode]
                batch.lines.append(note_answer(episode, answer))
                batch.num_events += 1
                episode.add_answer(answer, self.renderer, self.limits)
                self._go_on(episode, batch)

    def _flush(self) -> None:
        """What is on disk may go out; in this order."""
        self._write()
        calls, self._calls = self._calls, []
        self.pool.submit(calls)
        requests, self._requests = self._requests, []
        self._replies.ask(requests)
        for batch in [batch for batch in self._batches if batch.num_open == 0]:
            self._batches.remove(batch)
            batch.done.set_result(None)

    def _write(self) -> None:
        for batch in self._batches:
            lines, batch.lines = batch.lines, []
            if batch.journal is not None:
                batch.journal.write(lines)

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):  # which has been told, or is the next to be
            self._write()
        batches, self._batches = self._batches, set()
        self._under_way.clear()
        self._calls.clear()
        self._requests.clear()
        for batch in batches:
            batch.done.set_exception(error)
