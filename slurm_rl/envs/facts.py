"""Declarations of an environment class, read in the process that imported it, and their validation."""

import hashlib
import inspect
from pathlib import Path
from typing import Any, Final, NamedTuple

from slurm_rl.config.user_files.load import find_file, is_file
from slurm_rl.envs.environment import Environment
from slurm_rl.envs.tools import MakeToolEnvironment

WAYS: Final = ("snapshot", "replay", "restart")
_HOOKS = ("snapshot", "restore")


class Facts(NamedTuple):
    resume: str
    """One of WAYS; of programs rollout/turn_log.py has another."""
    version: str


class Refused(NamedTuple):
    """Reason why the configured environment cannot be created."""

    rule: str
    seen: str
    action: str


def read_facts(make: Any, spec: str) -> Facts | Refused:
    """Return the declarations of `make`, which was loaded as `spec`.

    >>> class Shop(Environment):
    ...     resume = "snapshot"
    ...     version = "2"
    >>> read_facts(Shop, "shop.py:Shop").seen
    'Shop without snapshot() and restore(row, data)'
    """
    cls = make.tools if isinstance(make, MakeToolEnvironment) else make
    resume = getattr(cls, "resume", Environment.resume)
    if resume not in WAYS:
        return Refused(f"resume must be one of {', '.join(WAYS)}", f"{resume!r} of {_name(cls)}", "correct the class")
    if resume == "snapshot" and (lacking := [hook for hook in _HOOKS if not _has(cls, hook)]):
        spelled = {"snapshot": "snapshot()", "restore": "restore(row, data)"}
        seen = f"{_name(cls)} without {' and '.join(spelled[hook] for hook in lacking)}"
        rule = 'a class with resume = "snapshot" must define how its instances are saved and restored'
        return Refused(
            rule, seen, 'define the missing methods; or resume = "replay", if the same replies restore an instance'
        )
    return Facts(resume, find_version(make, spec))


def find_version(make: Any, spec: str) -> str:
    """Return the version of the class, or a hash of its file."""
    if own := getattr(make, "version", ""):
        return str(own)
    file = find_file(spec) if is_file(spec) else Path(inspect.getfile(make))
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _has(cls: Any, hook: str) -> bool:
    found = getattr(cls, hook, None)
    return callable(found) and found is not getattr(Environment, hook)


def _name(cls: Any) -> str:
    return str(getattr(cls, "__name__", cls))
