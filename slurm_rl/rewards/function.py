"""A reward written by the user: `reward.function=my_reward.py:reward_func`, in OpenRLHF's form.

    def reward_func(queries, prompts, labels):        # lists of strings: prompt with completion, prompt, answer
        return [0.5]                                  # a list or tensor of that length, or a dict:
        return {"rewards": [0.5], "scores": [1.0], "extra_logs": {"words": [12]}}

It runs in the worker processes, never in the trainer, and gets one item at a time, so that the deadline and the
blame are of one item. Every number beside `rewards` is logged; `scores` says whether the answer is right, in numbers
and to `algorithm.filters.zero_variance`. A verifier of ours can be part of it: import its function and call it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from slurm_rl.rewards.results import Failure, RewardItem

_SHOWN_CHARS = 200


def call_function(function: Callable[..., Any], item: RewardItem) -> dict[str, float] | Failure:
    """Call a reward function with one item.

    Returns:
        The finite number under `reward`, and the other numbers under their own names; or why there is no reward.
    """
    answer = function([item.prompt + item.completion], [item.prompt], [item.answer])
    told: dict[str, Any] = dict(answer) if isinstance(answer, Mapping) else {"rewards": answer}
    reward = _number(told.pop("rewards", None))
    if reward is None:
        return Failure("bad score", f"the function must return one finite number an item; got {_show(answer)}")
    extra = told.pop("extra_logs", None)
    told |= extra if isinstance(extra, Mapping) else {}
    numbers_told = {str(name): _number(value) for name, value in told.items()}
    return {**{name: value for name, value in numbers_told.items() if value is not None}, "reward": reward}


def _number(value: Any) -> float | None:
    """The one finite number that a list, tensor or number is; None when it is none."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
        value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _show(value: Any) -> str:
    text = f"{type(value).__name__} {value!a}"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
