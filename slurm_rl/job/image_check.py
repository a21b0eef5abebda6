"""Is the image the one that the plan was made for? What `image check` asks a node; an agent asks its own image.

The node starts the container exactly as it will start its agent, and says what is in there; here, outside any
container, that is held against the plan.
"""

from __future__ import annotations

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
    try:
        process = subprocess.Popen(
            argv, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except FileNotFoundError as missing:
        raise ConfigError(
            f"{missing.filename} must be on PATH",
            seen="it is not",
            action="load its module, or choose another container.runtime",
        ) from None
    with process:
        try:
            return process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # srun ends its tasks when it is asked to, and leaves them when it is killed.
            process.terminate()
        try:
            _, errors = process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
    raise BringUpError(
        "the image must start in time", seen=f"no answer within {timeout_s:g} s: {errors.strip()[-500:] or 'no word'}"
    )
