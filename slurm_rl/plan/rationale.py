"""Describe the choices of the plan and their reasons, for `plan`.

The rules are in placement.py, layout.py, fit.py and transfer.py.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slurm_rl.config.sources import episode_order, has_programs
from slurm_rl.plan.fit import Fitting, list_choices, search_fitting
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.layout import build_setting
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.transfer import choose_transfer

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

Reason = tuple[str, str]
"""A choice and the reason for it."""


def list_reasons(
    config: RunConfig, plan: JobPlan, shape: ModelShape | None, reference: ModelShape | None
) -> list[Reason]:
    """Return the reasons of a run; none for an external program, which chooses everything itself.

    Args:
        reference: shape of reference.path, if this machine sees it.
    """
    if plan.external is not None:
        return []
    if config.eval.only:
        return [_explain_engines(config, plan)]
    found = [_explain_placement(config, plan), *_explain_sizes(config, plan, shape, reference)]
    if plan.torchrun is None:
        found += [_explain_engines(config, plan), _explain_weights(config, plan), *_explain_models(config)]
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
    if config.rollout.colocate:
        is_single = len(plan.gpus_by_node) == 1 == plan.gpus_by_node[0]
        why = "it shares the only GPU with the engine, in turn" if is_single else ""
        why = why or "rollout.colocate: they share GPUs with engines, in turn"
    elif counts["critic"] and config.critic.is_dedicated:
        why = "a quarter of the GPUs, like critics; engines have the rest" if left_open else ""
    else:
        why = "half of the GPUs, in whole engines; engines have the rest" if left_open else ""
    return workers, why or "policy.num_workers"


def _explain_sizes(
    config: RunConfig, plan: JobPlan, shape: ModelShape | None, reference: ModelShape | None
) -> list[Reason]:
    layout = plan.layout
    parts = [f"micro-batches of {layout.micro_batch_tokens} tokens"]
    parts += ["gradient checkpointing"] if layout.gradient_checkpointing else []
    parts += [f"logits of {layout.logprob_chunk_tokens} tokens at once"] if layout.logprob_chunk_tokens else []
    if not plan.gpus_per_node:
        why = "the default without GPUs" if config.policy.micro_batch_tokens is None else "as set"
    elif shape is None or layout.gpu_mem_gb is None:
        why = "smallest memory, since it is not estimated"
    else:
        setting = build_setting(config, shape, reference, plan.actors, layout.tensor_parallel_size)
        found = search_fitting(setting)
        assert found is not None  # the plan exists
        why = _explain_fitting(found, is_only=len(list_choices(setting)) == 1)
    return [(", ".join(parts), why)]


def _explain_fitting(found: Fitting, *, is_only: bool) -> str:
    room = "with a tenth of a GPU to spare" if found.share < 1 else "with less than a tenth of a GPU to spare"
    if found.faster is None:
        return f"the {'one choice left open' if is_only else 'fastest choice'} fits {room}"
    choice, misfit = found.faster
    chunk, again = choice.config.policy.chunk_tokens, choice.config.model.gradient_checkpointing
    parts = [f"micro-batches of {choice.config.policy.micro_batch_tokens}"]
    parts += ["with" if again else "without"]
    parts[-1] += " gradient checkpointing"
    parts += [f"logits of {chunk} at once"] if chunk else []
    return (
        f"the fastest that fits {room}; the next, {', '.join(parts)}, takes "
        f"{misfit.memory.phases_gb[misfit.phase]:.1f} of {misfit.room_gb:.1f} GB in {misfit.phase}"
    )


def _explain_engines(config: RunConfig, plan: JobPlan) -> Reason:
    layout, size = plan.layout, plan.layout.tensor_parallel_size
    engines = count(sum(actor.role == "rollout" for actor in plan.actors), "engine")
    engines += f" of {count(size, 'GPU')}" if plan.gpus_per_node else ""
    if not plan.gpus_per_node:
        return engines, "rollout.num_engines" if config.rollout.num_engines else "the default without GPUs"
    if config.rollout.tensor_parallel_size is not None:
        why = "rollout.tensor_parallel_size"
    elif layout.engine is None:
        why = "one, since memory is not estimated"
    else:
        why = f"the fewest that hold model and cache, {layout.engine.least_gb:.1f} of {layout.engine_budget_gb:.0f} GB"
    return engines, why


def _explain_weights(config: RunConfig, plan: JobPlan) -> Reason:
    return f"weight transfer by {plan.weight_transfer}", choose_transfer(config, plan.actors)[1]


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
