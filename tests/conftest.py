"""Fixtures of every folder."""

from __future__ import annotations

from hypothesis import settings

from tests.whole_run import whole_run

__all__ = ["whole_run"]

# How long one example takes says more of the machine than of the code.
settings.register_profile("slurm_rl", deadline=None)
settings.load_profile("slurm_rl")
