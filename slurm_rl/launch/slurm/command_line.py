"""How a Slurm command is run: a list of arguments, a clean environment, a deadline, an error that teaches.

Arguments never pass through a shell, so a job name may hold anything. Only `commands.py` and
`partitions.py` use this file.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.errors import SlurmRLError, SubmitError

# A command gives up on an unreachable controller by itself: after about 10 s, sbatch --test-only after 20.
TIMEOUT_S = 60.0

_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
_STEP_PREFIXES = ("PMI_", "PMI2_", "PMIX_")
# Where the cluster is, who asks and who pays: people set these in their profile, and no job sets them.
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION"})

_UNREACHABLE = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "problem talking to the database",
    "slurm_persist_conn_open",
    # What `scontrol requeue` makes of a controller that is down.
    "unexpected message received",
)

# What Slurm says (in lower case) -> what to do about it.
_ACTIONS = {
    "invalid partition": "choose a partition that `sinfo` lists",
    "invalid account": "choose an account that `sacctmgr show associations user=$USER` lists",
    "invalid qos": "choose a QOS that `sacctmgr show associations user=$USER` lists",
    "node configuration is not available": "ask for no more than a node of the partition has: `sinfo -N -l`",
    "node count specification invalid": "ask for no more nodes than `sinfo` shows for the partition",
    "time limit": "ask for less time; `sinfo -o '%P %l'` shows the limits",
    "configuration source": "run on a login node of the cluster, or use +cluster=local",
}


class SlurmUnavailableError(SlurmRLError):
    """Slurm does not answer now (controller restarting, network); the same call may succeed later."""


class SlurmTimeoutError(SlurmUnavailableError):
    """Slurm did not answer in time; it may have done what it was asked to do."""


def clean_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` without what would silently change a Slurm command, or the job that it starts.

    Left by a job around us, SLURM_* become options of the inner job's srun (SLURM_NTASKS_PER_NODE,
    SLURM_MEM_PER_CPU). Set in a profile, SBATCH_WAIT blocks and SQUEUE_STATES hides jobs.
    """
    dropped = (*_PREFIXES, *_STEP_PREFIXES)
    return {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(dropped)}


def run_slurm(argv: Sequence[str]) -> str:
    """The output of a command that must succeed."""
    done = execute_slurm(argv)
    if done.returncode:
        raise slurm_error(done)
    return done.stdout


def execute_slurm(argv: Sequence[str], **extra_env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its exit code is for the caller to judge."""
    try:
        return subprocess.run(
            argv,
            env={**clean_env(), **extra_env},
            stdin=subprocess.DEVNULL,  # sbatch without a script would wait for one
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        action = "run on a login node of the cluster, or use +cluster=local"
        raise SubmitError(f"{argv[0]} must be on PATH", action=action) from None
    except subprocess.TimeoutExpired:
        raise SlurmTimeoutError(
            f"{argv[0]} must answer within {TIMEOUT_S:g} s", action="try again when `scontrol ping` says UP"
        ) from None


def words_of(done: subprocess.CompletedProcess[str]) -> str:
    """What the command said, without the `sbatch: error:` before each line."""
    program = done.args[0]
    lines = (line.removeprefix(f"{program}: ").removeprefix("error: ") for line in done.stderr.splitlines())
    return "\n".join(line for line in lines if line.strip())


def slurm_error(done: subprocess.CompletedProcess[str], words: str | None = None) -> SlurmRLError:
    """The error for a command that failed: Slurm is away, or Slurm said no."""
    said = (words_of(done) if words is None else words) or f"exit code {done.returncode} and no message"
    if any(phrase in said.lower() for phrase in _UNREACHABLE):
        action = "try again when `scontrol ping` says UP"
        error = SlurmTimeoutError if "socket timed out" in said.lower() else SlurmUnavailableError
        return error(f"Slurm must answer {done.args[0]}", seen=said, action=action)
    action = next((action for phrase, action in _ACTIONS.items() if phrase in said.lower()), "see the words above")
    return SubmitError(f"Slurm must accept {done.args[0]}", seen=said, action=action)
