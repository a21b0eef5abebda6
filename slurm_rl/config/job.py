"""What every run has: how long its job runs, what happens when it ends early, its Ray cluster, where its numbers go."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section, checked_by
from slurm_rl.config.text import OneLine

PLANNED_LEAD_S = 120
_TIME_FORMS = {
    r"(?P<m>\d+)": "minutes",
    r"(?P<m>\d+):(?P<s>\d+)": "MM:SS",
    r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "HH:MM:SS",
    r"(?P<d>\d+)-(?P<h>\d+)": "D-HH",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+)": "D-HH:MM",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "D-HH:MM:SS",
}


def parse_minutes(value: str | int) -> int:
    """Minutes of a Slurm time limit, seconds rounded up as Slurm does.

    >>> parse_minutes("1-02:00:00"), parse_minutes("10:30"), parse_minutes(45)
    (1560, 11, 45)
    """
    text = str(value).strip()
    for pattern in _TIME_FORMS:
        match = re.fullmatch(pattern, text)
        if match:
            parts = {key: int(number) for key, number in match.groupdict().items()}
            seconds = parts.get("d", 0) * 86400 + parts.get("h", 0) * 3600 + parts.get("m", 0) * 60 + parts.get("s", 0)
            if seconds > 0:
                return -(-seconds // 60)
    raise ValueError(f"a time limit is one of {', '.join(_TIME_FORMS.values())} and above 0; got {text!r}")


class JobConfig(Section):
    """Time, signals and restarts."""

    time_limit: Annotated[OneLine, checked_by(parse_minutes)] | None = None
    """When the job ends at the latest, in Slurm's forms (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS); null:
    the partition's default."""
    signal_lead_s: PositiveInt | Literal["auto"] = "auto"
    """Seconds before the limit at which the run is told to save; auto: 120, and more once its own saves and steps have
    shown that they need it."""
    max_failures: NonNegativeInt = 0
    """Attempts that may fail before the run gives up; bad input is never tried again."""
    num_spare_nodes: NonNegativeInt = 0
    """Nodes to hold beyond cluster.num_nodes: when one is lost the run goes on in the same job, without a requeue."""
    start_timeout_s: PositiveFloat = 600.0
    """Deadline from the start of the attempt to all nodes being in the Ray cluster, or at torchrun's rendezvous."""
    hang_after_s: PositiveFloat = 300.0
    """Shortest time without a sign of life after which a rank or an engine hangs. Each phase has its own deadline: five
    times its longest silence so far, and trainer.step_timeout_s until it has been there five times."""
    after: str | None = None
    """Directory of a run that must have finished before this one starts; Slurm holds the job until then. model.path may
    be the export that it will leave, <run>/export."""
    debug: bool = False
    """Ray's debugger, a larger flight recorder of NCCL or RCCL, and verbose logs; `plan` shows each with its reason."""
    debugger: Literal["distributed", "legacy"] = "distributed"
    """With debug: Ray's debugger of VS Code, in which a task that raises waits; or `ray debug`."""

    @property
    def planned_lead_s(self) -> int:
        """The lead as far as it is known before a run has saved."""
        return PLANNED_LEAD_S if self.signal_lead_s == "auto" else self.signal_lead_s

    @property
    def time_limit_min(self) -> int | None:
        """The limit in whole minutes, as Slurm rounds it."""
        return None if self.time_limit is None else parse_minutes(self.time_limit)


class RayConfig(Section):
    """Sizes and the dashboard."""

    object_store_gb: PositiveFloat = 2.0
    """Shared memory for objects on each node, in GB; all weights at once where they go by ray
    (rollout.weight_transfer)."""
    dashboard: bool = True
    """Serve Ray's dashboard on the head's loopback address, and `ray job` with it; false saves 2 s of bring-up."""
    dashboard_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Where it listens, for what forwards a port that must be known beforehand; null takes one of the job's own free
    ports."""


class WandbConfig(Section):
    """Weights & Biases. The key comes from WANDB_API_KEY or ~/.netrc, never from here."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online when a key is in the environment, else disabled."""
    project: str = "slurm_rl"
    """Project of W&B that the run appears in."""
    entity: str | None = None
    """User or team; null takes the account's default."""


class LoggingConfig(Section):
    """Reporting."""

    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    samples_per_step: NonNegativeInt = 4
    """Completions of each step kept in samples.jsonl for the report."""
