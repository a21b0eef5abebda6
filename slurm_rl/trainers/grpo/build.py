"""Start the parts of a run where the plan places them: engines, policy, reference, critic, weight transport."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source, episode_order, set_key
from slurm_rl.data.groups import Prompts
from slurm_rl.rollout.engine_supervisor import EngineSupervisor
from slurm_rl.rollout.sampling import Rollouts, Sampler, SingleTurn
from slurm_rl.rollout.weights.sync import Direct, ObjectStore, WeightTransport
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.train_workers import WorkerGroup, WorkerRank

if TYPE_CHECKING:
    from slurm_rl.plan.job import ActorPlan
    from slurm_rl.rewards.scorer import Scorer
    from slurm_rl.rollout.turn_log import TurnLog
    from slurm_rl.trainers.grpo.eval_sets import EvalSet
    from slurm_rl.trainers.grpo.judges import Judge
    from slurm_rl.workers.critic import Critic

_ASYNC_CALLS = 1000
"""Concurrent calls of an asynchronous engine, which are coroutines; Ray's own default."""


def start_engines(cluster: Cluster, config: RunConfig, model_path: str, prompts: Prompts) -> list[Actor]:
    """Start the rollout engines without waiting; they load in parallel with the policy."""
    count = len(_actors(cluster, "rollout"))
    return [start_engine(cluster, config, model_path, prompts, index) for index in range(count)]


def start_engine(
    cluster: Cluster, config: RunConfig, model_path: str, prompts: Prompts, index: int, generation: int = 0
) -> Actor:
    """Start one engine without waiting. `generation` counts its restarts."""

    from slurm_rl.rollout.vllm.async_engine import AsyncVLLMEngine
    from slurm_rl.rollout.vllm.engine import VLLMEngine

    max_model_len = config.max_sequence_tokens
    any_time = config.has_async_engines
    chosen = {"weight_transfer": cluster.plan.weight_transfer, "inflight_weight_updates": any_time}
    rollout = config.rollout.model_copy(update=chosen)
    actor = _actors(cluster, "rollout")[index]
    return cluster.place(
        actor,
        AsyncVLLMEngine if any_time else VLLMEngine,
        *(model_path, config.model, rollout, max_model_len, len(actor.gpus), prompts.max_images, prompts.tools),
        not config.eval.only,  # awaits_weights: the engines of an evaluation get no weights
        max_concurrency=_ASYNC_CALLS if any_time else 1,
        generation=generation,
    )


def start_sampling(
    run: RunDir, attempt: AttemptDir, config: RunConfig, cluster: Cluster, model_path: str, prompts: Prompts
) -> tuple[list[Actor], EngineSupervisor, Sampler]:
    """Start the rollout engines without waiting, their supervisor and the sampler."""
    engines = start_engines(cluster, config, model_path, prompts)
    supervisor = EngineSupervisor(
        cluster,
        engines,
        functools.partial(start_engine, cluster, config, model_path, prompts),
        run,
        attempt,
        start_timeout_s=config.rollout.start_timeout_s,
        # vLLM needs free GPU memory at its start.
        can_replace=not config.rollout.colocate,
    )
    return engines, supervisor, build_sampler(cluster, engines, config, supervisor)


def wait_for_engines(cluster: Cluster, engines: Sequence[Actor], config: RunConfig, run: RunDir) -> None:
    """Wait until the rollout engines are ready; see `wait_until_ready`."""
    wait_until_ready(cluster, engines, config.rollout.start_timeout_s, "rollout engines", run)
    append_event(run, "engine/ready", num_engines=len(engines))


