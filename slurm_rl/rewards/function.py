"""A reward written by the user: `reward.function=my_reward.py:reward_func`, in OpenRLHF's form.

    def reward_func(queries, prompts, labels):        # lists of strings: prompt with completion, prompt, answer
        return [0.5]                                  # a list or tensor of that length, or a dict:
        return {"rewards": [0.5], "scores": [1.0], "extra_logs": {"words": [12]}}

It runs in the worker processes, never in the trainer, and gets one item at a time, so that the deadline and the
blame are of one item. Every number beside `rewards` is logged.
"""

from __future__ import annotations

import importlib.util
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from slurm_rl.rewards.results import Failure, RewardItem

_SHOWN_CHARS = 200


def is_file(spec: str) -> bool:
    """Whether the spec is `file.py:function` rather than `module:function`."""
    return spec.rpartition(":")[0].endswith(".py")


def load_function(spec: str) -> Callable[..., Any]:
    """The function of `file.py:function`. Raises what the file raises, or AttributeError when it has none such."""
    path, _, name = spec.rpartition(":")
    function: Callable[..., Any] = getattr(_load_file(path), name)
    return function


@cache
def _load_file(path: str) -> ModuleType:
    """Run a Python file as a module, once. Its folder goes behind sys.path, so that it may import neighbours."""
    file = Path(path).expanduser().resolve()
    name = f"slurm_rl_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


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
