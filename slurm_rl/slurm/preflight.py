"""The first srun of an attempt: can every node see the run directory and write where it must?

Plain sh, outside any container, because a node that cannot see the code cannot run Python from it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, write_text

DEADLINE_S = 120.0
_SWEEP_S = 20.0


def run_preflight(plan: JobPlan, attempt: AttemptDir, srun: Sequence[str], env: Mapping[str, str]) -> None:
    """Check every node of the job at once.

    Raises:
        BringUpError: naming each node with what is wrong there, or that did not answer.
    """
    canary = attempt.path / "canary"
    word = secrets.token_hex(8)
    write_text(canary, word)
    script = _script(str(canary), word, plan.tmp_root)
    argv = [*srun, "--label", "/bin/sh", "-c", script]
    try:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise BringUpError(
            f"every node must answer the preflight within {DEADLINE_S:g} s", seen=str(plan.num_nodes)
        ) from None
    problems = parse_preflight(done.stdout)
    healthy = len(re.findall(r"^\d+: ok ", done.stdout, re.MULTILINE))
    if problems or healthy != plan.num_nodes:
        raise BringUpError(
            f"all {plan.num_nodes} nodes must pass the preflight",
            seen="; ".join(problems) or f"{healthy} nodes answered: {done.stderr.strip()[-500:]}",
            action="put run_dir (cluster.run_root) on a file system that every node sees, or exclude the node",
        )


def remove_leftovers(srun: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Remove a failed attempt's temp folder on every node: an agent that was killed could not do it.

    Best effort, since a node may be gone; the processes in it ended with their step.
    """
    argv = [*srun, "/bin/rm", "-rf", "--", str(folder)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(argv, env=dict(env), capture_output=True, timeout=_SWEEP_S)


def _script(canary: str, word: str, tmp_root: str) -> str:
    file, tmp = shlex.quote(canary), shlex.quote(tmp_root)
    checks = {
        f'[ "$(cat {file} 2>/dev/null)" = {word} ]': "does not see the run directory",
        f"[ -d {tmp} ] && [ -w {tmp} ]": "cannot write to cluster.tmp_root",
        "[ -d /dev/shm ] && [ -w /dev/shm ]": "has no /dev/shm to write to",
    }
    lines = [f'{{ {check}; }} || {{ echo "bad $(uname -n) {problem}"; exit 0; }}' for check, problem in checks.items()]
    return "\n".join([*lines, 'echo "ok $(uname -n)"'])


def parse_preflight(output: str) -> list[str]:
    """Problems by node, from the labelled output of srun.

    >>> parse_preflight("0: ok n1\\n1: bad n2 does not see the run directory\\n")
    ['n2 does not see the run directory']
    """
    return [m.group(1) for m in re.finditer(r"^\d+: bad (.*)$", output, re.MULTILINE)]
