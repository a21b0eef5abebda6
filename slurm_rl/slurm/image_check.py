"""Is the image the one that the plan was made for? Asked by the controller before every attempt, and by `image check`.

Each node starts the container exactly as it will start its agent, and says what is in there; here, outside any
container, that is held against the plan.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_rl.errors import BringUpError, ConfigError, SlurmRLError
from slurm_rl.image.files import check_image_file, image_path
from slurm_rl.image.judge import judge_reports
from slurm_rl.node.image_report import parse_report
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import with_host_setup, wrap_report
from slurm_rl.run_dir import AttemptDir
from slurm_rl.slurm.launch import agent_environment, srun_argv
from slurm_rl.slurm.silent import choose_telling

_POLL_S = 0.2
_GRACE_S = 10.0


def check_attempt_image(
    plan: JobPlan,
    attempt: AttemptDir,
    hosts: Sequence[str] | None,
    job_key: str,
    env: Mapping[str, str],
    is_stopped: Callable[[], bool],
) -> None:
    """The controller's question, on every node of the attempt by one srun.

    Args:
        hosts: of the attempt; None for the local launcher, whose only node is this one.

    Raises:
        ConfigError, BringUpError: see check_image.
    """
    # The name of the agent's container, which comes after it: what cleans up after one does after the other.
    user = os.getuid(), os.getgid()
    wrapped = wrap_report(plan, plan.run_dir, f"srl-{job_key}-{attempt.number}", user)
    argv = with_host_setup(plan, wrapped.argv)
    if hosts is not None:
        argv = [*srun_argv(plan, hosts), "--label", *wrapped.srun_args, *argv]
    step_env = agent_environment(plan, env, wrapped)
    timeout_s = plan.limits.start_timeout_s
    check_image(plan, argv, step_env, hosts or ["this machine"], timeout_s=timeout_s, is_stopped=is_stopped)


def check_image(
    plan: JobPlan,
    argv: Sequence[str],
    env: Mapping[str, str],
    hosts: Sequence[str],
    *,
    timeout_s: float,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, dict[str, Any]]:
    """Run the reports and judge them.

    Args:
        argv: starts `wrap_report` on each host, output labelled by task where there are several.
        hosts: one a report; of several each report must name its own.
        timeout_s: for all of it; a first start may fetch the image from a registry.
        is_stopped: there is no time left to wait for an answer.

    Returns:
        The reports by host, when all is as expected.

    Raises:
        ConfigError: the image is not there, damaged, wrong, or does not start anywhere: trying again would not help.
        BringUpError: a node gave no answer.
    """
    path = image_path(plan.container["runtime"], plan.container["image"])
    if path is not None:
        check_image_file(path)
    output, errors = _run(argv, env, timeout_s, is_stopped)
    reports = _read_reports(output, hosts)
    silent = [host for host in hosts if host not in reports]
    if silent:
        raise _explain_silence(plan, silent, len(hosts), f"{errors}\n{output}")
    wrong = judge_reports(plan, reports)
    if wrong:
        raise ConfigError(
            f"the image must be as the plan expects ({plan.container['image'] or 'no container'})",
            seen="\n  " + "\n  ".join(wrong),
        )
    return reports


def _read_reports(output: str, hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Report by host, as each names it; srun's labels tell the lines of several tasks apart."""
    lines: dict[str, list[str]] = {}
    for line in output.splitlines():
        label = re.match(r" *(\d+): ", line)
        lines.setdefault(label[1] if label else "", []).append(line)
    reports = [report for told in lines.values() if (report := parse_report("\n".join(told))) is not None]
    if len(hosts) == 1:
        return dict(zip(hosts, reports[-1:], strict=False))
    return {report["host"]: report for report in reports if report.get("host") in hosts}


def _explain_silence(plan: JobPlan, silent: Sequence[str], num_hosts: int, words: str) -> SlurmRLError:
    last = "\n".join(choose_telling(words.splitlines())[-6:])
    # Everywhere the same, and said by the tasks themselves: it is the image, not a node.
    is_image = len(silent) == num_hosts and (num_hosts == 1 or "xited with exit code" in words)
    kind: type[SlurmRLError] = ConfigError if is_image and "no answer within" not in words else BringUpError
    return kind(
        f"the image must start and have {plan.python} ({plan.container['runtime']} {plan.container['image'] or ''})",
        seen=f"no report from {', '.join(silent)}: {last or 'no word'}",
        action="see whether the image is there on the nodes; make it: python -m slurm_rl image build",
    )


def _run(
    argv: Sequence[str], env: Mapping[str, str], timeout_s: float, is_stopped: Callable[[], bool]
) -> tuple[str, str]:
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
    deadline = time.monotonic() + timeout_s
    with process:
        while True:
            try:
                return process.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                if is_stopped() or time.monotonic() > deadline:
                    return _give_up(process, timeout_s)


def _give_up(process: subprocess.Popen[str], timeout_s: float) -> tuple[str, str]:
    # srun ends its tasks when it is asked to, and leaves them when it is killed.
    process.terminate()
    try:
        output, errors = process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return output, f"{errors}\nno answer within {timeout_s:g} s"
