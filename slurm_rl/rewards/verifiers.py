"""The verifiers a config can name. Add one: write a `Verifier`, and a row in `VERIFIERS` of config/registry.py.

The table holds import paths, not functions: only the worker processes import them, so the trainer
never pays for sympy, and a verifier that breaks on import breaks there. Settings travel in the same
string, as JSON after a question mark: `module:function?{"score": "share"}` is called with `score="share"`.
Some judge the answer, others its form: the first are what accuracy means, in numbers and in `has_signal`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import CODE_SHARE, RewardConfig
from slurm_rl.errors import DataError

JUDGES: Final = (*(name for name, row in VERIFIERS.items() if row.judges_answer), "acc_rewards", "scores")
"""Names of the scores that judge the answer: verifiers', and what OpenRLHF's services and functions tell."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def choose_verifiers(
    config: RewardConfig, table: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, float]]:
    """What the workers run, by name, and the weight of each score in the reward."""
    if config.function is not None:
        # It makes the whole reward; what else it tells has no weight.
        return {"function": config.function}, {"reward": 1.0}
    if config.model.path is not None:
        from slurm_rl.rewards.classifier import specify_model  # needs numpy, which a script on a login node may lack

        return {"model": specify_model(config.model, config.num_workers)}, {"model": 1.0}
    functions = table or {name: row.function for name, row in VERIFIERS.items()}
    specs: dict[str, str] = {name: functions[name] for name in config.verifiers}
    if "code" in specs:
        settings = config.code.model_dump() | {"total_s": CODE_SHARE * config.timeout_s}
        specs["code"] += f"?{json.dumps(settings)}"
    return specs, dict(config.verifiers.items())


def score_arithmetic(completion: str, answer: str) -> float:
    """1.0 when the completion, stripped, is the integer `answer` digit for digit; else 0.0.

    Text is compared, nothing is evaluated: `3+4` and `07` are not `7`.

    Raises:
        DataError: the answer is not a plain decimal integer, so nothing could ever match it.
    """
    check_integer(answer)
    return float(completion.strip() == answer)


def check_integer(answer: str) -> None:
    """Raise DataError if the answer is not a plain decimal integer."""
    if not _INTEGER.fullmatch(answer):
        raise DataError(
            "the arithmetic verifier needs a decimal integer as reference answer",
            seen=repr(answer),
            action="correct the row, or choose another verifier under reward.verifiers",
        )


def score_format(completion: str, answer: str) -> float:
    """1.0 for exactly `<think>...</think><answer>...</answer>`, each tag once and nothing around; else 0.0.

    >>> score_format("<think>2+2</think><answer>4</answer>", "unused")
    1.0
    """
    once = all(completion.count(tag) == 1 for tag in _TAGS)
    framed = completion.startswith("<think>") and completion.endswith("</answer>")
    return float(once and framed and "</think><answer>" in completion)
