"""Start node agents as child processes, clean up after them, and diagnose agents that failed before our code ran."""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT
from slurm_rl.launch.controller.ends import read_record
from slurm_rl.node.cleaning import clean_node
from slurm_rl.node.driver import find_lack
from slurm_rl.node.processes import start_child
from slurm_rl.plan.container import SETUP_ACTION, SETUP_RULE, Wrapped
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.step import node_words, with_host_setup, wrap_agent, wrap_copy
from slurm_rl.run_dir.io_errors import io_error_code
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE

EXIT_NOT_EXECUTABLE, EXIT_NOT_STARTED = 126, 127
"""Exit statuses of a shell for a program that is not executable, or does not exist."""
MOST = 300
_IMAGE_LINES = 6
OURS = "slurm_rl: "  # prefix of messages of the batch script; see plan/sbatch.py
NO_PYTHON = re.compile(r"(No such file or directory|not found|Permission denied|cannot execute|Exec format error)")
_PYXIS = re.compile(r"\berror: pyxis: (?!.*child \d+ failed)")
# Lines of enroot's log that are not the cause, or follow from an earlier line.
_PYXIS_NOISE = re.compile(
    r"pyxis: *($|printing enroot log|container was not started successfully by another"
    r"|\[INFO\]|Parallel unsquashfs|\d+ inodes|created \d+)"
)
_OTHER_PYTHON = re.compile(r"^(ModuleNotFound|Import|Syntax|Attribute|Type)Error\b", re.MULTILINE)


def start_agent(
    plan: JobPlan,
    attempt: AttemptDir,
    rank: int,
    hosts: Sequence[str],
    job_key: str,
    env: Mapping[str, str],
    *,
    death_signal: int = signal.SIGUSR2,
) -> subprocess.Popen[bytes]:
    """Start the agent of this machine as a child process.

    Args:
        hosts: hosts of all nodes by rank; empty if this machine is the only one.
        death_signal: signal that the agent receives when this process dies.
    """
    wrapped = wrap_agent(plan, attempt.number, job_key, own_user(), *node_words(rank, len(hosts) or 1, job_key))
    full = agent_environment(plan, env, wrapped) | ({HOSTS_VARIABLE: ",".join(hosts)} if hosts else {})
    full.pop(TOKEN_VARIABLE, None)
    try:
        return start_child(with_host_setup(plan, wrapped.argv), full, attempt.log(f"node-{rank}"), death_signal)
    except OSError as error:
        if io_error_code(error) is not None:
            raise  # the log cannot be written
        if plan.container["image"] is None:
            raise BringUpError(explain(str(error), EXIT_NOT_STARTED, wrapped.argv[0])) from None
        raise ConfigError(
            f"{wrapped.argv[0]} must be on PATH",
            seen=str(error),
            action="load its module, or choose another container.runtime",
        ) from None