def build_sampler(
    cluster: Cluster, engines: Sequence[Actor], config: RunConfig, supervisor: EngineSupervisor | None = None
) -> Sampler:
    """Return a sampler with fixed shares, or with dynamic load balancing for asynchronous engines."""
    rollout, timeout_s = config.rollout, config.trainer.step_timeout_s
    if not rollout.inflight_weight_updates:
        return Sampler(cluster, engines, timeout_s, supervisor)
    from slurm_rl.rollout.load_balancer import AsyncSampler

    return AsyncSampler(
        cluster,
        engines,
        timeout_s,
        supervisor,
        max_num_seqs=rollout.max_num_seqs,
        staleness=rollout.max_off_policy_steps,
    )


def build_rollouts(
    config: RunConfig,
    sampler: Sampler,
    judges: Mapping[str, Judge],
    critic: Scorer | None,
    model_path: str,
    journal: TurnLog | None = None,
) -> Rollouts:
    """Return single turns, episodes with environments or agents, or a mixture of these by source.

    Args:
        judges: reward sources by data source.
        critic: scores sources without a scorer.
    """

    from slurm_rl.rollout.multi_source import MultiSource, Source

    found = {
        name: Source(_build_part(one, sampler, judges[name], critic, model_path, journal), one.rollout)
        for name, one in each_source(config).items()
    }
    if list(found) == [""]:
        return found[""].rollouts
    return MultiSource(dict(sorted(found.items(), key=lambda item: judges[item[0]].environments is None)))


def build_sets(
    config: RunConfig,
    prompts: Prompts,
    sampler: Sampler,
    judges: Mapping[str, Judge],
    critic: Scorer | None,
    model_path: str,
    journal: TurnLog | None,
) -> list[EvalSet]:
    """Return the evaluation sets of a run."""
    from slurm_rl.trainers.grpo.eval_sets import EvalSet

    sets = []
    for name, one in each_set(config).items():
        rollouts = _build_part(one, sampler, judges[set_key(name)], critic, model_path, journal)
        sets.append(EvalSet(name, prompts.sets[name], rollouts, one, config.eval.sets[name].num_samples))
    return sets


def _build_part(
    config: RunConfig,
    sampler: Sampler,
    judge: Judge,
    critic: Scorer | None,
    model_path: str,
    journal: TurnLog | None,
) -> Rollouts:
    from slurm_rl.data.chat import open_template
    from slurm_rl.data.turns import TurnRenderer
    from slurm_rl.rollout.agents import build_agents
    from slurm_rl.rollout.async_episodes import AsyncEpisodes
    from slurm_rl.rollout.episode import Limits
    from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes

    scorer = judge.scorer or critic
    if config.env.agent_command is not None:
        return build_agents(config, sampler, scorer, model_path, journal)
    if judge.environments is None:
        assert scorer is not None, "the config was checked: reward.model.device=critic has a critic"
        gathered = config.reward.model.path is not None and not config.rollout.inflight_weight_updates
        return SingleTurn(sampler, scorer, gathered=gathered)
    from slurm_rl.models.load_model import load_tokenizer

    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    template = open_template(tokenizer, config.data, judge.environments.schemas)
    renderer = TurnRenderer(tokenizer, template, rerenders=config.env.context == "rerendered")
    in_order = AsyncEpisodes if config.env.schedule == "async" else LockstepEpisodes
    return in_order(
        sampler,
        judge.environments,
        renderer,
        Limits.of(config.env, config.rollout.max_tokens, config.data.max_prompt_tokens),
        scorer,
        journal,
    )


def open_journal(run: RunDir, config: RunConfig, judges: Mapping[str, Judge]) -> TurnLog | None:
    """Return the turn log of episodes; None if there are none."""

    from slurm_rl.envs.facts import Facts
    from slurm_rl.rollout.turn_log import PROGRAM, TurnLog

    facts = [judge.environments.facts for judge in judges.values() if judge.environments is not None]
    parts = (*each_source(config).values(), *each_set(config).values())
    facts += [Facts(PROGRAM, "") for one in parts if one.env.agent_command is not None]
    if not facts:
        return None
    return TurnLog(
        run.journal,
        facts[0],
        keeps_all=episode_order(config) == "lockstep",
        staleness=config.rollout.max_off_policy_steps,
        report=functools.partial(append_event, run),
        require_ours=run.require_ours,
    )


