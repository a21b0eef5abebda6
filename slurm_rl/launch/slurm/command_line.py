"""Run Slurm commands: argument lists, a clean environment, a timeout, and errors with a next action.

Arguments never pass through a shell, so a job name may contain any character. Only `commands.py` and
`partitions.py` import this module.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.errors import SlurmRLError, SubmitError

# Slurm's commands time out on an unreachable controller: after about 10 s, sbatch --test-only after 20.
TIMEOUT_S = 60.0

_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
_STEP_PREFIXES = ("PMI_", "PMI2_", "PMIX_")
# Cluster, credentials and account: users set these in their profile, and no job sets them.
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION"})

_UNREACHABLE = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "problem talking to the database",
    "slurm_persist_conn_open",
    # Message of `scontrol requeue` when the controller is down.
    "unexpected message received",
)

_ELSEWHERE = "run on a login node of the cluster, or use +cluster=local"
# Phrase in a message of Slurm (lower case) -> next action.
_ACTIONS = {
    "invalid partition": "choose a partition that `sinfo` lists",
    "invalid account": "choose an account that `sacctmgr show associations user=$USER` lists",
    "invalid qos": "choose a QOS that `sacctmgr show associations user=$USER` lists",
    "node configuration is not available": "ask for no more than a node of the partition has: `sinfo -N -l`",
    "node count specification invalid": "ask for no more nodes than `sinfo` shows for the partition",
    "time limit": "ask for less time; `sinfo -o '%P %l'` shows the limits",
}


class SlurmUnavailableError(SlurmRLError):
    """Slurm does not answer now (controller restarting, network); a retry may succeed."""


class NoSlurmError(SubmitError):
    """This machine belongs to no Slurm cluster."""


class SlurmTimeoutError(SlurmUnavailableError):
    """Slurm did not answer in time; it may still have executed the request."""


def clean_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` without variables that would silently change a Slurm command, or the job that it starts.

    Left by a job around us, SLURM_* become options of the inner job's srun (SLURM_NTASKS_PER_NODE,
    SLURM_MEM_PER_CPU). Set in a profile, SBATCH_WAIT blocks and SQUEUE_STATES hides jobs.
    """
    dropped = (*_PREFIXES, *_STEP_PREFIXES)
    return {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(dropped)}


def run_slurm(argv: Sequence[str]) -> str:
    """Run a command and return its output; raise if it fails."""
    done = execute_slurm(argv)
    if done.returncode:
        raise slurm_error(done)
    return done.stdout


def execute_slurm(argv: Sequence[str], **extra_env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the caller checks the exit code."""
    try:
        return subprocess.run(
            argv,
            env={**clean_env(), **extra_env},
            stdin=subprocess.DEVNULL,  # sbatch without a script would read one from stdin
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        raise NoSlurmError(f"{argv[0]} must be on PATH", action=_ELSEWHERE) from None
    except subprocess.TimeoutExpired:
        raise SlurmTimeoutError(
            f"{argv[0]} must answer within {TIMEOUT_S:g} s", action="try again when `scontrol ping` says UP"
        ) from None


def words_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the stderr of the command without the prefix `sbatch: error:` of each line."""
    program = done.args[0]
    lines = (line.removeprefix(f"{program}: ").removeprefix("error: ") for line in done.stderr.splitlines())
    return "\n".join(line for line in lines if line.strip())


def slurm_error(done: subprocess.CompletedProcess[str], words: str | None = None) -> SlurmRLError:
    """Return the error for a failed command: Slurm is unavailable, or it refused."""
    message = (words_of(done) if words is None else words) or f"exit code {done.returncode} and no message"
    if any(phrase in message.lower() for phrase in _UNREACHABLE):
        action = "try again when `scontrol ping` says UP"
        error = SlurmTimeoutError if "socket timed out" in message.lower() else SlurmUnavailableError
        return error(f"Slurm must answer {done.args[0]}", seen=message, action=action)
    if "configuration source" in message.lower():
        return NoSlurmError(
            f"{done.args[0]} must find a Slurm cluster", seen=message.splitlines()[-1], action=_ELSEWHERE
        )
    action = next((action for phrase, action in _ACTIONS.items() if phrase in message.lower()), "see the words above")
    return SubmitError(f"Slurm must accept {done.args[0]}", seen=message, action=action)
