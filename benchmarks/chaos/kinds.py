"""The faults there are: one row each, its function of the same name in deeds.py."""

from dataclasses import dataclass
from typing import Literal

Seen = Literal["", "process", "node"]


@dataclass(frozen=True)
class Kind:
    """One sort of fault."""

    name: str
    """`what/how`; the function is deeds.<what>_<how>."""
    lasts_s: tuple[float, float]
    """From the shortest to the longest; (0, 0): a moment."""
    seen: Seen = ""
    """Which promise of being seen in time it is measured against; "" for what may pass without anybody's notice."""
    needs: Literal["", "disk", "accounting", "demo", "its name"] = ""
    """What not every storm has; `its name`: falls only where --only names it."""


_MOMENT = (0.0, 0.0)
_SHORT = (3.0, 8.0)
KINDS = (
    Kind("trainer/kill", _MOMENT, "process"),
    Kind("rank/kill", _MOMENT, "process"),
    Kind("ray/kill", _MOMENT, "process"),
    Kind("agent/kill", _MOMENT, "process"),
    Kind("controller/kill", _MOMENT, "process"),
    Kind("engine/kill", _MOMENT, "process", needs="demo"),
    Kind("trainer/stop", _SHORT),
    Kind("rank/stop", _SHORT),
    Kind("agent/stop", _SHORT),
    Kind("controller/stop", _SHORT),
    Kind("node/power", (15.0, 30.0), "node"),
    Kind("node/reboot", _MOMENT, "node"),
    Kind("slurmd/kill", _SHORT),
    Kind("slurmctld/kill", _SHORT),
    Kind("slurmctld/restart", _MOMENT),
    Kind("slurmdbd/kill", _SHORT, needs="accounting"),
    Kind("job/preempt", _SHORT),
    Kind("job/requeue", _MOMENT),
    Kind("disk/full", _SHORT, needs="disk"),
    Kind("disk/freeze", _SHORT, needs="disk"),
    Kind("disk/slow", (5.0, 15.0), needs="disk"),
    Kind("network/pair", (5.0, 15.0)),
    # Long enough that Slurm gives the node up and starts the job again, while its first start lives on.
    Kind("network/slurmctld", (40.0, 50.0)),
    # The same in a short storm, which has no time for Slurm's own.
    Kind("network/down", (1.0, 2.0), needs="its name"),
    Kind("clock/jump", (5.0, 15.0)),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def choose_kinds(has: frozenset[str]) -> tuple[Kind, ...]:
    """The rows whose needs are met."""
    return tuple(kind for kind in KINDS if not kind.needs or kind.needs in has)
