"""States of a Slurm job, and their meaning for a run.

squeue, sacct and scontrol share these names; sacct appends to some ("CANCELLED by 1000"). States of later versions of
Slurm are UNKNOWN, never an error.
"""

from enum import Enum


class JobState(Enum):
    """Meaning of a state; the value is shown to users."""

    PENDING = "pending"
    """Waits to start, again or for the first time."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Interrupted by Slurm; continues by itself."""
    COMPLETING = "completing"
    """The last processes are ending; the next state has the outcome."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The job's exit code was not 0."""
    CANCELLED = "cancelled"
    TIMEOUT = "timed out"
    PREEMPTED = "preempted"
    NODE_FAIL = "node failed"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN = "unknown"

    @property
    def is_ended(self) -> bool:
        """Whether the job has ended and will not run again without a requeue."""
        return self not in _NOT_ENDED


_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING, JobState.UNKNOWN})

STATES: dict[JobState, str] = {
    # CONFIGURING: the nodes are booting. REQUEUE_HOLD waits for `scontrol release`; the reason names it.
    JobState.PENDING: "PENDING CONFIGURING EXPEDITING POWER_UP_NODE RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "RESV_DEL_HOLD SPECIAL_EXIT",
    JobState.RUNNING: "RUNNING RESIZING SIGNALING",
    JobState.SUSPENDED: "SUSPENDED STOPPED",
    JobState.COMPLETING: "COMPLETING STAGE_OUT UPDATE_DB",
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED",
    # REVOKED: another cluster of the federation started it; this one removed it.
    JobState.CANCELLED: "CANCELLED REVOKED",
    JobState.TIMEOUT: "TIMEOUT DEADLINE",
    JobState.PREEMPTED: "PREEMPTED",
    JobState.NODE_FAIL: "NODE_FAIL BOOT_FAIL LAUNCH_FAILED",
    JobState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
}
"""Slurm's long words for each, as squeue prints them with %T and sacct with --parsable2."""
_MEANINGS = {word: state for state, words in STATES.items() for word in words.split()}


def parse_state(text: str) -> JobState:
    """Return the meaning of a state as squeue, sacct or scontrol print it.

    >>> parse_state("CANCELLED by 1000"), parse_state("BRAND_NEW")
    (<JobState.CANCELLED: 'cancelled'>, <JobState.UNKNOWN: 'unknown'>)
    """
    return _MEANINGS.get((text.upper().split() or [""])[0], JobState.UNKNOWN)
