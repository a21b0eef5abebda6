"""Episodes of external agents: programs that talk to the policy through an OpenAI endpoint.

    row, key -> agent -> request -> an asynchronous engine -> reply -> agent ...

The seed of a reply depends on the run, the episode and its place in the dialogue, so other episodes and timing do not
change it. Each reply is logged before its agent gets it, and so is the end of an episode: after an interruption, active
agents restart and get the logged replies to their requests.
"""

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
from slurm_rl.rollout.agent_trajectory import AgentTrajectory, score_trajectories
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
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.generation_client import GenerationClient
from slurm_rl.rollout.replay import ReplayRecord
from slurm_rl.rollout.sampling import Rollouts, Sampler
from slurm_rl.rollout.scoring import gather_groups
from slurm_rl.rollout.turn_log import PROGRAM, BatchLog, TurnLog
from slurm_rl.rollout.turn_log_format import History


@dataclass(frozen=True)
class PendingAgents:
    """Prompts of a batch; the agents start in `finish`."""

    prompts: Sequence[EncodedPrompt]
    spec: SamplingSpec
    log: BatchLog | None


class AgentRollouts(Rollouts):
    """`Rollouts` of agents.

    Args:
        scorer: scores the last reply if the agent gave no reward; None if it must give one.
        at_once: agents that run concurrently.
        rows: episodes that one agent process plays concurrently; 0 starts a process per episode.
        log: None disables the turn log.
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
        log: TurnLog | None = None,
    ) -> None:
        self.sampler, self.scorer, self.log = sampler, scorer, log
        self.argv, self.timeout_s = argv, timeout_s
        self.facts = Facts(PROGRAM, find_version(argv))
        self.at_once = at_once * max(rows, 1)
        self.residents: Residents | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._client = GenerationClient(sampler, self._inbox.put, self._deliver, self._fail, self._reject)
        self._batch: PendingAgents | None = None
        """The active batch."""
        self._records: dict[str, ReplayRecord] = {}
        """Records of its episodes."""
        self._asks: dict[str, Ask] = {}
        """Requests in flight, by name."""
        self._numbers = itertools.count()
        self._playing = threading.Lock()
        """Batches run one after the other, whichever thread waits for them."""
        self._requests: list[GenerationRequest] = []
        self._error: BaseException | None = None
        self.endpoint = Endpoint(renderer, rule, bounds, lambda ask: self._inbox.put(lambda: self._ask(ask)))
        if rows:
            env = build_environment(os.environ, self.endpoint.url, "in each row", f"{os.getpid()}")
            self.residents = Residents(argv, env, rows)
            atexit.register(self.residents.close)

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingAgents:
        log = self.log.open(spec, prompts, self.facts) if self.log is not None else None
        return PendingAgents(prompts, spec, log)

    def finish(self, pending: PendingAgents, timer: Timer, within_s: float | None = None) -> list[Group]:
        with timer.phase("rollout"), self._playing:
            trajectories = self._play(pending, within_s)
        with timer.phase("reward"):
            results = score_trajectories(trajectories, self.scorer, pending.log)
        if pending.log is not None:
            pending.log.histories.clear()  # only another process needs them from here on
        return gather_groups(pending.prompts, trajectories, results)

    def _play(self, pending: PendingAgents, within_s: float | None) -> list[AgentTrajectory]:
        spec, self._batch = pending.spec, pending
        trajectories = self._restore(pending)
        cluster = self.sampler.cluster
        deadline = None if within_s is None else time.monotonic() + within_s
        with self._running(trajectories, spec) as jobs:
            # Each agent has its own deadline, too.
            while not all(job.done() for job in jobs):
                self._serve()
                beat()
                cluster.while_waiting()
                if deadline is None:
                    cluster.stop.check()
                elif time.monotonic() > deadline:
                    raise TrainingError(f"the programs must end within {within_s:g} s", seen="some that had not")
        for job in jobs:
            job.result()
        self._report_dropped()
        return trajectories

    def _restore(self, pending: PendingAgents) -> list[AgentTrajectory]:
        """Return the trajectories of a batch; finished ones come from the log."""
        spec, self._records = pending.spec, {}
        histories = pending.log.histories if pending.log is not None else {}
        trajectories = []
        for index, prompt in enumerate(pending.prompts):
            for member in range(spec.num_completions):
                record = ReplayRecord(index, member, histories.setdefault((index, member), History()))
                one = AgentTrajectory(index, member, prompt, f"{spec.seed}.{index}.{member}")
                if record.history.end is None:
                    self._records[one.name] = record
                else:
                    one.verdict, one.episode = record.rebuild(self.endpoint.renderer)
                    one.logged_reward = record.history.verdict
                trajectories.append(one)
        return trajectories

    def _report_dropped(self) -> None:
        dropped = [record.num_dropped for record in self._records.values() if record.num_dropped]
        if dropped and self.log is not None and self._batch is not None:
            batch = self._batch.spec.batch
            self.log.report("journal/program_changed", batch=batch, episodes=len(dropped), replies=sum(dropped))

    @contextlib.contextmanager
    def _running(self, trajectories: Sequence[AgentTrajectory], spec: SamplingSpec) -> Iterator[list[Future[None]]]:
        """Run the agents, `at_once` at a time; none is left at the end."""
        self.endpoint.ensure_up()
        stop = threading.Event()
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="agent") as threads:
            try:
                yield [threads.submit(self._run, one, spec, stop) for one in trajectories if one.verdict is None]
            finally:
                stop.set()
                threads.shutdown(cancel_futures=True)
                end_strays([one.name for one in trajectories], os.environ)
                with contextlib.suppress(OSError):  # raised before, or by the next write
                    self._drain_inbox()

    def _run(self, one: AgentTrajectory, spec: SamplingSpec, stop: threading.Event) -> None:
        key = self.endpoint.open(one.name, derive_seed(spec.seed, one.index, one.member))
        try:
            url, seed = self.endpoint.url, derive_seed(spec.seed, "environment", one.index)
            row = {"episode": one.name, "base_url": url, "api_key": key, **one.row(seed)}
            if self.residents is not None:
                one.verdict = self.residents.play(one.name, row, self.timeout_s, stop)
            else:
                env = build_environment(os.environ, url, key, one.name)
                one.verdict = run_program(self.argv, env, row, self.timeout_s, stop)
        except Exception as error:  # costs this episode only
            one.verdict = Failure("exception", f"the program could not be run: {describe_error(error)}")
        finally:
            one.episode = episode = self.endpoint.close(one.name)
            self._inbox.put(lambda: self._end(one, episode, stop))

    def _serve(self) -> None:
        """Forward requests of agents to the engines, and replies back."""
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=POLL_S)()
            self._drain_inbox()
        requests, self._requests = self._requests, []
        self._client.submit(requests)
        if self._error is not None:
            raise self._error

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _end(self, one: AgentTrajectory, episode: LiveEpisode, stop: threading.Event) -> None:
        self._client.forget(one.name)
        outcome = episode.failure or one.verdict
        if isinstance(outcome, Verdict) or (outcome is not None and self._is_own_failure(outcome, stop)):
            self._write([self._records[one.name].end(outcome, episode)])

    def _is_own_failure(self, failure: Failure, stop: threading.Event) -> bool:
        """Return whether the agent itself failed. One killed by a signal, or while the run stopped, runs again."""
        return failure.cause != "crash" and not stop.is_set() and not self.sampler.cluster.stop.is_set()

    def _write(self, lines: Sequence[bytes]) -> None:
        if self._batch is not None and self._batch.log is not None:
            self._batch.log.write(lines)

    def _ask(self, ask: Ask) -> None:
        assert self._batch is not None, "a batch is active"
        record = self._records.get(ask.episode)
        logged = record.find(ask.place) if record is not None else None
        if logged is not None:
            ask.done.set_result(logged)
            return
        spec = self._batch.spec
        # The first request of an episode goes to the engine with its prefix, concurrent ones to any engine.
        name = ask.episode if ask.episode not in self._asks else f"{ask.episode}/{next(self._numbers)}"
        self._asks[name] = ask
        single = replace(spec, num_completions=1, max_tokens=ask.max_tokens, stop=(*spec.stop, *ask.stop))
        self._requests.append(GenerationRequest(name, array("i", ask.context).tobytes(), ask.seed, single, ask.tools))

    def _deliver(self, replies: Sequence[Generated]) -> None:
        answered = [(self._asks.pop(name), name, reply, reply.unpack()) for name, reply in replies]
        records = [(self._records.get(ask.episode), ask, reply, completion) for ask, _, reply, completion in answered]
        self._write(
            [
                record.add(ask.place, reply, ask.answer(completion))
                for record, ask, reply, completion in records
                if record is not None and record.history.end is None
            ]
        )
        for ask, name, _, completion in answered:
            if name != ask.episode or not ask.is_wanted():
                self._client.forget(name)
            ask.done.set_result(completion)

    def _reject(self, rejected: Sequence[Rejected]) -> None:
        for name, reason in rejected:
            ask = self._asks.pop(name)
            self._client.forget(name)
            ask.done.set_exception(refuse_request(reason))

    def _fail(self, error: BaseException) -> None:
        self._error = error


def build_agents(
    config: RunConfig, sampler: Sampler, scorer: Scorer | None, model_path: str, log: TurnLog | None = None
) -> AgentRollouts:
    """Build the rollouts of `env.agent_command`."""
    from slurm_rl.models.load_model import load_tokenizer

    env, rollout = config.env, config.rollout
    assert env.agent_command is not None and env.turn_tokens is not None, "the config was checked"
    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    renderer = DialogueRenderer(tokenizer, open_template(tokenizer, config.data), env.tool_parser)
    return AgentRollouts(
        sampler,
        renderer,
        SamplingRule(rollout.temperature, rollout.top_p, env.turn_tokens, env.ignore_request_sampling),
        Bounds(env.max_turns, config.data.max_prompt_tokens + rollout.max_tokens),
        scorer,
        argv=find_argv(env.agent_command),
        at_once=env.agent_concurrency,
        rows=env.agent_rows_per_process,
        timeout_s=env.agent_timeout_s,
        log=log,
    )
