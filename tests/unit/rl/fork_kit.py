"""Fork test processes from a server that has imported torch, since the import takes seconds."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

FORKS = multiprocessing.get_context("forkserver")


def fork_server(*modules: str) -> Any:
    """Return a fixture that restarts the fork server of this process with these modules."""

    @pytest.fixture(scope="module", autouse=True)
    def prepared() -> Iterator[None]:
        server: Any = forkserver._forkserver
        before = server._preload_modules
        server._stop()
        FORKS.set_forkserver_preload([*modules])
        yield
        server._stop()
        FORKS.set_forkserver_preload(before)

    return prepared


def start_fork(main: Callable[..., None], *args: object) -> BaseProcess:
    process = FORKS.Process(target=main, args=args)
    process.start()
    return process
