"""Table of fault kinds; the function of the same name is in inject.py."""

from dataclasses import dataclass
from typing import Literal

Detection = Literal["", "process", "node"]


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    """`target/fault`; the function is inject.<target>_<fault>."""
    lasts_s: tuple[float, float]
    """Shortest and longest duration; (0, 0) for a momentary fault."""
    detected_by: Detection = ""
    """Guarantee for the time until it is noticed; "" if it may pass unnoticed."""
    needs: Literal["", "disk", "accounting", "demo", "its name"] = ""
    """Required feature of the storm; `its name`: only if --only names the kind."""


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
    # Long enough that Slurm gives up the node and restarts the job while its first start is alive.
    Kind("network/slurmctld", (40.0, 50.0)),
    # The same for a short storm, without Slurm's timeout.
    Kind("network/down", (1.0, 2.0), needs="its name"),
    Kind("clock/jump", (5.0, 15.0)),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def choose_kinds(has: frozenset[str]) -> tuple[Kind, ...]:
    """Return the kinds with their requirements met."""
    return tuple(kind for kind in KINDS if not kind.needs or kind.needs in has)
