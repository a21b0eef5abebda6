"""Describe the choices of the plan, for `plan`. The rules are in placement.py, layout.py, fit.py and transfer.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurm_rl.config.sources import episode_order, has_programs
from slurm_rl.plan.job import JobPlan

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def list_choices(config: RunConfig, plan: JobPlan) -> Iterator[tuple[str, str]]:
    """Yield name and value of each choice; nothing for an external program, which chooses everything itself."""
    if plan.external is not None:
        return
    layout = plan.layout
    if not config.eval.only:
        yield (
            "batches",
            f"micro-batches of {layout.micro_batch_tokens} tokens"
            + (
                (", gradient checkpointing" if layout.gradient_checkpointing else "")
                + (f", logits of {layout.logprob_chunk_tokens} tokens at once" if layout.logprob_chunk_tokens else "")
            ),
        )
    if plan.torchrun is None:
        yield "engines", count(layout.tensor_parallel_size, "GPU") + " each" if plan.gpus_per_node else "on CPUs"
        if not config.eval.only:
            yield "weights", f"sent by {plan.weight_transfer}"
            yield "reference", _describe_reference(config)
            yield "correction", config.correction_kind or "none"
            if (exactness := describe_exactness(config)) is not None:
                yield "resume", f"after a kill {exactness}"
    if config.model.attention == "auto":
        on_gpus = "flash_attention_2 if the node has flash-attn, else varlen"
        yield "attention", "sdpa or eager" if config.cluster.accelerator == "cpu" else on_gpus


def _describe_reference(config: RunConfig) -> str:
    dedicated = config.reference.num_workers
    if config.algorithm.kl.coef == 0:
        return "none, since algorithm.kl.coef=0"
    name = config.reference.path or "the initial policy"
    if dedicated is not None:
        return f"{name} on {dedicated} dedicated GPUs"
    return f"{name} in the policy workers" if config.policy_holds_reference else "the base without adapters"


def describe_exactness(config: RunConfig) -> str | None:
    """Return how exactly a killed run resumes; None without multi-turn episodes."""
    order, ahead = episode_order(config), config.rollout.max_off_policy_steps > 0
    same = "the same tokens, " if config.model.dtype == "float32" else ""
    if order is None:
        return f"{same}no recorded reply is sampled again" if has_programs(config) else None
    if order == "lockstep":
        return "every metric in every digit"
    return "no ended turn of a saved policy is lost" if ahead else f"{same}no ended turn is sampled again"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "engine"), count(8, "engine")
    ('1 engine', '8 engines')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
