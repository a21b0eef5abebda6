"""Slurm as typed functions: everything this package asks of sbatch, squeue, sacct, scancel, scontrol and sinfo.

Errors carry Slurm's own words: SubmitError when Slurm says no, SlurmUnavailableError when it does not
answer and asking again later makes sense.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import sys
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

Version = tuple[int, int]

_DEFAULT_KILL_WAIT_S = 30.0
"""Slurm's own."""
DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's own, where a login node has no scontrol to ask."""
_NO_SUCH_JOB = "invalid job id specified"
_NO_ACCOUNTING = "accounting storage is disabled"
_NO_SUCH_NODE = "invalid node name"
_ASK_AGAIN_S = 0.2
_ENDED_ALREADY = "already completing or completed"


@dataclass(frozen=True)
class JobInfo:
    """One job, or one element of an array."""

    job_id: str
    """`12`, or `12_3` for an element of an array; a heterogeneous job has the id of its first component."""
    state: JobState
    slurm_state: str
    """Slurm's own word."""
    reason: str
    """Why it waits or how it ended, in Slurm's word; "" when there is nothing to say."""
    nodelist: str
    """In Slurm's short form; see `hostnames`."""
    start_time: float | None
    """Seconds since the epoch; of a pending job an estimate, if Slurm has one."""
    end_time: float | None
    """Of a running job: when its time limit ends it."""
    exit_code: str | None = None
    """`code:signal`; known only from accounting."""
    comment: str = ""
    """What the batch script said before any Python ran; see plan/sbatch.py. Known only from squeue."""


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
    """Queue nothing; SubmitError when Slurm would never start this job."""
    run_slurm(["sbatch", "--test-only", *args])


def query_jobs(job_ids: Iterable[str]) -> dict[str, JobInfo]:
    """What Slurm knows of these jobs, arrays expanded to their elements; a job it has forgotten is left out.

    Slurm forgets ended jobs after MinJobAge (default 5 min), and a waiting array element at once when cancelled.
    One squeue for all; where there is accounting, one sacct adds exit codes and the jobs that squeue forgot.
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
        recorded = {}  # slurmdbd is away, but nothing is missing
    # squeue wins: sacct lags, and shows the last start of a job that waits to start again.
    for key in found.keys() & recorded.keys():
        if found[key].state.is_ended and recorded[key].state.is_ended:
            found[key] = dataclasses.replace(found[key], exit_code=recorded[key].exit_code)
    return {**recorded, **found}


def query_hold(job_id: str) -> dict[str, float]:
    """Of a running job, or element of an array: since when it waited (`queued_since`) and has its nodes (`start_time`),
    and when its time limit or a preemption ends it (`ends_at`).

    Slurm counts a requeued job as submitted when its nodes were given back. What it does not say is left out.
    """
    done = execute_slurm(["squeue", "-h", "-j", job_id, "-o", "%V|%S|%e"], SLURM_TIME_FORMAT="%s")
    # Of a heterogeneous job one line a component; all start at once.
    said = [] if done.returncode else done.stdout.strip().partition("\n")[0].split("|")
    found = zip(("queued_since", "start_time", "ends_at"), map(_read_time, said), strict=False)
    return {name: time for name, time in found if time is not None}


def query_starts(job_ids: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Start and end, in seconds since 1970, of every start of these jobs that is over, by Slurm's accounting.

    Raises:
        SlurmUnavailableError: there is none, or it does not answer.
    """
    # -D: the starts that a requeue ended, too.
    argv = ["sacct", "-n", "-P", "-X", "-D", "-o", "JobID,Start,End", "-j", ",".join(job_ids)]
    done = execute_slurm(argv, SLURM_TIME_FORMAT="%s")
    if done.returncode or _NO_ACCOUNTING in done.stderr.lower():
        raise slurm_error(done)
    found: dict[str, list[tuple[float, float]]] = {}
    for line in done.stdout.splitlines():
        job_id, *said = line.split("|")
        times = [time for time in map(_read_time, said) if time is not None]
        if len(times) == 2:
            found.setdefault(job_id, []).append((times[0], times[1]))
    return found


def fold_elements(job_ids: Iterable[str]) -> list[str]:
    """Ids to ask about: several elements of an array as the whole array, which is one id and one answer.

    >>> fold_elements(["7", "12_0", "12_5", "13_2"])
    ['12', '13_2', '7']
    """
    ids = set(job_ids)
    elements = Counter(job_id.partition("_")[0] for job_id in ids if "_" in job_id)
    arrays = {array for array, number in elements.items() if number > 1}
    return sorted({job_id.partition("_")[0] if job_id.partition("_")[0] in arrays else job_id for job_id in ids})


def cancel(job_ids: Iterable[str], signal: str | None = None, *, steps: bool = False) -> None:
    """End these jobs; with `signal` (such as "USR2") only send that to each batch step. Ended jobs are no error.

    Args:
        steps: the signal is for all other steps.
    """
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
    """Put a job back into the queue under the same id. Slurm does so even to one that has completed.

    Of an array, whose last element has the id of the whole, the element around this process is meant.
    """
    run_slurm(["scontrol", "requeue", element_id(job_id, environ)])


def excluded_nodes(job_id: str) -> list[str]:
    """Names in the job's ExcNodeList."""
    shown = run_slurm(["scontrol", "show", "job", job_id])
    found = re.search(r"\bExcNodeList=(\S+)", shown)
    return [] if found is None or found[1] == "(null)" else hostnames(found[1])


