"""One attempt of the trainer: everything is built here, handed to the loop, and closed again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import yaml

from slurm_rl.config.engine_args import check_engine_args
from slurm_rl.config.load import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.identity import check_same_rows, prompt_content
from slurm_rl.data.load import load_prompts
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.split import RowCounts, count_rows
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.engine.lora import check_targets
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.topology import ActorPlan
from slurm_rl.report.metrics import MetricsLogger
from slurm_rl.rewards.scorer import Scorer, open_scorer
from slurm_rl.rl.groups import Prompts
from slurm_rl.rl.loop.run_state import RunSaver, RunState
from slurm_rl.rl.loop.trainer import GRPOTrainer
from slurm_rl.rl.rollout.dispatch import max_calls
from slurm_rl.rl.rollout.sampling import ContinuousSampler, Sampler
from slurm_rl.rl.rollout.vllm.engine import RolloutEngine
from slurm_rl.rl.weights.sync import WeightSync, choose_tolerance
from slurm_rl.rl.workers.cluster import Actor, Cluster
from slurm_rl.rl.workers.critic import CriticGroup, CriticWorker
from slurm_rl.rl.workers.policy_group import PolicyGroup
from slurm_rl.rl.workers.policy_worker import PolicyWorker, WorkerPlace
from slurm_rl.rl.workers.reference_worker import ReferenceWorker
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.train.model_folder import load_context_length, load_num_layers, prepare_model
from slurm_rl.train.row_events import tell_rows
from slurm_rl.train.stop import StopFlag

_PROBE_TOKENS = 64


def run_training(run: RunDir, attempt: AttemptDir) -> None:
    """Run the loop to its end, or to the stop signal.

    Raises:
        StopRequested: a signal asked for it; all is saved.
        SlurmRLError: bad input, or a failure with its cause.
    """
    stop = StopFlag()
    stop.install()
    config = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
    plan = JobPlan.from_json(read_json(run.plan))
    check_engine_args(config.rollout.engine_args)
    model_path = prepare_model(run, config)
    check_targets(model_path, config.model)
    prompts, counts = prepare_prompts(config, model_path)
    contents = map(prompt_content, [*prompts.train, *prompts.held_out])
    check_same_rows(run, len(prompts.train), len(prompts.held_out), contents)
    append_event(run, "data/loaded", **asdict(counts))
    stop.check()
    cluster = Cluster(plan, stop)
    cluster.connect()
    append_event(run, "ray/cluster_ready", attempt=attempt.number, nodes=plan.num_nodes)
    metrics = MetricsLogger(run, config.logging.wandb, config.name, config.model_dump(mode="json"))
    try:
        with _open_rewards(config, run, attempt, cluster.nodes.host()) as rewards:
            state = _train(run, config, cluster, model_path, prompts, rewards, metrics)
    finally:
        metrics.close()
    append_event(run, "trainer/finished", step=state.step)


def _open_rewards(
    config: RunConfig, run: RunDir, attempt: AttemptDir, host: str
) -> AbstractContextManager[Scorer | None]:
    """What scores; None where the critic's processes do."""
    if config.reward.model.beside_critic:
        return nullcontext(None)
    return open_scorer(config.reward, run.secrets, attempt.logs, host, functools.partial(append_event, run))


def require_critic(critic: CriticGroup | None) -> CriticGroup:
    assert critic is not None, "the config was checked: reward.model.device=critic has a critic"
    return critic


def _train(
    run: RunDir,
    config: RunConfig,
    cluster: Cluster,
    model_path: str,
    prompts: Prompts,
    rewards: Scorer | None,
    metrics: MetricsLogger,
) -> RunState:
    timeout_s = config.trainer.step_timeout_s
    engines = start_engines(cluster, config, model_path, prompts.max_images)
    policy = PolicyGroup(
        cluster,
        start_policy(cluster, config, model_path),
        model_path,
        cluster.plan.layout.micro_batch_tokens,
        timeout_s,
        references=start_references(cluster, config),
        share_prompts=config.policy.share_prompts,
    )
    critic = start_critic(cluster, config) if config.algorithm.needs_values else None
    started = {id(actor): actor for actor in (*policy.workers, *policy.references, *(critic.workers if critic else ()))}
    _wait_until_ready(cluster, [*started.values()], config.rollout.start_timeout_s, "starting the policy")
    tell_rows(run, "policy", policy.check_rows())
    append_event(run, "trainer/started", warmup_steps=config.warmup.num_steps, num_steps=config.trainer.num_steps)
    trainer = GRPOTrainer(
        config,
        run,
        prompts,
        policy,
        build_sampler(cluster, engines, config),
        WeightSync(
            cluster,
            policy.workers,
            engines,
            # The engine samples one token after the probe.
            probe=choose_probe(prompts, config.data.max_prompt_tokens + config.rollout.max_tokens - 1),
            tolerance=choose_tolerance(
                config.rollout.probe_tolerance,
                config.model.dtype,
                load_num_layers(model_path, config.model.trust_remote_code),
            ),
            timeout_s=timeout_s,
        ),
        rewards or require_critic(critic),
        RunSaver(run, config, policy, critic, is_stopped=cluster.stop.is_set),
        metrics,
        critic,
    )

    def wait_for_engines() -> None:
        _wait_until_ready(cluster, engines, config.rollout.start_timeout_s, "starting the rollout engines")
        append_event(run, "engine/ready", num_engines=len(engines))
        if config.rollout.transfers_directly:
            trainer.sync.open([max(1, len(a.gpus)) for a in cluster.plan.actors if a.role == "rollout"])

    state = trainer.run(wait_for_engines)
    adapted = config.model.lora
    run.require_ours()
    (policy.export_adapter if adapted and adapted.export == "adapter" else policy.export)(run.export)
    return state


