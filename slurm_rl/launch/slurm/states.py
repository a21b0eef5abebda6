"""Every state a Slurm job can be in, and what it means to us.

squeue, sacct and scontrol share these words; sacct adds to some of them ("CANCELLED by 1000"). States that a
later Slurm may add are UNKNOWN, never an error: a status line with one strange word in it beats no status line.
"""

from __future__ import annotations

from enum import Enum


class JobState(Enum):
    """What a state means to us; the value is the word that users see."""

    PENDING = "pending"
    """Waits to start, again or for the first time."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Stopped in the middle by Slurm; goes on by itself."""
    COMPLETING = "completing"
    """The last processes are leaving; the next state says how it ended."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The job's own exit code was not 0."""
    CANCELLED = "cancelled"
    TIMEOUT = "timed out"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN = "unknown"
    """A word that this table does not have."""

    @property
    def is_ended(self) -> bool:
        """True when the job runs no more and, unless somebody requeues it, never will."""
        return self not in _NOT_ENDED


_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING, JobState.UNKNOWN})

STATES: dict[JobState, str] = {
    # CONFIGURING: the nodes still boot. REQUEUE_HOLD waits for `scontrol release`; the reason says so.
    JobState.PENDING: "PENDING CONFIGURING EXPEDITING POWER_UP_NODE RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "RESV_DEL_HOLD SPECIAL_EXIT",
    JobState.RUNNING: "RUNNING RESIZING SIGNALING",
    JobState.SUSPENDED: "SUSPENDED STOPPED",
    JobState.COMPLETING: "COMPLETING STAGE_OUT UPDATE_DB",
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED",
    # REVOKED: another cluster of the federation started it; here it is gone.
    JobState.CANCELLED: "CANCELLED REVOKED",
    JobState.TIMEOUT: "TIMEOUT DEADLINE",
    JobState.PREEMPTED: "PREEMPTED",
    JobState.NODE_FAIL: "NODE_FAIL BOOT_FAIL LAUNCH_FAILED",
    JobState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
}
"""Slurm's long words for each, as squeue prints them with %T and sacct with --parsable2."""
_MEANINGS = {word: state for state, words in STATES.items() for word in words.split()}


def parse_state(text: str) -> JobState:
    """The meaning of a state as squeue, sacct or scontrol print it.

    >>> parse_state("CANCELLED by 1000"), parse_state("BRAND_NEW")
    (<JobState.CANCELLED: 'cancelled'>, <JobState.UNKNOWN: 'unknown'>)
    """
    return _MEANINGS.get((text.upper().split() or [""])[0], JobState.UNKNOWN)
