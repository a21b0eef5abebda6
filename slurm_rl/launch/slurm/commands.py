"""Typed functions for sbatch, squeue, sacct, scancel, scontrol and sinfo.

Errors have Slurm's words: SubmitError if Slurm refuses, SlurmUnavailableError if it does not answer and a retry may
succeed.
"""

import dataclasses
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import SlurmRLError, UnknownJobError
from slurm_rl.launch.slurm.command_line import (
    SlurmTimeoutError,
    SlurmUnavailableError,
    execute_slurm,
    run_slurm,
    slurm_error,
    words_of,
)
from slurm_rl.launch.slurm.states import JobState, parse_state
from slurm_rl.node.rank_discovery import expand_hosts

_NO_SUCH_JOB = "invalid job id specified"
_NO_ACCOUNTING = "accounting storage is disabled"
_NO_SUCH_NODE = "invalid node name"
_ENDED_ALREADY = "already completing or completed"
_RETRY_S = 0.2


@dataclass(frozen=True)
class JobInfo:
    """One job, or one element of an array."""

    job_id: str
    """`12`, or `12_3` for an element of an array; a heterogeneous job has the id of its first component."""
    state: JobState
    slurm_state: str
    """State in Slurm's word."""
    reason: str
    """Slurm's reason for waiting or for the end; may be empty."""
    nodelist: str
    """Compressed; see `expand_hosts`."""
    start_time: float | None
    """Seconds since 1970; an estimate for a pending job, if Slurm has one."""
    end_time: float | None
    """Time limit of a running job, in seconds since 1970."""
    exit_code: str | None = None
    """`code:signal`, from accounting only."""
    comment: str = ""
    """Message of the batch script before Python ran (plan/sbatch.py), from squeue only."""


def submit(args: Sequence[str]) -> str:
    """Submit a batch job and return its id. `args` are sbatch's: options, then the script and its arguments.

    Raises:
        UnknownJobError: the job is or may be queued, but its id is not known.
        SlurmRLError: the job is not queued.
    """
    action = "look for the job in `squeue --me`; `python -m slurm_rl cancel` with this run directory ends it"
    try:
        output = run_slurm(["sbatch", "--parsable", *args])
    except SlurmTimeoutError as error:
        raise UnknownJobError("sbatch did not answer in time", seen=str(error), action=action) from None
    # ";cluster" may follow the id; a site's wrapper may print lines before and after it.
    ids = re.findall(r"^\s*(\d+)(?:;\S*)?\s*$", output, re.MULTILINE)
    if not ids:
        raise UnknownJobError("sbatch --parsable must print a job id", seen=output.strip() or "nothing", action=action)
    return str(ids[-1])


def test_only(args: Sequence[str]) -> None:
    """Raise SubmitError if Slurm would never start this job; nothing is queued."""
    run_slurm(["sbatch", "--test-only", *args])


def query_jobs(job_ids: Iterable[str]) -> dict[str, JobInfo]:
    """Return the jobs that Slurm knows, arrays expanded to their elements.

    Slurm forgets ended jobs after MinJobAge (default 5 min), and a cancelled pending array element at once. One squeue
    queries all jobs; with accounting, one sacct adds exit codes and forgotten jobs.
    """
    ids = fold_elements(job_ids)
    if not ids:
        return {}
    found = _query_squeue(ids)
    try:
        recorded = _query_sacct(ids)
    except SlurmUnavailableError:
        if not all(job_id in found or any(key.startswith(f"{job_id}_") for key in found) for job_id in ids):
            raise
        recorded = {}  # slurmdbd is down, but nothing is missing
    # squeue wins: sacct lags, and shows the last start of a requeued job.
    for key in found.keys() & recorded.keys():
        if found[key].state.is_ended and recorded[key].state.is_ended:
            found[key] = dataclasses.replace(found[key], exit_code=recorded[key].exit_code)
    return {**recorded, **found}


