"""Refuse layouts that do not fit: the phase, both numbers, and the cheapest single change that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from slurm_rl.errors import ConfigError
from slurm_rl.plan.candidates import list_contexts
from slurm_rl.plan.fit import CHUNK_TOKENS, find_fitting, find_misfit, list_choices, list_micro_batches
from slurm_rl.plan.policy_memory import PolicyMemory
from slurm_rl.plan.setting import Setting

_FROZEN = {"policy": "reference", "critic": "reward model"}
"""Frozen model on the GPUs of each role."""
# Engine on the same GPU by phase; asleep in others.
_COLOCATED = {"sample": "a sampling engine", "sync": "an engine that loads weights"}
_MOST_NODES = 64
"""Largest factor by which more nodes are tried."""


def refuse(setting: Setting) -> ConfigError:
    """Return the error for the smallest setting: the phase that does not fit, and a change that does."""
    tried = list_choices(setting)[-1]
    misfit = find_misfit(tried)
    assert misfit is not None
    role, need = misfit.role, misfit.memory.phases_gb[misfit.phase]
    engine = _COLOCATED.get(misfit.phase, "a sleeping engine") if tried.colocated and role == "policy" else ""
    parts = describe_memory(role, misfit.memory)
    return ConfigError(
        f"a {role} worker must fit its GPU (cluster.gpu_mem_gb" + (f", together with {engine})" if engine else ")"),
        seen=f"{need:.1f} GB > {misfit.room_gb:.1f} GB in phase {misfit.phase}; in train: {parts}; "
        f"{setting.num_workers[role]} workers, micro-batches of {tried.config.policy.micro_batch_tokens} tokens",
        action=describe_nearest(setting),
    )


def describe_nearest(setting: Setting) -> str:
    """Return the cheapest single change that fits, and its memory."""
    for words, changed in _list_changes(setting):
        found = find_fitting(changed)
        if found is not None and (not found.colocated or found.engine.least_gb <= found.engine_budget_gb):
            need = found.needs()["policy"]
            phase = max(need.phases_gb, key=lambda phase: need.phases_gb[phase])
            return f"{words}, which takes {need.phases_gb[phase]:.1f} GB in phase {phase}"
    return "no single change is enough: take more nodes, shorter sequences or a smaller model"


def _list_changes(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield single changes that save memory, cheapest first, each with its override."""
    policy, model = setting.config.policy, setting.config.model
    for tokens in list_micro_batches(setting.config.max_sequence_tokens):
        if policy.micro_batch_tokens and tokens < policy.micro_batch_tokens:
            yield f"policy.micro_batch_tokens={tokens}", setting.with_(policy={"micro_batch_tokens": tokens})
    if policy.logprob_chunk_tokens is None:
        words = f"policy.logprob_chunk_tokens={CHUNK_TOKENS}"
        yield words, setting.with_(policy={"logprob_chunk_tokens": CHUNK_TOKENS})
    if model.gradient_checkpointing is False:
        yield "model.gradient_checkpointing=true", setting.with_(model={"gradient_checkpointing": True})
    used = setting.config.rollout.gpu_memory_utilization
    for percent in range(round(100 * used) - 1, 9, -1) if used is not None else ():
        if setting.colocated:
            share = percent / 100
            yield f"rollout.gpu_memory_utilization={share}", setting.with_(rollout={"gpu_memory_utilization": share})
    if policy.context_parallel != "auto":
        for size in list_contexts(setting.config.with_values(policy={"context_parallel": "auto"}), setting.shape):
            if size > policy.context and setting.num_workers["policy"] % (size * policy.num_replicas) == 0:
                yield f"policy.context_parallel={size}", setting.with_(policy={"context_parallel": size})
    is_zero, stages = policy.backend == "deepspeed", {"optimizer": 1, "all": 3}
    if is_zero and policy.zero_stage < 3:
        yield "policy.zero_stage=3", setting.with_(policy={"zero_stage": 3})
    for kind, least in stages.items():
        if kind != policy.offload and policy.offload != "all" and (not is_zero or policy.zero_stage >= least):
            yield f"policy.offload={kind}", setting.with_(policy={"offload": kind})
    times = 2
    while times <= _MOST_NODES:
        words = f"cluster.num_nodes={times * setting.config.cluster.num_nodes}"
        yield words, replace(setting, num_workers={role: times * n for role, n in setting.num_workers.items()})
        times *= 2
    if model.lora is None and setting.config.task == "grpo":
        from slurm_rl.config.model import LoraConfig

        yield "+lora=all_linear", setting.with_(model={"lora": LoraConfig()})


def describe_memory(role: str, memory: PolicyMemory) -> str:
    """Return `weights 2.1, gathered 0.3, gradients 1.0, ...` without parts that are 0."""
    names = ("weights", "gathered", "gradients", "optimizer", "update", "activations", "logits")
    parts = {name: getattr(memory, f"{name}_gb") for name in names} | {_FROZEN.get(role, ""): memory.frozen_gb}
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if round(value, 1))


def describe_phases(phases: Mapping[str, float]) -> str:
    """Return `load 5.1, train 61.0, sample 22.4, sync 26.8, save 22.4`."""
    return ", ".join(f"{phase} {value:.1f}" for phase, value in phases.items())
