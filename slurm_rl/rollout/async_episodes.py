"""Multi-turn episodes that run asynchronously: each continues as soon as its own step is done.

    one thread:   responses of engines   -> turn log -> environments
                  steps of environments  -> turn log -> engines, or the episode ends
                  new batches            -> replay the turn log, then the same

Each reply has its own seed, so in float32 its tokens are those of lockstep order, in whatever order replies arrive.
Logged turns are not sampled again. All batches in flight (`rollout.max_off_policy_steps`) share the thread.
"""

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
from slurm_rl.envs.environments import Environments
from slurm_rl.envs.steps import Answer
from slurm_rl.envs.worker import Call
from slurm_rl.errors import TrainingError
from slurm_rl.node.heartbeat import beat
from slurm_rl.node.stop import Timer
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.episode import Episode, Limits, log_answer, log_reply
from slurm_rl.rollout.generation_client import GenerationClient
from slurm_rl.rollout.sampling import Rollouts, Sampler
from slurm_rl.rollout.scoring import gather_groups, score_episodes
from slurm_rl.rollout.turn_log import BatchLog, TurnLog

_LISTEN_S = 0.5


@dataclass(eq=False)
class EpisodeBatch:
    """Active episodes of one batch."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec
    """Sampling parameters of one reply."""
    num_members: int
    log: BatchLog | None
    episodes: list[Episode] = field(default_factory=list)
    """Sorted by prompt index, then member."""
    num_active: int = 0
    done: Future[None] = field(default_factory=Future)
    num_events: int = 0
    """Replies and steps so far."""
    lines: list[bytes] = field(default_factory=list)
    """Log lines to be written."""


class AsyncEpisodes(Rollouts):
    """`Rollouts` of several turns that run asynchronously.

    Args:
        scorer: scores the last reply if the environment gave no reward; None if it must give one.
        log: None disables the turn log.
    """

    def __init__(
        self,
        sampler: Sampler,
        pool: Environments,
        renderer: TurnRenderer,
        limits: Limits,
        scorer: Scorer | None,
        log: TurnLog | None = None,
    ) -> None:
        self.sampler, self.pool, self.renderer, self.limits, self.scorer = sampler, pool, renderer, limits, scorer
        self.log = log
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._client = GenerationClient(sampler, self._inbox.put, self._take_replies, self._fail, self._take_rejected)
        self._active: dict[str, tuple[Episode, EpisodeBatch]] = {}
        self._batches: set[EpisodeBatch] = set()
        self._calls: list[Call] = []
        self._requests: list[GenerationRequest] = []
        self._is_running = False

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> EpisodeBatch:
        log = self.log.open(spec, prompts, self.pool.facts) if self.log is not None else None
        single = replace(spec, max_tokens=self.limits.turn_tokens, num_completions=1)
        batch = EpisodeBatch(prompts, single, spec.num_completions, log)
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._loop, name="episodes", daemon=True).start()
            threading.Thread(target=self._listen, name="environments", daemon=True).start()
        self._inbox.put(lambda: self._begin(batch))
        return batch

    def finish(self, pending: EpisodeBatch, timer: Timer, within_s: float | None = None) -> list[Group]:
        with timer.phase("rollout"):
            self._wait(pending, within_s)
        with timer.phase("reward"):
            results = score_episodes(pending.episodes, self.scorer, pending.log)
        return gather_groups(pending.prompts, pending.episodes, results)

    def _wait(self, batch: EpisodeBatch, within_s: float | None) -> None:
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
                    f"a batch of episodes must make progress within {timeout_s:g} s",
                    seen=f"no reply and no step of the {batch.num_active} active episodes",
                    action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
                )
        batch.done.result()

    # ---- the thread of all episodes ------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            task = self._inbox.get()
            time.sleep(self._client.delay_s)
            try:
                task()
                while not self._inbox.empty():
                    self._inbox.get()()
                self._flush()
            except BaseException as error:  # raised again in every thread that waits for a batch
                self._fail(error)

    def _listen(self) -> None:
        """Forward answers of environments to the thread of all episodes."""
        try:
            while not self.pool.is_closed:
                if answers := self.pool.listen(_LISTEN_S):
                    self._inbox.put(functools.partial(self._take_answers, answers))
        except BaseException as error:
            self._inbox.put(functools.partial(self._fail, error))

    def _begin(self, batch: EpisodeBatch) -> None:
        histories = batch.log.histories if batch.log is not None else {}
        self._batches.add(batch)
        for index, prompt in enumerate(batch.prompts):
            for member in range(batch.num_members):
                history = histories.pop((index, member), None)
                episode = Episode(index, member, prompt, batch.spec.seed, history=history)
                self._replay(episode)
                if self.pool.facts.resume == "restart" and not episode.ended:
                    episode = Episode(index, member, prompt, batch.spec.seed)
                batch.episodes.append(episode)
                batch.num_active += 1
                self._active[episode.name] = episode, batch
                self._advance(episode, batch)

    def _replay(self, episode: Episode) -> None:
        """Replay the logged turns."""
        for reply in list(episode.history.replies) if episode.history is not None else ():
            episode.add_reply(reply)
            answer = episode.recall()
            if answer is None:
                return  # the environment may have seen the reply: call it again with the same id
            episode.add_answer(answer, self.renderer, self.limits)
            if episode.ended:
                return

    def _advance(self, episode: Episode, batch: EpisodeBatch) -> None:
        if episode.ended:
            batch.num_active -= 1
            del self._active[episode.name]
            self._client.forget(episode.name)
            if episode.truncated:
                self.pool.forget([episode.name])
        elif len(episode.digests) < len(episode.replies):
            self._calls.append(episode.next_call())
        else:
            tokens = episode.branch.prompt.tobytes()
            self._requests.append(GenerationRequest(episode.name, tokens, episode.next_seed, batch.spec))

    def _take_replies(self, replies: Sequence[Generated]) -> None:
        for name, reply in replies:
            if name in self._active:
                episode, batch = self._active[name]
                episode.add_reply(reply)
                batch.lines.append(log_reply(episode))
                batch.num_events += 1
                self._advance(episode, batch)

    def _take_rejected(self, rejected: Sequence[Rejected]) -> None:
        for name, reason in rejected:
            if name in self._active:
                episode, batch = self._active[name]
                episode.fail(Failure("exception", f"the engine refused its request: {reason}"))
                batch.num_events += 1
                self._advance(episode, batch)

    def _take_answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.episode in self._active:
                episode, batch = self._active[answer.episode]
                batch.lines.append(log_answer(episode, answer))
                batch.num_events += 1
                episode.add_answer(answer, self.renderer, self.limits)
                self._advance(episode, batch)

    def _flush(self) -> None:
        """Write the log first, then send calls and requests."""
        self._write_log()
        calls, self._calls = self._calls, []
        self.pool.submit(calls)
        requests, self._requests = self._requests, []
        self._client.submit(requests)
        for batch in [batch for batch in self._batches if batch.num_active == 0]:
            self._batches.remove(batch)
            batch.done.set_result(None)

    def _write_log(self) -> None:
        for batch in self._batches:
            lines, batch.lines = batch.lines, []
            if batch.log is not None:
                batch.log.write(lines)

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):  # raised before, or by the next write
            self._write_log()
        batches, self._batches = self._batches, set()
        self._active.clear()
        self._calls.clear()
        self._requests.clear()
        for batch in batches:
            batch.done.set_exception(error)
