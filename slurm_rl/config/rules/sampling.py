"""Rules of sampling, the reference model and the weight transfer."""

from collections.abc import Iterator
from typing import Final

from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source
from slurm_rl.config.train import RolloutConfig

LEAST_TEMPERATURE: Final = 0.01
"""Lowest temperature that vLLM samples with (_MAX_TEMP in vllm/sampling_params.py); it raises lower ones to this."""


def sampling_problems(config: RunConfig) -> Iterator[str]:
    """Refuse sampling that breaks the KL term or the logprobs, and a weight transfer that the accelerator lacks."""
    coefficient = config.algorithm.kl.coef
    for name, one in each_source(config).items():
        prefix = f"data.sources.{name}: " if name else ""
        if one.rollout.truncates_distribution and coefficient > 0:
            rollout = one.rollout
            yield (
                f"{prefix}a KL term needs completions sampled from the policy itself, so rollout.top_p=1, top_k=0, "
                f"min_p=0 and repetition_penalty=1; got {rollout.top_p}, {rollout.top_k}, {rollout.min_p}, "
                f"{rollout.repetition_penalty} and algorithm.kl.coef={coefficient}. "
                "Next: leave these out, or algorithm.kl.coef=0"
            )
        yield from (f"{prefix}{problem}" for problem in _temperature_problems(one.rollout))
    for name, one in each_set(config).items():
        yield from (f"eval.sets.{name}: {problem}" for problem in _temperature_problems(one.rollout))
    for name, value in (("num_workers", config.reference.num_workers), ("path", config.reference.path)):
        if value is not None and coefficient == 0:
            yield (
                f"reference.{name} needs algorithm.kl.coef > 0, since only the KL term uses the reference; got "
                f"0. Next: reference.{name}=null"
            )
    yield from _transfer_problems(config)


def _temperature_problems(rollout: RolloutConfig) -> Iterator[str]:
    if 0 < rollout.temperature < LEAST_TEMPERATURE:
        yield (
            f"temperature must be at least {LEAST_TEMPERATURE:g}, since engines raise lower ones to it and the policy "
            f"does not; got {rollout.temperature:g}. Next: temperature={LEAST_TEMPERATURE:g}"
        )


def _transfer_problems(config: RunConfig) -> Iterator[str]:
    transfer, accelerator = config.rollout.weight_transfer, config.cluster.accelerator
    if transfer in ("nccl", "ipc") and accelerator == "cpu":
        yield (
            f"rollout.weight_transfer={transfer} needs GPUs; got accelerator 'cpu'. Next: rollout.weight_transfer=auto"
        )
    if transfer == "gloo" and accelerator != "cpu":
        yield (
            "rollout.weight_transfer=gloo is for accelerator 'cpu'; "
            f"got {accelerator!r}. Next: rollout.weight_transfer=auto"
        )


def correction_problems(config: RunConfig) -> Iterator[str]:
    """Refuse a changed sampling distribution without importance correction, which would bias ratio and clipping."""
    if config.external is not None or config.algorithm.correction.kind is not None:
        return
    for name, one in each_source(config).items():
        rollout = one.rollout
        if rollout.truncates_distribution:
            yield (
                "algorithm.correction.kind must not be null with rollout.top_p, top_k, min_p or repetition_penalty, "
                f"which change the sampling distribution; got null with top_p={rollout.top_p}, top_k={rollout.top_k}, "
                f"min_p={rollout.min_p} and repetition_penalty={rollout.repetition_penalty}"
                + (f" of data.sources.{name}" if name else "")
                + ". Next: set algorithm.correction.kind=auto, or leave these out"
            )
