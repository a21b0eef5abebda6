"""Rules of sampling, of the models beside it, and of the way of new weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def sampling_problems(config: RunConfig) -> Iterator[str]:
    """What samples of another policy than the one that is trained would break."""
    rollout, coefficient = config.rollout, config.algorithm.kl.coefficient
    if rollout.bends_distribution and coefficient > 0:
        yield (
            "a KL term needs completions sampled from the policy itself, so rollout.top_p=1, top_k=0, min_p=0 and "
            f"repetition_penalty=1; got {rollout.top_p}, {rollout.top_k}, {rollout.min_p}, "
            f"{rollout.repetition_penalty} and algorithm.kl.coefficient={coefficient}. "
            "Next: leave these out, or algorithm.kl.coefficient=0"
        )
    for name, value in (("num_workers", config.reference.num_workers), ("path", config.reference.path)):
        if value is not None and config.algorithm.kl.coefficient == 0:
            yield (
                f"reference.{name} needs algorithm.kl.coefficient > 0, which alone asks the reference; got 0. "
                f"Next: reference.{name}=null"
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
