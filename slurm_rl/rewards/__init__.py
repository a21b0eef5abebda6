"""Rewards: verifiers, their processes and services, the sandbox.

    from slurm_rl.rewards import score_math

    score_math(r"so it is \\boxed{60}", "60")     # 1.0

Verifiers are imported on first access and need no torch. In a run each call has a worker process and a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.rewards.code_answer import score_code
    from slurm_rl.rewards.math_answer import score_math
    from slurm_rl.rewards.verifiers import score_arithmetic, score_format

__all__ = ["score_arithmetic", "score_code", "score_format", "score_math"]

_PLACES = {
    "score_arithmetic": "verifiers",
    "score_code": "code_answer",
    "score_format": "verifiers",
    "score_math": "math_answer",
}

if not TYPE_CHECKING:  # otherwise every misspelt name would have a type

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from slurm_rl.config.user_files.load import import_heavy

        module = import_heavy(f"{__name__}.{_PLACES[name]}", f"slurm_rl.rewards.{name} needs packages for rewards")
        globals()[name] = getattr(module, name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
