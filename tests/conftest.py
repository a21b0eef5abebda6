"""Fixtures of every folder."""

from __future__ import annotations

import signal

from hypothesis import settings

from tests.whole_run import whole_run

__all__ = ["whole_run"]

# How long one example takes says more of the machine than of the code.
settings.register_profile("slurm_rl", deadline=None)
settings.load_profile("slurm_rl")

# A script's background job ignores Ctrl-C, and so would every run that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