def build_transport(
    cluster: Cluster, config: RunConfig, policy: WorkerGroup, engines: Sequence[Actor]
) -> WeightTransport:
    """Return the weight transport of the plan."""
    if cluster.plan.weight_transfer in ("ray", "adapters"):
        return ObjectStore(policy.workers, engines)
    sizes = [max(1, len(actor.gpus)) for actor in _actors(cluster, "rollout")]
    in_order = not config.has_async_engines
    return Direct(policy, engines, sizes, cluster.plan.weight_transfer, in_order=in_order)


def start_policy(cluster: Cluster, config: RunConfig, model_path: str) -> WorkerGroup:
    """Start the policy workers without waiting."""

    from slurm_rl.workers.train_workers import PolicyWorker

    places = choose_places(cluster, "policy")
    workers = [cluster.place(actor, PolicyWorker, config, model_path, place) for actor, place in places]
    return _group(cluster, config, "policy", workers)


def start_reference(cluster: Cluster, config: RunConfig, policy: WorkerGroup) -> WorkerGroup:
    """Start dedicated reference workers; without them, return a group of the policy's workers."""

    from slurm_rl.workers.train_workers import ReferenceWorker

    actors = _actors(cluster, "reference")
    apart = [cluster.place(actor, ReferenceWorker, config, actor.num_threads) for actor in actors]
    return _group(cluster, config, "reference", apart or policy.workers)


def start_critic(cluster: Cluster, config: RunConfig) -> Critic | None:
    """Start the critic's workers, which load after the warm-up; None if the algorithm has no critic."""

    from slurm_rl.workers.critic import Critic, CriticWorker

    if not config.algorithm.needs_values:
        return None
    workers = [cluster.place(actor, CriticWorker, config, place) for actor, place in choose_places(cluster, "critic")]
    return Critic(_group(cluster, config, "critic", workers))


def _group(cluster: Cluster, config: RunConfig, name: str, workers: Sequence[Actor]) -> WorkerGroup:
    prefix_sharing = config.policy.prefix_sharing and name != "critic"
    micro_batch_tokens, timeout_s = cluster.plan.layout.micro_batch_tokens, config.trainer.step_timeout_s
    # A reference on GPUs of its own is a whole model on each.
    context = 1 if name == "reference" and config.reference.num_workers else config.policy.context
    return WorkerGroup(cluster, workers, micro_batch_tokens, timeout_s, name, prefix_sharing, context)


def _actors(cluster: Cluster, role: str) -> list[ActorPlan]:
    return [actor for actor in cluster.plan.actors if actor.role == role]


def choose_places(cluster: Cluster, role: str) -> list[tuple[ActorPlan, WorkerRank]]:
    """Return the ranks of a role with their rendezvous."""
    actors = _actors(cluster, role)
    address, port = cluster.nodes.rendezvous(role, actors[0].node)
    return [(actor, WorkerRank(actor.index, len(actors), address, port, actor.num_threads)) for actor in actors]


def wait_until_ready(cluster: Cluster, actors: Sequence[Actor], timeout_s: float, workers: str, run: RunDir) -> None:
    """Wait until all actors are ready, and log their number as events.

    Args:
        workers: name of the actors, such as "rollout engines".

    Raises:
        TrainingError: an actor died or did not answer before the deadline; the message names it.
    """

    def report(count: int) -> None:
        append_event(run, "workers/loading", workers=workers, ready=count, of=len(actors))
        print(f"loading weights, {count} of {len(actors)} {workers} ready", flush=True)

    report(0)
    calls = [(actor, actor.handle.ready.remote()) for actor in actors]
    cluster.gather(calls, timeout_s=timeout_s, what=f"starting the {workers}", on_ready=report)
