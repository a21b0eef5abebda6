import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from slurm_rl.node.driver import describe_status

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
        ("RLIMIT_CPU", 300, 400, 400),
        ("RLIMIT_FSIZE", 1 << 30, 1 << 40, 1 << 40),
        ("RLIMIT_AS", 1 << 40, 1 << 42, 1 << 42),
        ("RLIMIT_DATA", 1 << 40, 1 << 42, 1 << 42),
        ("RLIMIT_NPROC", 20_000, 30_000, 30_000),
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
