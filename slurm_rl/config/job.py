"""What every run has: how long its job runs, what happens when it ends early, its Ray cluster, where its numbers go."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section
from slurm_rl.config.times import parse_minutes


class JobConfig(Section):
    """Time, signals and restarts."""

    time_limit: str | int | None = None
    """Slurm's forms (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS); null: the partition's default."""
    signal_lead_s: PositiveInt = 120
    """Seconds before the limit at which the run is told to save."""
    max_failures: NonNegativeInt = 0
    """Attempts that may fail before the run gives up; bad input is never tried again."""
    num_spare_nodes: NonNegativeInt = 0
    """Nodes to hold beyond cluster.num_nodes: when one is lost the run goes on in the same job, without a requeue."""
    start_timeout_s: PositiveFloat = 600.0
    """Deadline from the start of the attempt to all nodes being in the Ray cluster, or at torchrun's rendezvous."""
    debug: bool = False
    """Ray's debugger, a larger flight recorder of NCCL or RCCL, and verbose logs; `plan` shows each with its reason."""
    debugger: Literal["distributed", "legacy"] = "distributed"
    """With debug: Ray's debugger of VS Code, in which a task that raises waits; or `ray debug`."""

    @field_validator("time_limit")
    @classmethod
    def _is_a_time(cls, value: str | int | None) -> str | int | None:
        if value is not None:
            parse_minutes(value)
        return value

    @property
    def time_limit_min(self) -> int | None:
        """The limit in whole minutes, as Slurm rounds it."""
        return None if self.time_limit is None else parse_minutes(self.time_limit)


class RayConfig(Section):
    """Sizes and the dashboard."""

    object_store_gb: PositiveFloat = 2.0
    """Shared memory for objects on each node; a weight sync passes the whole model through it."""
    dashboard: bool = True
    """Serve Ray's dashboard on the head's loopback address, and `ray job` with it; false saves 2 s of bring-up."""


class WandbConfig(Section):
    """Weights & Biases. The key comes from WANDB_API_KEY or ~/.netrc, never from here."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online when a key is in the environment, else disabled."""
    project: str = "slurm_rl"
    """Project name."""
    entity: str | None = None
    """User or team; null takes the account's default."""


class LoggingConfig(Section):
    """Reporting."""

    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    samples_per_step: NonNegativeInt = 4
    """Completions of each step kept in samples.jsonl for the report."""
