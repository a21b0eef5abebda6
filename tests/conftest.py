"""Fixtures of every folder, and which tests share a process when there are several."""

from __future__ import annotations

import pytest

from tests.whole_run import whole_run

__all__ = ["whole_run"]

# Each shares what is dear to bring up: a Slurm, a Ray, an engine, a whole run. Other tests go by their file.
SHARING = ("slurm", "train")


# Before xdist, which writes the group into the name of each test.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder, _, rest = item.nodeid.removeprefix("tests/").partition("/")
        item.add_marker(pytest.mark.xdist_group(folder if folder in SHARING else rest.partition("::")[0]))