def prepare_prompts(config: RunConfig, model_path: str) -> tuple[Prompts, RowCounts]:
    """Load, check and tokenize all rows; every bad row is named before anything is trained."""
    from slurm_rl.engine.model import load_tokenizer
    from slurm_rl.engine.vision import load_image_reader

    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    split = load_prompts(config.data)
    template = open_template(tokenizer, config.data)
    context_length = load_context_length(model_path, config.model.trust_remote_code)
    images = load_image_reader(model_path, config.model)
    if config.data.image_key is not None and images is None:
        raise DataError(
            "data.image_key needs a vision-language model",
            seen=f"{config.data.image_key!r} and {model_path}",
            action="choose a Qwen2.5-VL or Qwen3-VL, or set data.image_key=null",
        )

    def encode(rows: Sequence[PromptRow]) -> list[EncodedPrompt]:
        return encode_prompts(
            rows,
            tokenizer,
            template=template,
            max_prompt_tokens=config.data.max_prompt_tokens,
            context_length=context_length,
            max_tokens=config.rollout.max_tokens,
            overlong=config.data.overlong,
            images=images,
        )

    train, held_out = encode(split.train), encode(split.held_out)
    counts = count_rows(split, len(train), len(held_out))
    answers = encode_answers([prompt.answer for prompt in train], tokenizer) if config.warmup.num_steps else []
    max_images = None if images is None else max(len(prompt.images) for prompt in [*train, *held_out])
    if max_images and config.rollout.continuous:
        raise ConfigError(
            "rollout.continuous goes with text alone: completions under way would keep what the old vision tower saw",
            seen=f"prompts with up to {max_images} images",
            action="set rollout.continuous=false",
        )
    return Prompts(train, held_out, answers, max_images), counts


def encode_answers(answers: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of each answer with the end-of-text token, for the warm-up."""
    encoded = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    return [[*ids, tokenizer.eos_token_id] for ids in encoded]


def choose_probe(prompts: Prompts, longest: int) -> TokenPrompt:
    """Tokens of the first training prompts, end to end: text of the right vocabulary.

    With images it is the shortest of the first prompts that have one, whole: it also shows what the vision tower does.
    """
    seeing = [prompt.tokens for prompt in prompts.train[:_PROBE_TOKENS] if prompt.images]
    if seeing:
        return min(seeing, key=lambda prompt: len(prompt.token_ids))
    tokens = [token for prompt in prompts.train[:_PROBE_TOKENS] for token in prompt.token_ids]
    return TokenPrompt(token_ids=tokens[: min(_PROBE_TOKENS, longest)])


def start_engines(cluster: Cluster, config: RunConfig, model_path: str, max_images: int | None) -> list[Actor]:
    """Start the rollout engines without waiting: they load while the policy does."""
    max_model_len = config.data.max_prompt_tokens + config.rollout.max_tokens
    # Chunks and weights under way at once, where engines take them so.
    staleness = config.rollout.max_staleness
    num_calls = max_calls(staleness) + 2 * (staleness + 1) if config.rollout.continuous else 1
    return [
        cluster.place(
            actor,
            RolloutEngine,
            *(model_path, config.model, config.rollout, max_model_len, len(actor.gpus), max_images),
            max_concurrency=num_calls,
        )
        for actor in cluster.plan.actors
        if actor.role == "rollout"
    ]


def build_sampler(cluster: Cluster, engines: Sequence[Actor], config: RunConfig) -> Sampler:
    """Fixed shares, or the next prompts to whoever has room."""
    rollout, timeout_s = config.rollout, config.trainer.step_timeout_s
    if not rollout.continuous:
        return Sampler(cluster, engines, timeout_s)
    return ContinuousSampler(
        cluster, engines, timeout_s, max_num_seqs=rollout.max_num_seqs, staleness=rollout.max_staleness
    )


def start_policy(cluster: Cluster, config: RunConfig, model_path: str) -> list[Actor]:
    """Start the policy workers."""
    return [
        cluster.place(actor, PolicyWorker, config, model_path, place)
        for actor, place in choose_places(cluster, "policy")
    ]


def start_references(cluster: Cluster, config: RunConfig) -> list[Actor]:
    """Start the actors that hold the reference apart from the policy; none when its workers hold it."""
    return [
        cluster.place(actor, ReferenceWorker, config, actor.num_threads)
        for actor in cluster.plan.actors
        if actor.role == "reference"
    ]


def start_critic(cluster: Cluster, config: RunConfig) -> CriticGroup:
    """Start the critic's workers; what they load is known after the warm-up."""
    workers = [cluster.place(actor, CriticWorker, config, place) for actor, place in choose_places(cluster, "critic")]
    return CriticGroup(cluster, workers, cluster.plan.layout.micro_batch_tokens, config.trainer.step_timeout_s)


def choose_places(cluster: Cluster, role: str) -> list[tuple[ActorPlan, WorkerPlace]]:
    """The ranks of a role, and where they meet."""
    actors = [actor for actor in cluster.plan.actors if actor.role == role]
    address, port = cluster.nodes.meeting_point(role, actors[0].node)
    return [(actor, WorkerPlace(actor.index, len(actors), address, port, actor.num_threads)) for actor in actors]


def _wait_until_ready(cluster: Cluster, actors: Sequence[Actor], timeout_s: float, what: str) -> None:
    cluster.gather([(actor, actor.handle.ready.remote()) for actor in actors], timeout_s=timeout_s, what=what)
