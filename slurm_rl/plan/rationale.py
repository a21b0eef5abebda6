"""Describe the choices of the plan and their reasons, for `plan`.

The rules are in candidates.py, speed.py, fit.py, placement.py and transfer.py.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slurm_rl.config.sources import episode_order, has_programs
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.next_best import describe_room, format_s
from slurm_rl.plan.transfer import choose_transfer

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.memory import ModelShape

Reason = tuple[str, str]
"""A choice and the reason for it."""


def list_reasons(config: RunConfig, plan: JobPlan, shape: ModelShape | None) -> list[Reason]:
    """Return the reasons of a run; none for an external program, which chooses everything itself."""
    if plan.external is not None:
        return []
    if config.eval.only:
        return [_explain_engines(config, plan)]
    found = [_explain_placement(config, plan), _explain_sizes(config, plan)]
    if plan.torchrun is None:
        found += [_explain_engines(config, plan), _explain_weights(config, plan, shape), *_explain_models(config)]
        exactness = explain_exactness(config)
        found += [exactness] if exactness is not None else []
    if config.model.attention == "auto":
        found.append(_explain_attention(config))
    return found


def _explain_placement(config: RunConfig, plan: JobPlan) -> Reason:
    counts = Counter(actor.role for actor in plan.actors)
    workers = count(counts["policy"], "rank" if plan.torchrun else "policy worker")
    on_cpu, left_open = not plan.gpus_per_node, config.policy.num_workers is None
    if plan.torchrun is not None:
        every = "one per node without GPUs" if on_cpu else "one per GPU"
        return workers, every if left_open else "policy.num_workers"
    if on_cpu:
        return workers, "the default without GPUs" if left_open else "policy.num_workers"
    if plan.layout.colocate:
        is_single = len(plan.gpus_by_node) == 1 == plan.gpus_by_node[0]
        why = (
            "it shares the only GPU with the engine, in turn" if is_single else "they share GPUs with engines, in turn"
        )
        if config.rollout.colocate is None:
            return workers, f"{why}, since the loop is synchronous"
        return workers, f"rollout.colocate: {why}"
    ahead = config.rollout.max_off_policy_steps > 0
    if counts["critic"] and config.critic.is_dedicated and left_open:
        why = "a quarter of the GPUs, like critics; engines have the rest"
    elif left_open and plan.layout.step is not None:
        why = "the split with the shortest step; engines have the rest"
    else:
        why = "half of the GPUs, in whole engines; engines have the rest" if left_open else "policy.num_workers"
    if ahead:
        return workers, why
    cause = f", since {plan.layout.split_why}" if plan.layout.split_why else ": max_off_policy_steps=1 overlaps them"
    return workers, f"{why}. They and the engines wait for each other{cause}"


def _explain_sizes(config: RunConfig, plan: JobPlan) -> Reason:
    layout = plan.layout
    parts = [f"micro-batches of {layout.micro_batch_tokens} tokens"]
    parts += ["gradient checkpointing"] if layout.gradient_checkpointing else []
    parts += [f"logits of {layout.logprob_chunk_tokens} tokens at once"] if layout.logprob_chunk_tokens else []
    parts += [f"context_parallel={layout.context_parallel}"] if layout.context_parallel > 1 else []
    parts += [f"offload={layout.offload}"] if layout.offload != "none" else []
    if not plan.gpus_per_node:
        why = "the default without GPUs" if config.policy.micro_batch_tokens is None else "as set"
    else:
        why = layout.sizes_why or "smallest memory, since it is not estimated"
    return ", ".join(parts), why


def _explain_engines(config: RunConfig, plan: JobPlan) -> Reason:
    layout, size = plan.layout, plan.layout.tensor_parallel_size
    engines = count(sum(actor.role == "rollout" for actor in plan.actors), "engine")
    engines += f" of {count(size, 'GPU')}" if plan.gpus_per_node else ""
    if not plan.gpus_per_node:
        return engines, "rollout.num_engines" if config.rollout.num_engines else "the default without GPUs"
    if config.rollout.tensor_parallel_size is not None:
        why = "rollout.tensor_parallel_size"
    elif layout.step is None:
        why = "one, since memory is not estimated"
    else:
        why = "the smallest that is about as fast as the fastest"
    room = f"; {describe_room(layout.step)}" if layout.step is not None else ""
    return engines, why + room


def list_speed(plan: JobPlan) -> list[Reason]:
    """Return the estimated time of a step, and the layouts that lost."""
    step = plan.layout.step
    if step is None:
        return []
    parts = ", ".join(f"{name} {format_s(seconds)}" for name, seconds in step.seconds.items() if seconds >= 0.05)
    overlap = ", sampling while it trains" if step.overlaps else ""
    rate, each = step.tokens_per_s, step.tokens_per_s / step.num_gpus
    whole = f"{format_s(step.total_s)} ({parts}{overlap}); {rate:,.0f} tokens/s, {each:,.0f} a GPU"
    return [("step", whole), *(("next best" if not at else "", text) for at, text in enumerate(plan.layout.next_best))]


def _explain_weights(config: RunConfig, plan: JobPlan, shape: ModelShape | None) -> Reason:
    transport, why = choose_transfer(plan.layout.fill_in(config), plan.actors, shape)
    return f"weight transfer by {transport}", why


def _explain_models(config: RunConfig) -> list[Reason]:
    """Return the reasons for the reference and the importance correction."""
    coefficient, dedicated = config.algorithm.kl.coef, config.reference.num_workers
    name = "reference" if config.reference.path is None else f"reference {config.reference.path}"
    if coefficient == 0:
        found = [("no reference model", "algorithm.kl.coef=0")]
    elif dedicated is not None:
        found = [(f"{name} on {dedicated} dedicated GPUs", "reference.num_workers")]
    elif config.policy_holds_reference:
        found = [(f"{name} in the policy workers", f"algorithm.kl.coef={coefficient:g}")]
    else:
        found = [("reference without a copy", "it is the base without adapters")]
    kind = config.correction_kind
    if config.algorithm.correction.kind != "auto":
        return found
    exact = "float32, on-policy weights, all tokens: the sampler equals the policy"
    return [*found, (f"correction {kind}", _why_inexact(config)) if kind else ("no importance correction", exact)]


def _why_inexact(config: RunConfig) -> str:
    rollout = config.rollout
    causes = {
        f"{config.model.dtype} rounds differently in the engine": config.model.dtype != "float32",
        f"weights are up to {count(rollout.max_off_policy_steps, 'step')} old": rollout.max_off_policy_steps > 0,
        "rollout.engine_args": bool(rollout.engine_args),
        "top_p, top_k, min_p or repetition_penalty": config.truncates_distribution,
    }
    return ", ".join(cause for cause, holds in causes.items() if holds)


def explain_exactness(config: RunConfig) -> Reason | None:
    """Return how exactly a killed run resumes; None without multi-turn episodes."""
    order, ahead = episode_order(config), config.rollout.max_off_policy_steps > 0
    if order is None:
        if not has_programs(config):
            return None
        same = "the same tokens, " if config.model.dtype == "float32" else ""
        return f"after a kill: {same}no recorded reply is sampled again", f"env.agent_command, {config.model.dtype}"
    if order == "lockstep":
        return "after a kill: every metric in every digit", "env.schedule=lockstep"
    if ahead:
        return (
            "after a kill: no ended turn of a saved policy is lost",
            "env.schedule=async, rollout.inflight_weight_updates",
        )
    if config.model.dtype == "float32":
        return "after a kill: the same tokens, no ended turn is sampled again", "env.schedule=async, float32"
    return (
        "after a kill: no ended turn is sampled again",
        f"env.schedule=async, {config.model.dtype}",
    )


def _explain_attention(config: RunConfig) -> Reason:
    if config.cluster.accelerator == "cpu":
        return "attention", "sdpa or eager, as the model supports, without GPUs"
    return "attention", "flash_attention_2 if the node has flash-attn, else varlen"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "engine"), count(8, "engine")
    ('1 engine', '8 engines')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
