"""Is the image the one that the plan was made for? What `image check` asks a node; an agent asks its own image.

The node starts the container exactly as it will start its agent, and says what is in there; here, outside any
container, that is held against the plan.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.image.files import check_image_file, image_path
from slurm_rl.job.silent import choose_telling, explain_image
from slurm_rl.node.image_report import parse_report
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.judge import check_versions

_GRACE_S = 10.0
_TIMED_OUT = 124  # timeout(1)


def check_image(plan: JobPlan, argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float) -> dict[str, Any]:
    """Run the report and judge it.

    Args:
        argv: starts `wrap_report` on a node.
        timeout_s: for all of it; a first start may fetch the image from a registry.

    Returns:
        The report, when all is as expected.

    Raises:
        ConfigError: the image does not start, or is not as the plan expects.
        BringUpError: no answer in time.
    """
    path = image_path(plan.container["runtime"], plan.container["image"])
    if path is not None:
        check_image_file(path)
    output, errors = _run(argv, env, timeout_s)
    report = parse_report(output)
    if report is None:
        words = "\n".join(choose_telling(f"{errors}\n{output}".splitlines())[-6:])
        raise ConfigError(explain_image(plan, words))
    check_versions(plan, report["versions"])
    return report


def _run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> tuple[str, str]:
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise ConfigError(
            f"{argv[0]} must be on PATH",
            seen="it is not",
            action="load its module, or choose another container.runtime",
        )
    # SIGTERM first: srun ends its tasks when it is asked to, and leaves them when it is killed.
    bounded = ["timeout", f"--kill-after={_GRACE_S:g}", f"{timeout_s:g}", *argv]
    done = subprocess.run(bounded, env=dict(env), capture_output=True, text=True, errors="replace")
    if done.returncode == _TIMED_OUT:
        words = done.stderr.strip()[-500:] or "no word"
        raise BringUpError("the image must start in time", seen=f"no answer within {timeout_s:g} s: {words}")
    return done.stdout, done.stderr
