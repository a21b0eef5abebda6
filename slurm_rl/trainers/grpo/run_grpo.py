"""One attempt of the GRPO trainer: builds all components, runs the loop, and closes them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import yaml

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_parts import load_parts
from slurm_rl.data.groups import Prompts
from slurm_rl.data.load_data import check_same_rows, prompt_content
from slurm_rl.models.model_folder import load_text_config, prepare_model, report_adapters, tell_rows
from slurm_rl.node.heartbeat import start_heartbeat
from slurm_rl.node.stop import StopFlag
from slurm_rl.rollout.engine_supervisor import EngineSupervisor
from slurm_rl.rollout.weights.sync import WeightSync, choose_tolerance
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.common.remedy import load_plan
from slurm_rl.trainers.grpo.build import (
    build_rollouts,
    build_sets,
    build_transport,
    open_journal,
    start_critic,
    start_policy,
    start_reference,
    start_sampling,
    wait_for_engines,
    wait_until_ready,
)
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.trainers.grpo.prompts import prepare_prompts
from slurm_rl.trainers.grpo.trainer import GRPOTrainer
from slurm_rl.trainers.grpo.trainer_state import RunSaver, TrainerState
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.train_workers import WorkerGroup

if TYPE_CHECKING:
    from slurm_rl.trainers.grpo.judges import Judge
    from slurm_rl.workers.critic import Critic

_PROBE_TOKENS = 64


def choose_probe(prompts: Prompts, longest: int) -> TokenPrompt:
    """Return a probe for the weight sync: tokens of the first training prompts.

    With images it is the shortest of the first prompts with an image, which also tests the vision tower.
    """
    seeing = [prompt.tokens for prompt in prompts.train[:_PROBE_TOKENS] if prompt.images]
    if seeing:
        return min(seeing, key=lambda prompt: len(prompt.token_ids))
    tokens = [token for prompt in prompts.train[:_PROBE_TOKENS] for token in prompt.token_ids]
    return TokenPrompt(token_ids=tokens[: min(_PROBE_TOKENS, longest)])


def run_training(run: RunDir, attempt: AttemptDir, stop: StopFlag) -> None:
    """Run the loop to its end, or to the stop signal.

    Raises:
        StopRequested: at a stop signal; the state is saved.
        SlurmRLError: bad input, or a failure with its cause.
    """

    from slurm_rl.config.engine_args import check_engine_args
    from slurm_rl.models.lora_layers import check_targets
    from slurm_rl.trainers.grpo.judges import open_judges
    from slurm_rl.trainers.grpo.run_eval import convert_evaluated, evaluate_alone

    start_heartbeat("driver")
    config = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
    plan = load_plan(run)
    config = plan.layout.fill_in(config).with_values(rollout={"weight_transfer": plan.weight_transfer})
    check_engine_args(config.rollout.engine_args)
    if config.eval.on_checkpoint:  # jobs evaluate the sets
        config = config.model_copy(update={"eval": config.eval.model_copy(update={"sets": {}})})
    load_parts(config)
    if config.eval.only:
        convert_evaluated(run)
    model_path = prepare_model(run, config)
    adapted = check_targets(model_path, config.model, are_sent=plan.weight_transfer == "adapters")
    report_adapters(run, adapted)
    if adapted is not None and config.model.lora is not None:  # engines adapt the same layers
        lora = config.model.lora.model_copy(update={"target_modules": tuple(adapted.kinds)})
        config = config.with_values(model={"lora": lora})
    prompts, counts = prepare_prompts(config, model_path)
    contents = map(prompt_content, prompts.all_rows)
    check_same_rows(run, len(prompts.train), len(prompts.held_out), contents)
    append_event(run, "data/loaded", **asdict(counts))
    stop.check()
    cluster = Cluster(plan, stop)
    cluster.connect()
    append_event(run, "ray/cluster_ready", attempt=attempt.number, nodes=plan.num_nodes)
    metrics = MetricsLogger(run, config.logging, config.name, config.model_dump(mode="json"), attempt)
    try:
        with ExitStack() as stack:
            judges = open_judges(stack, config, run, attempt, cluster, prompts.schemas)
            if config.eval.only:
                from slurm_rl.models.load_model import require_whole_files  # transformers, which only this case needs

                require_whole_files(model_path, config.model)
                stop.at_once = False
                evaluate_alone(run, config, cluster, model_path, prompts, judges, metrics, attempt)
                return
            state = _train(run, config, cluster, model_path, prompts, judges, metrics, attempt)
    finally:
        metrics.close()
    append_event(run, "trainer/finished", step=state.step)


def _start_models(
    run: RunDir, config: RunConfig, cluster: Cluster, model_path: str
) -> tuple[WorkerGroup, WorkerGroup, Critic | None]:
    """Start policy, reference and critic, and wait until they are ready."""
    policy = start_policy(cluster, config, model_path)
    reference = start_reference(cluster, config, policy)
    critic = start_critic(cluster, config)
    groups = [policy, reference, *([critic.workers] if critic else [])]
    models = {worker.name: worker for group in groups for worker in group.workers}
    wait_until_ready(cluster, [*models.values()], config.rollout.start_timeout_s, "policy workers", run)
    tell_rows(run, "policy", policy.note_rows(policy.call("check_rows")))
    append_event(run, "trainer/started", warmup_steps=config.warmup.num_steps, num_steps=config.trainer.num_steps)
    return policy, reference, critic


def _build_sync(
    config: RunConfig,
    cluster: Cluster,
    model_path: str,
    prompts: Prompts,
    policy: WorkerGroup,
    engines: Sequence[Actor],
    supervisor: EngineSupervisor,
) -> WeightSync:
    num_layers = load_text_config(model_path, config.model.trust_remote_code).num_hidden_layers
    return WeightSync(
        cluster,
        build_transport(cluster, config, policy, engines),
        engines,
        # The engine samples one token after the probe.
        probe=choose_probe(prompts, config.max_sequence_tokens - 1),
        tolerance=choose_tolerance(config.rollout.weight_check_tolerance, config.model.dtype, num_layers),
        timeout_s=config.trainer.step_timeout_s,
        dtype=config.model.dtype,
        engine_args=config.rollout.engine_args,
        recover=supervisor.recover,
    )


def _train(
    run: RunDir,
    config: RunConfig,
    cluster: Cluster,
    model_path: str,
    prompts: Prompts,
    judges: Mapping[str, Judge],
    metrics: MetricsLogger,
    attempt: AttemptDir,
) -> TrainerState:
    engines, supervisor, sampler = start_sampling(run, attempt, config, cluster, model_path, prompts)
    wait = functools.partial(wait_for_engines, cluster, engines, config, run)
    if config.rollout.colocate:
        # While vLLM starts, other processes must not change the free GPU memory (determine_available_memory in
        # vllm/v1/worker/gpu_worker.py).
        wait()
        sampler.sleep()
    policy, reference, critic = _start_models(run, config, cluster, model_path)
    journal = open_journal(run, config, judges)
    scoring_critic = critic if config.reward.model.beside_critic else None
    sync = _build_sync(config, cluster, model_path, prompts, policy, engines, supervisor)
    supervisor.reload, cluster.while_waiting = sync.resend, supervisor.check
    trainer = GRPOTrainer(
        config,
        run,
        prompts,
        Learner(config, policy, reference, critic),
        sampler,
        build_rollouts(config, sampler, judges, scoring_critic, model_path, journal),
        sync,
        RunSaver(run, config, policy, critic, stopped_s=cluster.stop.age_s, journal=journal),
        metrics,
        policy_lock=supervisor.lock,
        sets=build_sets(config, prompts, sampler, judges, scoring_critic, model_path, journal),
    )

    cluster.stop.at_once = False
    state = trainer.run(wait)
    run.require_ours()
    policy.call("export", run.export)
    return state
