"""The first srun of an attempt: can every node see the run directory and write where it must?

Plain sh, outside any container, because a node that cannot see the code cannot run Python from it.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.launchers.slurm.srun import run_srun, srun_argv
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir import AttemptDir, write_text

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Preflight:
    """What came out, by host; a host in neither did not answer."""

    healthy: list[str]
    problems: dict[str, str]
    srun_said: str
    """srun's own complaints, for when a host did not answer."""


def run_preflight(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> Preflight:
    """Check these nodes of the job, all at once."""
    canary = attempt.path / "canary"
    word = secrets.token_hex(8)
    write_text(canary, word)
    argv = [*srun_argv(plan, hosts), "/bin/sh", "-c", _script(str(canary), word, plan.tmp_root)]
    output, errors = run_srun(argv, env, DEADLINE_S)
    return parse_preflight(output, errors, hosts)


def _script(canary: str, word: str, tmp_root: str) -> str:
    file, tmp = shlex.quote(canary), shlex.quote(tmp_root)
    checks = {
        f'[ "$(cat {file} 2>/dev/null)" = {word} ]': "does not see the run directory",
        f"[ -d {tmp} ] && [ -w {tmp} ]": "cannot write to cluster.tmp_root",
        "[ -d /dev/shm ] && [ -w /dev/shm ]": "has no /dev/shm to write to",
    }
    name = f"${NODE_VARIABLE}"
    lines = [f'{{ {check}; }} || {{ echo "{name}: bad {problem}"; exit 0; }}' for check, problem in checks.items()]
    return "\n".join([*lines, f'echo "{name}: ok"'])


def parse_preflight(output: str, errors: str, hosts: Sequence[str]) -> Preflight:
    """Read what the nodes said, each under its own name: srun's task numbers follow no order of ours.

    >>> parse_preflight("n2: bad cannot write\\nn1: ok\\n", "", ["n1", "n2", "n3"])
    Preflight(healthy=['n1'], problems={'n2': 'cannot write'}, srun_said='')
    """
    said = {m[1]: m[2] for m in re.finditer(r"^(\S+): (ok|bad .*)$", output, re.MULTILINE)}
    return Preflight(
        healthy=[host for host in hosts if said.get(host) == "ok"],
        problems={host: said[host][4:] for host in hosts if said.get(host, "ok") != "ok"},
        srun_said=errors,
    )