def start_copy_here(
    plan: JobPlan, attempt: AttemptDir, job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the process that copies the attempt to checkpoint.upload_url, on this machine."""
    wrapped = wrap_copy(plan, attempt.number, job_key, own_user())
    argv, full = with_host_setup(plan, wrapped.argv), agent_environment(plan, env, wrapped)
    return start_child(argv, full, attempt.log("final-copy"), signal.SIGKILL)


def container_cleanup(plan: JobPlan, attempt: AttemptDir, job_key: str) -> tuple[str, ...]:
    """Return the command that ends the attempt's container on a node; empty if it ends with its processes."""
    return wrap_agent(plan, attempt.number, job_key, own_user()).cleanup_argv


def agent_environment(plan: JobPlan, environ: Mapping[str, str], wrapped: Wrapped) -> dict[str, str]:
    """Return the environment of the step. Without a container, the user's PYTHONPATH follows ours."""
    merged = {**environ, **wrapped.env}
    if plan.container["image"] is None:
        paths = [*wrapped.env["PYTHONPATH"].split(os.pathsep), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        merged["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return merged


def own_user() -> tuple[int, int]:
    return os.getuid(), os.getgid()


def find_dirty(attempt: AttemptDir, num_nodes: int) -> list[int]:
    """Return the ranks with an agent that died early; empty after an attempt that ended in order."""
    return [rank for rank in range(num_nodes) if read_record(attempt, rank).get("state") != "ended"]


def clean_here(run: RunDir, plan: JobPlan, attempt: AttemptDir, job_key: str, rank: int = 0) -> None:
    """Clean this machine if its agent died early."""
    if rank in find_dirty(attempt, rank + 1):
        clean_node(run, plan, attempt.number, job_key, rank=rank, cleanup=container_cleanup(plan, attempt, job_key))


def last_words(log: Path, num_lines: int = 1) -> str:
    """Return the last informative lines of a log, each at most MOST characters; "" if there are none."""
    if not log.is_file():
        return ""
    lines = choose_telling(log.read_text(encoding="utf-8", errors="replace").splitlines())
    return "\n".join(line[-MOST:] for line in lines[-num_lines:])


def choose_telling(lines: Iterable[str]) -> list[str]:
    """Return the lines that are not empty, or only the error lines of pyxis if there are any: Slurm adds many more.

    >>> choose_telling(["slurmstepd: error: pyxis: --container-mounts: source path does not exist: /x",
    ...                 "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"])
    ['slurmstepd: error: pyxis: --container-mounts: source path does not exist: /x']
    """
    filled = [line.strip() for line in lines if line.strip()]
    return [line for line in filled if _PYXIS.search(line) and not _PYXIS_NOISE.search(line)] or filled


def explain(words: str, status: int, python: str) -> str:
    """Return a cause for the user: rule, value seen, next action.

    Args:
        words: last lines of the log, written by Python or before it started.
        python: path of the interpreter.
    """
    if SETUP_RULE in words:
        return f"{words.removeprefix('slurm_rl: ')}. {SETUP_ACTION}"
    if lack := find_lack(python, words):
        return str(lack)
    if status in (2, EXIT_NOT_EXECUTABLE, EXIT_NOT_STARTED) and NO_PYTHON.search(words):
        return (
            f"{python} must be there on every node; got {words}. "
            "Next: set cluster.python to an interpreter on a file system that all nodes share"
        )
    return f"its agent never started (exit status {status}): {words or 'no word'}"


def explain_image(plan: JobPlan, words: str) -> str:
    """Return the cause for a container that did not start or has no Python."""
    return (
        f"the image must start and have {plan.python} ({plan.container['runtime']} {plan.container['image'] or ''}); "
        f"got {words or 'no word'}. Next: check the image on the nodes (python -m slurm_rl doctor), or build it: "
        "python -m slurm_rl image build"
    )


def settle_silent_agent(plan: JobPlan, attempt: AttemptDir, rank: int, host: str, log: Path, status: int) -> None:
    """Write the record of an agent that ended before it wrote one."""
    if status == 0 or attempt.node(rank).is_file():
        return
    record = {"host": host, "rank": rank, "state": "ended"}
    words = last_words(log)
    if plan.container["image"] is None or SETUP_RULE in words:
        record["error"] = explain(words, status, plan.python)
    else:
        words = last_words(log, _IMAGE_LINES)
        record["error"] = explain_image(plan, words)
        # A package missing from the image is missing on every node and attempt; a failed start may be transient.
        is_without = NO_PYTHON.search(words) and Path(plan.python).name in words
        if is_without or _OTHER_PYTHON.search(words):
            record["exit_code"] = EXIT_BAD_INPUT
    write_json(attempt.node(rank), record)


def settle_late_agents(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str]) -> None:
    """Write the records of agents that did not start before the deadline."""
    rule = f"the node agent must start within {plan.limits.start_timeout_s:g} s (job.start_timeout_s)"
    for rank, host in enumerate(hosts):
        if not attempt.node(rank).is_file():
            error = f"{rule}; it has not. Next: see {attempt.logs}, and how long a node takes to start the image"
            write_json(attempt.node(rank), {"host": host, "rank": rank, "state": "ended", "error": error})
