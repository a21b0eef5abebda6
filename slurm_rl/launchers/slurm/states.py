"""Every state a Slurm job can be in, and what it means to us.

squeue, sacct and scontrol share these words; sacct adds to some of them ("CANCELLED by 1000") and cuts
long ones ("OUT_OF_ME+"). States that a later Slurm may add are UNKNOWN, never an error: a status line
with one strange word in it beats no status line.
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

# Long word, short code, meaning. Order and wording follow Slurm's own list of job states.
STATES: tuple[tuple[str, str, JobState], ...] = (
    ("BOOT_FAIL", "BF", JobState.NODE_FAIL),
    ("CANCELLED", "CA", JobState.CANCELLED),
    ("COMPLETED", "CD", JobState.COMPLETED),
    ("COMPLETING", "CG", JobState.COMPLETING),
    # The nodes are allocated but still boot: nothing of ours runs yet.
    ("CONFIGURING", "CF", JobState.PENDING),
    ("DEADLINE", "DL", JobState.TIMEOUT),
    ("EXPEDITING", "EX", JobState.PENDING),
    ("FAILED", "F", JobState.FAILED),
    ("LAUNCH_FAILED", "LF", JobState.NODE_FAIL),
    ("NODE_FAIL", "NF", JobState.NODE_FAIL),
    ("OUT_OF_MEMORY", "OOM", JobState.OUT_OF_MEMORY),
    ("PENDING", "PD", JobState.PENDING),
    ("POWER_UP_NODE", "PU", JobState.PENDING),
    ("PREEMPTED", "PR", JobState.PREEMPTED),
    ("RECONFIG_FAIL", "RF", JobState.PENDING),
    ("REQUEUED", "RQ", JobState.PENDING),
    ("REQUEUE_FED", "RF", JobState.PENDING),
    # Held: waits for `scontrol release`; the reason column says so.
    ("REQUEUE_HOLD", "RH", JobState.PENDING),
    ("RESIZING", "RS", JobState.RUNNING),
    ("RESV_DEL_HOLD", "RD", JobState.PENDING),
    # Another cluster of the federation started it; here it is gone.
    ("REVOKED", "RV", JobState.CANCELLED),
    ("RUNNING", "R", JobState.RUNNING),
    ("SIGNALING", "SI", JobState.RUNNING),
    ("SPECIAL_EXIT", "SE", JobState.PENDING),
    ("STAGE_OUT", "SO", JobState.COMPLETING),
    ("STOPPED", "ST", JobState.SUSPENDED),
    ("SUSPENDED", "S", JobState.SUSPENDED),
    ("TIMEOUT", "TO", JobState.TIMEOUT),
    ("UPDATE_DB", "UD", JobState.COMPLETING),
)

_LONG = {long: state for long, _, state in STATES}
_SHORT = {short: state for _, short, state in STATES}


def parse_state(text: str) -> JobState:
    """The meaning of a state as squeue, sacct or scontrol print it.

    >>> parse_state("CANCELLED by 1000"), parse_state("OUT_OF_ME+"), parse_state("PD")
    (<JobState.CANCELLED: 'cancelled'>, <JobState.OUT_OF_MEMORY: 'out of memory'>, <JobState.PENDING: 'pending'>)
    """
    words = text.split()
    word = words[0].upper() if words else ""
    if word.endswith("+"):
        return _parse_cut(word.rstrip("+"))
    return _LONG.get(word) or _SHORT.get(word) or JobState.UNKNOWN


def _parse_cut(stem: str) -> JobState:
    # "CANCELLED+" is whole, only the "by 1000" was cut; "COMPLET+" could be two states, so it is neither.
    if stem in _LONG:
        return _LONG[stem]
    meanings = {state for long, state in _LONG.items() if stem and long.startswith(stem)}
    return meanings.pop() if len(meanings) == 1 else JobState.UNKNOWN