def exclude_nodes(job_id: str, names: Sequence[str], within_s: float) -> None:
    """Keep a job that waits off these nodes, and off no others; an empty list clears. Right after a requeue Slurm takes
    it once the job is no longer running, so it is asked until then.

    Raises:
        SlurmRLError: Slurm did not take it in time; in its words.
    """
    # Its short form: a job may be kept off thousands of nodes.
    names_in_short = run_slurm(["scontrol", "show", "hostlist", ",".join(names)]).strip() if names else ""
    deadline = time.monotonic() + within_s
    while True:
        try:
            run_slurm(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={names_in_short}"])
            return
        except SlurmRLError as error:
            if _NO_SUCH_NODE in str(error).lower() or time.monotonic() > deadline:
                raise
        time.sleep(_ASK_AGAIN_S)


def note_in_comment(job_id: str | None, text: str) -> None:
    """Leave a word with the job itself, for where no file can be written."""
    run_slurm(["scontrol", "update", f"JobId={job_id}", f"Comment={text}"])


def find_by_script(path: str) -> dict[str, JobState]:
    """The caller's jobs that have not ended, whose batch script lies at or below `path`; id -> state."""
    # The script's name comes last, as it may hold anything but a line break.
    rows = (line.split("|", 2) for line in run_slurm(["squeue", "-h", "-r", "--me", "-o", "%i|%T|%o"]).splitlines())
    ours = (row for row in rows if len(row) == 3 and f"{row[2]}/".startswith(f"{path}/"))
    jobs = {row[0].removesuffix("+0"): parse_state(row[1]) for row in ours}
    return {job_id: state for job_id, state in jobs.items() if "+" not in job_id and not state.is_ended}


def element_id(job_id: str, environ: Mapping[str, str]) -> str:
    """`12_3` when `environ` is that of element 3 of array 12 and `job_id` its plain id; else `job_id`."""
    if environ.get("SLURM_JOB_ID") != job_id or "SLURM_ARRAY_TASK_ID" not in environ:
        return job_id
    return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"


def kill_wait_s() -> float:
    """Seconds between Slurm's SIGTERM and its SIGKILL; the default where Slurm does not say, as while it is away."""
    with contextlib.suppress(SlurmRLError):
        if found := re.match(r"\d+", _config().get("KillWait", "")):
            return float(found[0])
    return _DEFAULT_KILL_WAIT_S


def slurmd_port() -> int | None:
    """Where srun reaches the nodes; None where Slurm does not say."""
    found = re.match(r"\d+", _config().get("SlurmdPort", ""))
    return int(found[0]) if found else None


def max_array_size() -> int:
    """How many elements an array may have, with indices from 0: MaxArraySize, and what the scheduler allows."""
    if shutil.which("scontrol") is None:
        return DEFAULT_MAX_ARRAY_SIZE
    config = _config()
    tasks = re.search(r"\bmax_array_tasks=(\d+)", config.get("SchedulerParameters", ""))
    return min(int(config["MaxArraySize"]), int(tasks[1]) if tasks else sys.maxsize)


def slurm_version() -> Version | None:
    """Of the Slurm commands here; None where they do not say. No controller is asked."""
    return parse_version(run_slurm(["sinfo", "--version"]))


def parse_version(text: str) -> Version | None:
    """Year and month in what `sinfo --version` prints; None where it tells no version.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 25.11.7"), parse_version("slurm")
    ((22, 5), (25, 11), None)
    """
    found = re.search(r"\b(\d+)\.(\d+)\b", text)
    return (int(found[1]), int(found[2])) if found else None


def hostnames(nodelist: str) -> list[str]:
    """Slurm's short form unfolded: `a[01-03,7]` -> a01 a02 a03 a7."""
    return run_slurm(["scontrol", "show", "hostnames", nodelist]).split()


def _query_squeue(ids: Sequence[str]) -> dict[str, JobInfo]:
    # The name is not asked for: it may hold newlines and bars. The comment comes last, and only ours is believed.
    argv = ["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r|%N|%S|%e|%k", "-j", ",".join(ids)]
    # Seconds since the epoch: local times mean nothing on another host, and repeat when clocks go back.
    done = execute_slurm(argv, SLURM_TIME_FORMAT="%s")
    if done.returncode:
        if _NO_SUCH_JOB in done.stderr.lower():
            return {}
        raise slurm_error(done)
    return _read_rows(done.stdout, "comment")


def _query_sacct(ids: Sequence[str]) -> dict[str, JobInfo]:
    """What the accounting has; nothing on a cluster without one, or on a login node without sacct."""
    if shutil.which("sacct") is None:
        return {}
    fields = "JobID,State,Reason,NodeList,Start,End,ExitCode"
    argv = ["sacct", "-n", "-P", "-X", "-o", fields, "-j", ",".join(ids)]
    done = execute_slurm(argv, SLURM_TIME_FORMAT="%s")
    if _NO_ACCOUNTING in done.stderr.lower():
        return {}
    if done.returncode:
        raise slurm_error(done)
    # The waiting elements of an array share one row, `12_[3-5]`; squeue has each of them.
    return {key: job for key, job in _read_rows(done.stdout, "exit_code").items() if "[" not in key}


def _read_rows(output: str, last: str) -> dict[str, JobInfo]:
    """Rows of seven fields, of which `last` names the seventh; the rest of a comment of several lines is no row."""
    jobs = {}
    for fields in (line.split("|", 6) for line in output.splitlines()):
        if len(fields) == 7:
            job_id, word, reason, nodes, start, end, rest = fields
            # `9+0` is the first component of a heterogeneous job, which runs the batch script; the others go with it.
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


def _config() -> dict[str, str]:
    return parse_settings(run_slurm(["scontrol", "show", "config"]))


def parse_settings(output: str) -> dict[str, str]:
    """Read `scontrol show config`.

    >>> parse_settings("Configuration data as of now\\nClusterName             = test\\n")["ClusterName"]
    'test'
    """
    pairs = (line.partition("=") for line in output.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
