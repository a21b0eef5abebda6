"""A command that answers from a node, or in time does not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.meter import measure

_GRACE_S = 10.0
TIMED_OUT = 124  # timeout(1)


def ask_node(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run it; its status is TIMED_OUT when it had to be ended.

    Raises:
        ConfigError: there is no such program.
    """
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise ConfigError(
            f"{argv[0]} must be on PATH",
            seen="it is not",
            action="load its module, or choose another container.runtime",
        )
    # SIGTERM first: srun ends its tasks when it is asked to, and leaves them when it is killed.
    bounded = ["timeout", f"--kill-after={_GRACE_S:g}", f"{timeout_s:g}", *argv]
    with measure("waiting for an answer"):
        return subprocess.run(bounded, env=dict(env), capture_output=True, text=True, errors="replace")
