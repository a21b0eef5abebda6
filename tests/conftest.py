"""Fixtures of every folder."""

from tests.whole_run import whole_run

__all__ = ["whole_run"]
