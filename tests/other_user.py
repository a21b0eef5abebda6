"""An attacker with another user id on the same machine."""

import os
import traceback
from collections.abc import Callable

import pytest

STRANGER = 65534


def as_stranger(act: Callable[[], object]) -> None:
    """Run a function as that user in a child process; needs root."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
