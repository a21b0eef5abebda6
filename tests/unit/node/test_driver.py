import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.errors import TrainingError
from slurm_rl.node.driver import catches, check_driver_end, exit_status, may_signal
from slurm_rl.run_dir.run_dir import RunDir, write_json

HANDLES = "import signal,time; signal.signal(signal.SIGUSR2, lambda *_: None); print('up', flush=True); time.sleep(60)"
DEAF = "import time; print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize(("body", "expected"), [(HANDLES, True), (DEAF, False)])
def test_may_signal_follows_signal_handler(body: str, expected: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert catches(process.pid, signal.SIGUSR2) == expected
        assert may_signal(process.pid, time.monotonic()) == expected
        assert may_signal(process.pid, time.monotonic() - 60)
        process.kill()


def test_catches_is_false_for_ended_process() -> None:
    assert not catches(2**22 + 1, signal.SIGUSR2)


def test_check_driver_end_names_signal(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(1)
    with pytest.raises(TrainingError, match=r"killed by SIGKILL, exit status 137"):
        check_driver_end(attempt, -9)
    write_json(attempt.outcome, {"outcome": "finished"})
    check_driver_end(attempt, 0)
    assert (exit_status(3), exit_status(-9)) == (3, 137)