def query_hold(job_id: str) -> dict[str, float]:
    """Return times of a running job in seconds since 1970: `queued_since`, `start_time` and `ends_at` (time limit or
    preemption). Times that Slurm does not report are missing; a requeued job was queued when it lost its nodes."""
    done = execute_slurm(["squeue", "-h", "-j", job_id, "-o", "%V|%S|%e"], SLURM_TIME_FORMAT="%s")
    # A heterogeneous job has one line per component; all start at once.
    fields = [] if done.returncode else done.stdout.strip().partition("\n")[0].split("|")
    found = zip(("queued_since", "start_time", "ends_at"), map(_read_time, fields), strict=False)
    return {name: time for name, time in found if time is not None}


def fold_elements(job_ids: Iterable[str]) -> list[str]:
    """Replace several elements of an array by the array, which is one id and one reply.

    >>> fold_elements(["7", "12_0", "12_5", "13_2"])
    ['12', '13_2', '7']
    """
    ids = set(job_ids)
    elements = Counter(job_id.partition("_")[0] for job_id in ids if "_" in job_id)
    arrays = {array for array, number in elements.items() if number > 1}
    return sorted({array if (array := job_id.partition("_")[0]) in arrays else job_id for job_id in ids})


def cancel(job_ids: Iterable[str], signal: str | None = None, *, steps: bool = False) -> None:
    """End jobs, or only send `signal` (such as "USR2") to their batch steps, or to all other `steps`."""
    ids = sorted(set(job_ids))
    if not ids:
        return
    options = [*([] if steps else ["--batch"]), f"--signal={signal}"] if signal else []
    done = execute_slurm(["scancel", *options, *ids])
    no_errors = (_NO_SUCH_JOB, _ENDED_ALREADY)
    wrong = [line for line in words_of(done).splitlines() if not any(words in line.lower() for words in no_errors)]
    if done.returncode and wrong:
        raise slurm_error(done, "\n".join(wrong))


def requeue(job_id: str, environ: Mapping[str, str] = os.environ) -> None:
    """Requeue a job under the same id, even a completed one; within an array the element around this process."""
    run_slurm(["scontrol", "requeue", element_id(job_id, environ)])


def read_fields(kind: str, name: str) -> dict[str, str]:
    """Return the one-word fields of `scontrol show <kind> <name>`; of a heterogeneous job, its first component's."""
    shown = run_slurm(["scontrol", "show", kind, name])
    return dict(reversed(re.findall(r"(\w+)=(\S*)", shown)))


def excluded_nodes(job_id: str) -> list[str]:
    """Return the job's ExcNodeList."""
    shown = run_slurm(["scontrol", "show", "job", job_id])
    found = re.search(r"\bExcNodeList=(\S+)", shown)
    return [] if found is None or found[1] == "(null)" else expand_hosts(found[1])


