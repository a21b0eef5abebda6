"""The exception tree. Every error has the rule, the value seen and the next action.

Each class also fixes the exit code of the command: 2 for bad input, 1 for a failed run, 130 for an interrupted one.
Errors cross process borders (Ray, submitit), so they can be pickled: `__reduce__` passes all state as keyword
arguments.

    >>> print(ConfigError("group_size must be >= 2", seen=1, action="set algorithm.group_size=8"))
    group_size must be >= 2; got 1. Next: set algorithm.group_size=8
"""

from collections.abc import Iterable
from typing import Any

_UNSET: Any = object()


class SlurmRLError(Exception):
    """Base class of all errors raised on purpose.

    Args:
        rule: required condition, in one clause.
        seen: the value that violates it; omitted if there is none to show.
        action: next action for the user.
        where: host and log path, for errors on a cluster.
    """

    exit_code: int = 1

    def __init__(self, rule: str, *, seen: Any = _UNSET, action: str | None = None, where: str | None = None) -> None:
        super().__init__(rule)
        self.rule = rule
        self.seen = seen
        self.action = action
        self.where = where

    def __str__(self) -> str:
        text = self.rule if self.seen is _UNSET else f"{self.rule}; got {_show(self.seen)}"
        if self.where:
            text += f" [{self.where}]"
        if self.action:
            text += f". Next: {self.action}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"action": self.action, "where": self.where}
        if self.seen is not _UNSET:
            state["seen"] = _show(self.seen)
        return _rebuild, (type(self), self.rule, state)


def _show(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without the pages that some append."""
    return str(error).strip().partition("\n")[0]


def find_near(word: str, options: Iterable[str]) -> str | None:
    """The option that a mistyped word is closest to.

    >>> find_near("statsu", ["status", "logs"])
    'status'
    """
    import difflib

    # A long word is no misspelling of a short one, and the cost is the product of both lengths.
    return next(iter(difflib.get_close_matches(word[:100], list(options), n=1)), None)


def _rebuild(cls: type[SlurmRLError], rule: str, state: dict[str, Any]) -> SlurmRLError:
    return cls(rule, **state)


class ConfigError(SlurmRLError):
    """The user's input breaks a rule; found before anything starts."""

    exit_code = 2


class DataError(ConfigError):
    """A data file is missing, malformed (with the line), or does not fit the model."""


class MissingLibraryError(ConfigError):
    """A package for this input is not installed on this machine; it may be on the nodes."""


class SubmitError(ConfigError):
    """The scheduler refused the job; carries the scheduler's own words."""


class UnknownJobError(SubmitError):
    """The scheduler may have queued the job, but its id is not known: the run directory must stay."""


class RunDirError(ConfigError):
    """The named run directory is missing, incomplete, or belongs to another run."""


class LeaseError(RunDirError):
    """Another controller owns the run; the process must end its children and stop writing."""


class PrepareError(SlurmRLError):
    """A download or an extraction did not get to its end; running `prepare` again resumes it."""


class BringUpError(SlurmRLError):
    """The nodes, Ray or the rollout engines did not come up; the message names the missing ones."""


class WaitError(SlurmRLError):
    """A wait reached its deadline; the message names the last value seen."""


class RewardError(SlurmRLError):
    """More rewards failed than `reward.max_failure_rate` allows."""


class WeightSyncError(SlurmRLError):
    """A rollout engine does not hold the weights the policy sent."""


class CheckpointError(SlurmRLError):
    """A checkpoint could not be written, or none that verifies could be read."""


class TrainingError(SlurmRLError):
    """The training itself failed: a loss or gradient that is not finite, a dead worker."""


class OutOfMemory(TrainingError):
    """A worker ran out of memory; the rule has the purpose, `where` the worker."""


class StopRequested(SlurmRLError):
    """A signal asked the run to save and end (time limit, preemption, Ctrl-C)."""

    exit_code = 130
