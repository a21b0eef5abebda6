"""Optional parts of slurm_rl. The core never imports them; they attach by the hooks below.

A plugin is a package below this one with its own tests and docs. `PLUGINS` names its hook object, which is imported
when the core first needs it. Hooks run in the controller, in its only thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from slurm_rl.config.user_files.load import load_function

if TYPE_CHECKING:
    from slurm_rl.plan.job import JobPlan
    from slurm_rl.run_dir.run_dir import AttemptDir, RunDir


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


class Plugin(Protocol):
    """Hooks of a plugin; each may be absent."""

    commands: Mapping[str, str]
    """CLI verb -> `module:function`, called with the words after the verb; returns the exit status."""

    def before_attempt(self, run: RunDir, plan: JobPlan) -> NodeChecks:
        """Return the checks of the run's nodes."""

    def on_event(self, run: RunDir, row: Mapping[str, Any]) -> None:
        """Observe an event after it was written. Must not raise."""

    def on_metrics(self, run: RunDir, row: Mapping[str, Any]) -> None:
        """Observe a row of metrics after it was written. Must not raise."""


PLUGINS: Final[Mapping[str, str]] = {"health": "slurm_rl.plugins.health:PLUGIN"}
"""Name -> `module:object` of its Plugin."""


@functools.cache
def load_plugins() -> list[Plugin]:
    """Import all plugins."""
    return [cast("Plugin", load_function(path)) for path in PLUGINS.values()]


class _NoChecks:
    def remembered(self, hosts: Sequence[str]) -> dict[str, str]:
        return {}

    def before_attempt(self, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> NodeVerdicts:
        return NodeVerdicts()

    def exclusion(self, hosts: Sequence[str] = ()) -> Exclusion:
        return Exclusion()


def open_node_checks(run: RunDir, plan: JobPlan) -> NodeChecks:
    """Return the checks of the first plugin that has any; without one, all nodes pass."""
    for plugin in load_plugins():
        if hasattr(plugin, "before_attempt"):
            return plugin.before_attempt(run, plan)
    return _NoChecks()