def exclude_nodes(job_id: str, names: Sequence[str], within_s: float) -> None:
    """Set (or clear) the ExcNodeList of a pending job; retry for `within_s`, since a requeued job must end."""
    # Compressed: a job may exclude thousands of nodes.
    names_in_short = run_slurm(["scontrol", "show", "hostlist", ",".join(names)]).strip() if names else ""
    deadline = time.monotonic() + within_s
    while True:
        try:
            run_slurm(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={names_in_short}"])
            return
        except SlurmRLError as error:
            if _NO_SUCH_NODE in str(error).lower() or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def note_in_comment(job_id: str | None, text: str) -> None:
    """Set the job's comment, for messages that no file can take."""
    run_slurm(["scontrol", "update", f"JobId={job_id}", f"Comment={text}"])


def find_by_script(path: str) -> dict[str, JobState]:
    """Return id and state of the caller's jobs that have not ended, with a batch script at or below `path`."""
    return {job_id: state for job_id, state, script in list_scripts() if f"{script}/".startswith(f"{path}/")}


def wait_for_either(job_id: str, other_id: str) -> None:
    """Let the caller's jobs that wait for the success of `job_id` start after that of `other_id`, too."""
    for line in run_slurm(["squeue", "-h", "--me", "-t", "PD", "-o", "%i|%E"]).splitlines():
        waiting, _, condition = line.partition("|")
        # Slurm cannot combine "any of" with "all of" (a comma).
        if f"afterok:{job_id}(" in condition and "," not in condition:
            either = f"Dependency=afterok:{job_id}?afterok:{other_id}"
            run_slurm(["scontrol", "update", f"JobId={waiting}", either])


def list_scripts() -> list[tuple[str, JobState, str]]:
    """Return id, state and batch script of the caller's jobs that have not ended."""
    # The script comes last, since its name may contain any character but a line break.
    rows = (line.split("|", 2) for line in run_slurm(["squeue", "-h", "-r", "--me", "-o", "%i|%T|%o"]).splitlines())
    jobs = [(row[0].removesuffix("+0"), parse_state(row[1]), row[2]) for row in rows if len(row) == 3]
    return [job for job in jobs if "+" not in job[0] and not job[1].is_ended]


def element_id(job_id: str, environ: Mapping[str, str]) -> str:
    """Return `12_3` if `job_id` is the plain id of element 3 of array 12 and `environ` its environment."""
    if environ.get("SLURM_JOB_ID") != job_id or "SLURM_ARRAY_TASK_ID" not in environ:
        return job_id
    return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"


def _query_squeue(ids: Sequence[str]) -> dict[str, JobInfo]:
    # Without the name, which may contain newlines and bars. The comment comes last, and only ours is used.
    argv = ["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r|%N|%S|%e|%k", "-j", ",".join(ids)]
    # Seconds since 1970: local times differ between hosts, and repeat when clocks are set back.
    done = execute_slurm(argv, SLURM_TIME_FORMAT="%s")
    if done.returncode:
        if _NO_SUCH_JOB in done.stderr.lower():
            return {}
        raise slurm_error(done)
    return _read_rows(done.stdout, "comment")


def _query_sacct(ids: Sequence[str]) -> dict[str, JobInfo]:
    """Return jobs from accounting; empty if the cluster has none, or a login node has no sacct."""
    if shutil.which("sacct") is None:
        return {}
    fields = "JobID,State,Reason,NodeList,Start,End,ExitCode"
    argv = ["sacct", "-n", "-P", "-X", "-o", fields, "-j", ",".join(ids)]
    done = execute_slurm(argv, SLURM_TIME_FORMAT="%s")
    if _NO_ACCOUNTING in done.stderr.lower():
        return {}
    if done.returncode:
        raise slurm_error(done)
    # The pending elements of an array share one row, `12_[3-5]`; squeue has each of them.
    return {key: job for key, job in _read_rows(done.stdout, "exit_code").items() if "[" not in key}


def _read_rows(output: str, last: str) -> dict[str, JobInfo]:
    """Parse rows of seven fields; `last` names the seventh. Further lines of a comment are no rows."""
    jobs = {}
    for fields in (line.split("|", 6) for line in output.splitlines()):
        if len(fields) == 7:
            job_id, word, reason, nodes, start, end, rest = fields
            # `9+0` is the first component of a heterogeneous job, which runs the batch script.
            job_id = job_id.removesuffix("+0")
            jobs[job_id] = JobInfo(
                job_id,
                parse_state(word),
                slurm_state=word,
                reason="" if reason == "None" else reason,
                nodelist="" if nodes == "None assigned" else nodes,
                start_time=_read_time(start),
                end_time=_read_time(end),
                **{last: "" if rest == "(null)" else rest},
            )
    return {job_id: job for job_id, job in jobs.items() if "+" not in job_id}


def _read_time(text: str) -> float | None:
    return float(text) if text.isdigit() else None  # N/A, Unknown, NONE
