"""Pick the best layout, and describe it and the next best ones for `plan`: their sizes, and why they lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_rl.plan.candidates import Candidate
from slurm_rl.plan.fit import Fitting, find_misfit, list_choices, overflow_gb
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.setting import Setting
from slurm_rl.plan.step_times import StepEstimate

_MOST = 2
_CLOSE = 1.1
"""Larger engines and offloading must shorten the step by more than this factor."""


@dataclass(frozen=True)
class Option:
    """A candidate with its placement, and its estimate if it fits."""

    candidate: Candidate
    actors: tuple[ActorPlan, ...]
    setting: Setting
    fitting: Fitting | None
    step: StepEstimate | None = None
    """None: it does not fit, or has no steps of sampling and training."""

    @property
    def waits(self) -> bool:
        """Whether policy and engines have GPUs of their own and wait for each other."""
        return self.candidate.is_split and self.candidate.config.rollout.max_off_policy_steps == 0

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key: engines of a synchronous loop share the policy's GPUs if that fits, then comfort, then speed."""
        assert self.fitting is not None
        return self.waits, self.fitting.share == 1, self.step.total_s if self.step else 0.0


def pick(options: Sequence[Option]) -> Option:
    """Return the simplest option that fits and is about as fast as the fastest: small engines, nothing offloaded."""
    best = min(option.rank for option in options)
    close = [option for option in options if option.rank[:2] == best[:2] and option.rank[2] <= _CLOSE * best[2]]
    return min(close, key=lambda option: (*option.candidate.effort, option.rank[2]))


def explain_fitting(found: Fitting, *, is_only: bool) -> str:
    """Return why the trainer's sizes were chosen."""
    room = "with a tenth of a GPU to spare" if found.share < 1 else "with less than a tenth of a GPU to spare"
    if found.faster is None:
        return f"the {'one choice left open' if is_only else 'fastest choice'} fits {room}"
    choice, misfit = found.faster
    chunk, again = choice.config.policy.chunk_tokens, choice.config.model.gradient_checkpointing
    parts = [f"micro-batches of {choice.config.policy.micro_batch_tokens}"]
    parts += ["with" if again else "without"]
    parts[-1] += " gradient checkpointing"
    parts += [f"logits of {chunk} at once"] if chunk else ["all logits at once"]
    return (
        f"the fastest that fits {room}; the next, {', '.join(parts)}, takes "
        f"{misfit.memory.phases_gb[misfit.phase]:.1f} of {misfit.room_gb:.1f} GB in {misfit.phase}"
    )


def list_losses(chosen: Option, others: Sequence[Option]) -> Iterator[str]:
    """Yield the next best layouts, of other sizes than those before, and why they lost.

    Args:
        others: best first; those that do not fit last.
    """
    seen = {_sizes(chosen)}
    for other in others:
        if _sizes(other) not in seen and len(seen) <= _MOST:
            seen.add(_sizes(other))
            yield f"{_name(other)}: {_why(chosen, other)}"


def explain_split(chosen: Option, others: Sequence[Option]) -> str:
    """Return why a synchronous loop cannot share GPUs; empty if it does, or was not asked to."""
    shared = [other for other in others if not other.candidate.is_split and other.fitting is None]
    if not chosen.waits or not shared:
        return ""
    nearest = min(shared, key=lambda option: overflow_gb(option.setting))
    size = nearest.candidate.tensor_parallel_size
    return f"engines of {size} that share their GPUs do not fit ({_explain_misfit(nearest)})"


def describe_room(step: StepEstimate) -> str:
    """Return the sequences that an engine runs at once, and the cost if there are fewer than asked."""
    if step.num_concurrent >= step.num_asked:
        return f"{step.num_concurrent} sequences at once"
    return f"{step.num_concurrent} of {step.num_asked} sequences at once, which costs {format_s(step.waiting_s)}"


def format_s(seconds: float) -> str:
    """Return seconds with two digits.

    >>> format_s(4.26), format_s(426.0)
    ('4.3 s', '426 s')
    """
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _sizes(option: Option) -> tuple[int, int, bool]:
    counts, candidate = option.setting.num_workers, option.candidate
    return counts["policy"], candidate.tensor_parallel_size, candidate.is_split


def _name(option: Option) -> str:
    counts, size = option.setting.num_workers, option.candidate.tensor_parallel_size
    where = "beside" if option.candidate.is_split else "on"
    engines = "1 engine" if counts["rollout"] == 1 else f"{counts['rollout']} engines"
    of = f" of {size} GPUs" if size > 1 else ""
    offload = ", optimizer on the host" if option.candidate.config.policy.offload == "optimizer" else ""
    return f"{engines}{of} {where} {counts['policy']} policy GPUs{offload}"


def _explain_misfit(option: Option) -> str:
    misfit = find_misfit(list_choices(option.setting)[-1])
    assert misfit is not None
    return f"{misfit.phase} takes {misfit.memory.phases_gb[misfit.phase]:.1f} of {misfit.room_gb:.1f} GB"


def _why(chosen: Option, other: Option) -> str:
    if other.fitting is None:
        return _explain_misfit(other)
    if other.step is None or chosen.step is None:
        return "slower"
    why = f"{format_s(other.step.total_s)} a step"
    if other.waits and not chosen.waits:
        return f"{why}, and policy and engines wait for each other"
    if other.rank[1] and not chosen.rank[1]:
        return f"{why}, with less than a tenth of a GPU to spare"
    if other.step.total_s < chosen.step.total_s:
        return f"{why}, too little gain for its size"
    if other.step.num_concurrent < min(other.step.num_asked, chosen.step.num_concurrent):
        return f"{why}, with room for {describe_room(other.step)}"
    more = {name: seconds - chosen.step.seconds[name] for name, seconds in other.step.seconds.items()}
    phase = max(more, key=lambda name: more[name])
    theirs, ours = (format_s(step.seconds[phase]) for step in (other.step, chosen.step))
    return f"{why}, of which {phase} {theirs} instead of {ours}"
