"""Rules of sampling, of the models beside it, and of the way of new weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from slurm_rl.config.sources import each_set, each_source

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.config.train import RolloutConfig

LEAST_TEMPERATURE: Final = 0.01
"""Of sampling that is not greedy: vLLM takes less for this (_MAX_TEMP in vllm/sampling_params.py)."""


def sampling_problems(config: RunConfig) -> Iterator[str]:
    """What samples of another policy than the one that is trained would break."""
    coefficient = config.algorithm.kl.coefficient
    for name, one in each_source(config).items():
        prefix = f"data.sources.{name}: " if name else ""
        if one.rollout.bends_distribution and coefficient > 0:
            yield f"{prefix}{_of_a_bent_distribution(one.rollout, coefficient)}"
        yield from (f"{prefix}{problem}" for problem in _temperature_problems(one.rollout))
    for name, one in each_set(config).items():
        yield from (f"eval.sets.{name}: {problem}" for problem in _temperature_problems(one.rollout))
    for name, value in (("num_workers", config.reference.num_workers), ("path", config.reference.path)):
        if value is not None and coefficient == 0:
            yield (
                f"reference.{name} needs algorithm.kl.coefficient > 0, which alone asks the reference; got 0. "
                f"Next: reference.{name}=null"
            )


def _of_a_bent_distribution(rollout: RolloutConfig, coefficient: float) -> str:
    return (
        "a KL term needs completions sampled from the policy itself, so rollout.top_p=1, top_k=0, min_p=0 and "
        f"repetition_penalty=1; got {rollout.top_p}, {rollout.top_k}, {rollout.min_p}, "
        f"{rollout.repetition_penalty} and algorithm.kl.coefficient={coefficient}. "
        "Next: leave these out, or algorithm.kl.coefficient=0"
    )


def _temperature_problems(rollout: RolloutConfig) -> Iterator[str]:
    if 0 < rollout.temperature < LEAST_TEMPERATURE:
        yield (
            f"temperature must be at least {LEAST_TEMPERATURE:g}, which engines sample with in place of less while the "
            f"policy computes with what is said; got {rollout.temperature:g}. Next: temperature={LEAST_TEMPERATURE:g}"
        )


def transfer_problems(config: RunConfig) -> Iterator[str]:
    """Ways of new weights that the accelerator does not have."""
    transfer = config.rollout.weight_transfer
    if transfer in ("nccl", "ipc") and config.cluster.accelerator == "cpu":
        yield (
            f"rollout.weight_transfer={transfer} needs GPUs; got accelerator 'cpu'. Next: rollout.weight_transfer=auto"
        )
    if transfer == "gloo" and config.cluster.accelerator != "cpu":
        yield (
            "rollout.weight_transfer=gloo is for accelerator 'cpu'; "
            f"got {config.cluster.accelerator!r}. Next: rollout.weight_transfer=auto"
        )
