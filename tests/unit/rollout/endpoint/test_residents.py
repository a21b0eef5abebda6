import os
import sys
import threading
import time

import pytest

from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.endpoint.residents import Resident

LONG_S = 300.0
LAST_WORDS = "import sys; sys.exit('no such world')"


def test_last_output_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Resident._listen_to_errors

    def read_late(resident: Resident) -> None:
        time.sleep(0.5)  # on a busy machine the process may exit before the reader thread runs
        read(resident)

    monkeypatch.setattr(Resident, "_listen_to_errors", read_late)
    resident = Resident([sys.executable, "-c", LAST_WORDS], os.environ)
    outcome = resident.play("0", {"episode": "0"}, LONG_S, threading.Event())
    resident.end()
    assert isinstance(outcome, Failure) and outcome.cause == "exception" and "no such world" in outcome.detail


def test_later_callers_get_same_error() -> None:
    resident = Resident([sys.executable, "-c", LAST_WORDS], os.environ)
    first, second = (resident.play(name, {"episode": name}, LONG_S, threading.Event()) for name in "01")
    resident.end()
    assert isinstance(first, Failure) and second == first
