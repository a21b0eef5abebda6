"""How some rows are sampled and judged: what a source of a mixture and a set of an evaluation may each say."""

from __future__ import annotations

from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.section import MinP, NonEmpty, NonNegativeInt, PositiveFloat, PositiveInt, Section, TopP

_JUDGED = ("env", "reward")


class WaysConfig(Section):
    """How some rows are sampled and judged, where that is not as all others are."""

    env: EnvironmentConfig | None = None
    """Its environment; null: that of the run. `{}` where the run has one and this is of single turns."""
    reward: RewardConfig | None = None
    """How its completions are scored; null: as those of the run."""
    max_tokens: PositiveInt | None = None
    """Its longest completion, at most rollout.max_tokens; null: that."""
    top_p: TopP | None = None
    """As rollout.top_p; null: that."""
    top_k: NonNegativeInt | None = None
    """As rollout.top_k; null: that."""
    min_p: MinP | None = None
    """As rollout.min_p; null: that."""
    repetition_penalty: PositiveFloat | None = None
    """As rollout.repetition_penalty; null: that."""
    stop: tuple[NonEmpty, ...] | None = None
    """As rollout.stop; null: that, and [] for none."""
    stop_token_ids: tuple[NonNegativeInt, ...] | None = None
    """As rollout.stop_token_ids; null: that, and [] for none."""

    def sampling(self) -> dict[str, Any]:
        """The keys of `rollout` that it says."""
        names = (*(name for name in WaysConfig.model_fields if name not in _JUDGED), "temperature")
        said = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in said.items() if value is not None}
