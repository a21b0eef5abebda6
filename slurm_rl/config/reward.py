"""How a completion is scored."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from slurm_rl.config.base import Fraction, PositiveFloat, PositiveInt, Section

VerifierName = Literal["arithmetic", "math", "format", "code"]

CODE_SHARE: Final = 0.8
"""Share of `timeout_s` that the tests of one completion get; the rest is for starting and ending processes."""


class CodeConfig(Section):
    """The `code` verifier: what one run of a completion may use, and how its tests become a score."""

    score: Literal["all", "share"] = "all"
    """`all`: 1.0 when every test passes, else 0.0. `share`: tests passed / tests."""
    test_timeout_s: PositiveFloat = 4.0
    """Deadline of one test, or of one call of an assert; a test that is late has failed."""
    memory_mb: int = Field(default=1024, ge=128)
    """Address space of one process, in MiB; a reward worker runs one such process at a time, two for asserts."""
    output_mb: PositiveFloat = 1.0
    """What a program may write, in MiB; more ends it."""


class RewardConfig(Section):
    """Verifiers, and what happens when one fails."""

    verifiers: dict[VerifierName, float] = Field(default={"arithmetic": 1.0}, min_length=1)
    """Verifier name to weight; the reward is the weighted sum."""
    num_workers: PositiveInt = 1
    """Processes that run verifiers."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one completion; a verifier that is late is ended and counted as a failure."""
    max_failure_rate: Fraction = 0.02
    """Largest share of failed rewards in one step; above it the run stops with the cause."""
    code: CodeConfig = CodeConfig()
    """Settings of the `code` verifier."""

    @model_validator(mode="after")
    def _a_test_ends_before_its_item(self) -> Self:
        longest = CODE_SHARE * self.timeout_s
        if "code" in self.verifiers and self.code.test_timeout_s > longest:
            raise ValueError(
                f"code.test_timeout_s must be at most {CODE_SHARE:g} x timeout_s = {longest:g}, "
                f"got {self.code.test_timeout_s:g}: set reward.timeout_s={self.code.test_timeout_s / CODE_SHARE:g}"
            )
        return self
