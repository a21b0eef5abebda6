"""The critic of PPO."""

from __future__ import annotations

from slurm_rl.config.base import NonNegativeInt, PositiveFloat, PositiveInt, Section
from slurm_rl.config.train import OptimConfig


class CriticConfig(Section):
    """The model that says what reward is still to come; read with algorithm.advantage=gae."""

    apart: bool = False
    """It has GPUs of its own, and works while the policy does; false: one process of it beside each policy worker, on
    its GPU, and they take turns."""
    num_workers: PositiveInt | None = None
    """Processes of one GPU each that hold it; null, with `apart`: as many as the policy has."""
    init_from: str | None = None
    """Folder of a reward model (task=rm) or another model of the policy's architecture; null: the reference policy
    with a new head."""
    optim: OptimConfig = OptimConfig(lr=9e-6)
    """Its optimizer."""
    clip: PositiveFloat | None = 0.2
    """A value that moved further than this in one step is not pulled on; null: no clipping."""
    warmup_steps: NonNegativeInt = 0
    """First steps in which it learns alone, while the policy, its schedule and the KL coefficient stay as they are."""

    @property
    def is_apart(self) -> bool:
        """Whether it has processes of its own; a number of them says so, too."""
        return self.apart or self.num_workers is not None
