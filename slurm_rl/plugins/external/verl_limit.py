"""Save before the time limit in verl 0.9's V1 trainer, as a `trainer.checkpoint_callback_class`.

verl's other trainers call `should_save_ckpt_esi` after each step; the V1 trainer, its default, only reads
`trainer.save_freq`. This callback sets that value to 1 as soon as verl's function returns true.
"""

import time
from collections.abc import Callable
from typing import Any

_RESOLVER = "slurm_rl.save_freq"


class SaveFrequency:
    """Value of `trainer.save_freq`, computed each time that the trainer reads it: after every step.

    Args:
        regular: the user's value.
        is_close: verl's `should_save_ckpt_esi`; its argument is the longest step so far.
    """

    def __init__(self, regular: int, is_close: Callable[[float], bool], now: Callable[[], float] = time.time) -> None:
        self.regular, self._is_close, self._now = regular, is_close, now
        self._last: float | None = None
        self._longest_s = 0.0

    def __call__(self) -> int:
        now = self._now()
        if self._last is not None:
            self._longest_s = max(self._longest_s, now - self._last)
        self._last = now
        return 1 if self._is_close(self._longest_s) else self.regular


class SaveBeforeLimit:
    """verl creates it with the trainer and its config."""

    def __init__(self, config: Any) -> None:
        from omegaconf import OmegaConf
        from verl.utils.checkpoint.checkpoint_manager import (  # type: ignore[import-not-found, unused-ignore]
            should_save_ckpt_esi,
        )

        extra_s = config.trainer.esi_redundant_time
        frequency = SaveFrequency(
            config.trainer.save_freq, lambda longest_s: should_save_ckpt_esi(longest_s, redundant_time=extra_s)
        )
        OmegaConf.register_new_resolver(_RESOLVER, frequency, replace=True)
        config.trainer.save_freq = f"${{{_RESOLVER}:}}"

    def on_save(self, **_: Any) -> None:
        """Called after each save."""
