import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.errors import TrainingError
from slurm_rl.node.driver import catches, check_driver_end, describe_status, exit_status, may_signal
from slurm_rl.run_dir.run_dir import RunDir, write_json

RAISE = (
    "from slurm_rl.node.limits import raise_limits as r; r(); import resource; print(resource.getrlimit(resource.{}))"
)
MIB = 1 << 20


def lower(limit: int, soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(limit, (soft, hard))


@pytest.mark.parametrize(
    ("name", "soft", "hard", "raised"),
    [
        ("RLIMIT_NOFILE", 256, 2000, 2000),
        ("RLIMIT_FSIZE", 1 << 30, 1 << 40, 1 << 40),
        ("RLIMIT_MEMLOCK", 0, 4096, 4096),
        ("RLIMIT_STACK", 2 * MIB, 64 * MIB, 8 * MIB),  # a higher limit costs virtual memory of each thread
        ("RLIMIT_STACK", 32 * MIB, 64 * MIB, 32 * MIB),
        ("RLIMIT_CORE", 0, 4096, 0),  # dumps of eight ranks would fill the disk
    ],
)
def test_raise_limits_raises_soft_to_hard(name: str, soft: int, hard: int, raised: int) -> None:
    before = resource.getrlimit(getattr(resource, name))[1]
    if before != resource.RLIM_INFINITY and before < hard:
        pytest.skip(f"this machine allows {before}")
    argv = [sys.executable, "-c", RAISE.format(name)]
    limits = lower(getattr(resource, name), soft, hard)
    done = subprocess.run(argv, preexec_fn=limits, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"({raised}, {hard})"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (-24, "SIGXCPU; its limit of CPU time"),
        (-25, "SIGXFSZ; a file became"),
        (-9, "memory runs out"),
        (3, "status 3"),
    ],
)
def test_describe_status_explains_signal_of_limit(status: int, says: str) -> None:
    assert says in describe_status(status)


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
