"""Hooks by which a launcher reaches the plugins: each loads its plugin by name, at the first call.

They run in the controller, in its only thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from slurm_rl.config.user_files.load import load_function

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.job import JobPlan
    from slurm_rl.run_dir.run_dir import AttemptDir, RunDir
    from slurm_rl.run_dir.save_times import Measured


@dataclass(frozen=True)
class Exclusion:
    """Nodes that the next start of a job must not get."""

    names: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Bad nodes that are not excluded, with the reason."""


@dataclass(frozen=True)
class NodeVerdicts:
    """Result of the checks before an attempt."""

    unfit: dict[str, str] = field(default_factory=dict)
    """Nodes that must not run the attempt, with the reason."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the event preflight/passed."""


class NodeChecks(Protocol):
    """Checks of the nodes of one run; opened once per start of the controller."""

    def remembered(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return those of the nodes that earlier attempts or runs found bad, with the reason."""

    def before_attempt(self, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> NodeVerdicts:
        """Check all nodes. Raises BringUpError if the cause is not a single node, or by policy."""

    def exclusion(self, hosts: Sequence[str] = ()) -> Exclusion:
        """Choose the nodes to exclude at the next start, when the job has `hosts` now. Raises SlurmRLError."""


def open_node_checks(run: RunDir, plan: JobPlan) -> NodeChecks:
    """Return the checks of the run's nodes."""
    return cast("NodeChecks", load_function("slurm_rl.plugins.health.memory:HealthChecks")(run, plan))


class CheckpointEvals(Protocol):
    """Evaluation jobs of the checkpoints of a run."""

    def look(self) -> None:
        """Submit those of new checkpoints in a child process. Cheap."""

    def finish(self) -> None:
        """Submit that of the last checkpoint."""


def open_checkpoint_evals(run: RunDir) -> CheckpointEvals:
    return cast("CheckpointEvals", load_function("slurm_rl.plugins.evals.submit:EvalSubmitter")(run))


def check_checkpoint_evals(config: RunConfig, run: RunDir) -> None:
    """Raise ConfigError if an evaluation job of this run is not possible."""
    load_function("slurm_rl.plugins.evals.check:check_eval_job")(config, run)


def learn_save_times(run: RunDir) -> Measured:
    """Measure the saves of the run so far, and write learned.json."""
    return cast("Measured", load_function("slurm_rl.plugins.goodput.measure_saves:learn")(run))


def summarize(run: RunDir) -> dict[str, Any]:
    """Return the content of summary.json."""
    return cast("dict[str, Any]", load_function("slurm_rl.plugins.report.summary:summarize_run")(run))


def finish_sinks(run: RunDir, config: Mapping[str, Any]) -> None:
    """Run logging.on_end, and send the last events to a collector."""
    load_function("slurm_rl.plugins.sinks.at_end:finish")(run, config)


def write_report(run: RunDir) -> Path:
    """Write summary.json and report.html. Returns the path of the latter."""
    load_function("slurm_rl.plugins.report.summary:write_summary")(run)
    return cast("Path", load_function("slurm_rl.plugins.report.html:write_report")(run))
