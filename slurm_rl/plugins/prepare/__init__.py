"""Data sets and models, fetched and checked on the login node; no torch."""

from __future__ import annotations

from importlib.util import find_spec

from slurm_rl.errors import ConfigError


def require_library(module: str, rule: str) -> None:
    """Raise ConfigError, with the rule, where a library of the extra `prepare` is not installed."""
    if find_spec(module) is None:
        raise ConfigError(rule, seen="not installed", action="pip install slurm_rl[prepare]")
