"""Worker side of the reward pool. Only plain values return to the pool, so exceptions become text.

A user's reward function also runs here: `reward.function=my_reward.py:reward_func`, with OpenRLHF's signature.

    def reward_func(queries, prompts, labels):        # lists of strings: prompt with completion, prompt, answer
        return [0.5]                                  # a list or tensor of that length, or a dict:
        return {"rewards": [0.5], "scores": [1.0], "extra_logs": {"words": [12]}}

It gets one item at a time, for the deadline. All other numbers are logged; `scores` gives the accuracy.
"""

import fcntl
import json
import multiprocessing
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from slurm_rl.config.user_files.load import is_file, load_function
from slurm_rl.data.lines import shorten
from slurm_rl.errors import DataError
from slurm_rl.rewards.classifier import PREFIX, load_model, score_by_model
from slurm_rl.rewards.results import Failure, RewardItem, Verifier
from slurm_rl.rewards.values import keep_numbers, read_number, show


def call_function(function: Callable[..., Any], item: RewardItem) -> dict[str, float] | Failure:
    """Call a reward function with one item; return the number under `reward` and other numbers, or the failure."""
    answer = function([item.prompt + item.completion], [item.prompt], [item.answer])
    told: dict[str, Any] = dict(answer) if isinstance(answer, Mapping) else {"rewards": answer}
    reward = _number(told.pop("rewards", None))
    if reward is None:
        returned = f"{type(answer).__name__} {show(answer)}"
        return Failure("bad score", f"the function must return one finite number per item; got {returned}")
    extra = told.pop("extra_logs", None)
    told |= extra if isinstance(extra, Mapping) else {}
    numbers = {str(name): _number(value) for name, value in told.items()}
    return {**keep_numbers({name: value for name, value in numbers.items() if value is not None}), "reward": reward}


def _number(value: Any) -> float | None:
    """Return the single finite number in a number, list or tensor; None if there is none."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
        value = value.tolist() if hasattr(value, "tolist") else value
    try:
        return read_number(value)
    except ValueError:
        return None


_SHOWN_CHARS = 500


def start_worker(table: Mapping[str, str]) -> None:
    """Tie a new worker's lifetime to the parent's and import the verifiers, outside of any deadline.

    `warm_up` reports a failed import; raised here, it would make pebble start worker after worker.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for C code to return
    _die_with_parent()
    with suppress(Exception):
        for spec in table.values():
            _load(spec)


def _die_with_parent() -> None:
    """Have the kernel end this process when the parent exits, also inside C code that holds the GIL.

    The parent holds the other end of the sentinel pipe; its closing sends SIGIO.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sentinel], [], [], 0)[0]:  # it died before the line above
        os._exit(1)


@cache
def load_verifier(spec: str) -> Verifier:
    """Import `module:function`, `module:function?{its settings}` or `file.py:function`."""
    name, _, settings = (spec, "", "") if is_file(spec) else spec.partition("?")
    verifier: Verifier = load_function(name)
    return partial(verifier, **json.loads(settings)) if settings else verifier


def _load(spec: str) -> None:
    if spec.startswith(PREFIX):
        load_model(spec)
    else:
        load_verifier(spec)


def warm_up(table: Mapping[str, str], pause_s: float) -> int | Failure:
    """Return this worker's pid once it can score, or the failure; the pause leaves the next call to another worker."""
    for name, spec in table.items():
        try:
            _load(spec)
        except Exception as error:
            return Failure("exception", f"verifier {name} ({spec}): {_words(error)}")
    time.sleep(pause_s)
    return os.getpid()


def score_items(
    table: Mapping[str, str], items: Sequence[RewardItem], budget_s: float
) -> list[dict[str, float] | Failure]:
    """Score items in order, at least one, until `budget_s` is over: a chunk of slow items is no hang."""
    started = time.monotonic()
    if "model" in table:
        return list(score_by_model(table["model"], items))
    outcomes: list[dict[str, float] | Failure] = []
    for item in items:
        outcomes.append(_score_item(table, item))
        if time.monotonic() - started > budget_s:
            break
    return outcomes


def _score_item(table: Mapping[str, str], item: RewardItem) -> dict[str, float] | Failure:
    scores: dict[str, float] = {}
    for name, spec in table.items():
        try:
            found = _run_verifier(name, spec, item)
        except DataError as error:
            return Failure("reference", f"{name}: {shorten(str(error), _SHOWN_CHARS)}")
        except BaseException as error:  # also SystemExit: nothing a verifier raises may end the worker
            return Failure("exception", f"{name}: {_words(error)}")
        if isinstance(found, Failure):
            return found
        scores |= found
    return scores


def _run_verifier(name: str, spec: str, item: RewardItem) -> dict[str, float] | Failure:
    if is_file(spec):
        return call_function(load_verifier(spec), item)
    score = load_verifier(spec)(item.completion, item.answer)
    found = _number(score)
    if found is None or not 0 <= found <= 1:
        return Failure("bad score", f"{name} returned {type(score).__name__} {show(score)}")
    return {name: found}


def _words(error: BaseException) -> str:
    return shorten("".join(traceback.format_exception_only(error)).strip(), _SHOWN_CHARS)
