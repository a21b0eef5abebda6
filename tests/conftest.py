"""Fixtures of every folder, and which tests share a process when there are several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from tests.whole_run import whole_run

__all__ = ["whole_run"]

# How long one example takes says more of the machine than of the code.
settings.register_profile("slurm_rl", deadline=None)
settings.load_profile("slurm_rl")

# Each shares what is dear to bring up: a Slurm, a Ray, an engine, a whole run. Other tests go by their file.
SHARING = ("slurm", "train")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By this file and not by marks of xdist_group: with pytest 9.2 those are not heeded."""
    from xdist.scheduler import LoadScopeScheduling

    class ByWhatIsShared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder, _, rest = nodeid.removeprefix("tests/").partition("/")
            return folder if folder in SHARING else rest.partition("::")[0]

    return ByWhatIsShared(config, log)
