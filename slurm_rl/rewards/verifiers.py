"""Built-in verifiers. To add one, write a `Verifier` and a row in `VERIFIERS` of config/registry.py.

The table contains import paths, so that the trainer does not import sympy. Settings follow as JSON after a question
mark:
`module:function?{"score": "share"}` is called with `score="share"`.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import CODE_SHARE, RewardConfig
from slurm_rl.errors import DataError

JUDGES: Final = (*(name for name, row in VERIFIERS.items() if row.judges_answer), "acc_rewards", "scores")
"""Names of scores that judge the answer: of verifiers, and of OpenRLHF's services and functions."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def choose_verifiers(
    config: RewardConfig, table: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the verifiers by name, and the weight of each score in the reward."""
    if config.function is not None:
        # The function returns the whole reward; its other numbers have no weight.
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
    """Return 1.0 if the stripped completion is the integer `answer` digit for digit, else 0.0; `3+4` and `07` are not
    `7`."""
    check_integer(answer)
    return float(completion.strip() == answer)


def check_integer(answer: str) -> None:
    if not _INTEGER.fullmatch(answer):
        raise DataError(
            "the arithmetic verifier needs a decimal integer as reference answer",
            seen=repr(answer),
            action="correct the row, or choose another verifier under reward.verifiers",
        )


def score_format(completion: str, answer: str) -> float:
    """Return 1.0 for exactly `<think>...</think><answer>...</answer>`, each tag once, no other text; else 0.0.

    >>> score_format("<think>2+2</think><answer>4</answer>", "unused")
    1.0
    """
    once = all(completion.count(tag) == 1 for tag in _TAGS)
    framed = completion.startswith("<think>") and completion.endswith("</answer>")
    return float(once and framed and "</think><answer>" in completion)
