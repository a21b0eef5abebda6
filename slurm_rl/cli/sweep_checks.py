"""Compose, validate, plan and check every run of a sweep before anything is written or submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.cli.output import note
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_parts import named_functions
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.start import ask_cluster, plan_in
from slurm_rl.launch.slurm.sweep_arrays import group_runs
from slurm_rl.launch.sweep.create import PlannedRun
from slurm_rl.launch.sweep.ledger import SweepDir, SweepRun, swept_overrides
from slurm_rl.launch.sweep.sweeper import Composer
from slurm_rl.plan.image_file import check_image_is_there
from slurm_rl.plan.job import JobPlan

_MOST_SHOWN = 20


@dataclass
class Problems:
    """Errors of the runs of a sweep; runs with the same error share a line."""

    runs: list[SweepRun]
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, position: int, error: SlurmRLError) -> None:
        self.found.setdefault(str(error), []).append(position)

    def raise_if_any(self) -> None:
        """Raise all errors as one.

        Raises:
            ConfigError: there is at least one.
        """
        if not self.found:
            return
        number = len({position for positions in self.found.values() for position in positions})
        lines = [self._render(error, positions).replace("\n", "\n    ") for error, positions in self.found.items()]
        if len(lines) > _MOST_SHOWN:
            lines[_MOST_SHOWN:] = [f"and {len(lines) - _MOST_SHOWN} more errors"]
        raise ConfigError(
            f"every run of a sweep must be valid; {number} of {len(self.runs)} are not, and nothing was submitted:"
            + "".join(f"\n  {line}" for line in lines)
        )

    def _render(self, error: str, positions: list[int]) -> str:
        first = self.runs[positions[0]]
        swept = swept_overrides(self.runs)[positions[0]]
        words = [f"{key}={value}" for key, value in swept.items()] or first.overrides
        more = f" (and {len(positions) - 1} more)" if len(positions) > 1 else ""
        return f"{' '.join(words)}{more}: {error}"


def plan_runs(
    composer: Composer, batch: Sequence[Sequence[str]], sweep: SweepDir, *, first_index: int
) -> list[PlannedRun]:
    """Return configs and plans of these runs.

    Raises:
        ConfigError: some are not valid; all errors at once, with the overrides of their runs.
    """
    entries = [SweepRun(first_index + place, tuple(overrides)) for place, overrides in enumerate(batch)]
    problems, planned = Problems(entries), []
    seen: dict[str, SlurmRLError | None] = {}
    for position, entry in enumerate(entries):
        try:
            config = parse_config(composer.compose(entry.overrides), is_run=True)
            _check_has_no_place(config)
            plan = _plan(config, sweep, entry.index)
            _check_is_one_component(plan)
            _check_once(config, seen)
            planned.append(PlannedRun(entry.index, entry.overrides, config, plan))
        except SlurmRLError as error:
            problems.add(position, error)
    problems.raise_if_any()
    _check_one_launcher(planned)
    return planned


def _check_has_no_place(config: RunConfig) -> None:
    if config.run_dir is not None:
        raise ConfigError(
            "run_dir must not be set in a sweep, which numbers its run directories",
            seen=config.run_dir,
            action="choose the folder above them: hydra.sweep.dir=...",
        )


def _check_is_one_component(plan: JobPlan) -> None:
    if plan.het:
        raise ConfigError(
            "a sweep needs a job array, and Slurm has no arrays of heterogeneous jobs",
            seen=f"cluster.nodes with {', '.join(kind.name for kind in plan.node_groups)}",
            action="submit these runs one by one, without -m",
        )


def _plan(config: RunConfig, sweep: SweepDir, index: int) -> JobPlan:
    plan = plan_in(config, sweep.run(index))
    if plan.container["image"] is None:
        return plan
    # `code` in the run directory is a link out of it, and only the run directory is mounted by itself.
    mount = {"source": str(sweep.code), "target": str(sweep.code), "read_only": True}
    return replace(plan, container={**plan.container, "mounts": [*plan.container["mounts"], mount]})


def _check_once(config: RunConfig, seen: dict[str, SlurmRLError | None]) -> None:
    """Check each model and data set once; `seen` caches its error."""
    key = f"{config.data!r} {config.model.path!r} {config.model.init_from!r} {named_functions(config)!r}"
    key += f" {config.checkpoint.upload_url!r}"
    if key not in seen:
        seen[key] = None
        try:
            check_inputs(config, note)
        except SlurmRLError as error:
            seen[key] = error
    if (known := seen[key]) is not None:
        raise known


def _check_one_launcher(planned: Sequence[PlannedRun]) -> None:
    launchers = {run.plan.launcher: run.plan.launcher_entry for run in planned}
    for name, row in launchers.items():
        if row.by_node or not (row.sweep or row.on_this_machine):
            raise ConfigError(
                "a sweep runs on Slurm or on this machine",
                seen=f"cluster.launcher={name}",
                action="submit its runs one by one",
            )
    if len(launchers) > 1:
        raise ConfigError(
            "all runs of a sweep must have the same cluster.launcher",
            seen=" and ".join(f"cluster.launcher={launcher}" for launcher in sorted(launchers)),
            action="submit one sweep per launcher",
        )


def check_clusters(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Submit these jobs as a test, once for runs with equal requests.

    Returns:
        The runs with the cluster's names of resources.

    Raises:
        ConfigError: the cluster refuses some; the message has all refusals.
    """
    problems = Problems([SweepRun(run.index, run.overrides) for run in planned])
    taken = list(planned)
    for group in group_runs(planned):
        try:
            check_image_is_there(planned[group[0]].plan)
            plan = ask_cluster(planned[group[0]].plan, note)
            for position in group:
                taken[position] = _with_gres_of(planned[position], plan)
        except SlurmRLError as error:
            for position in group:
                problems.add(position, error)
    problems.raise_if_any()
    return taken


def _with_gres_of(run: PlannedRun, plan: JobPlan) -> PlannedRun:
    options = run.plan.sbatch | {name: value for name, value in plan.sbatch.items() if name == "gres"}
    return replace(run, plan=replace(run.plan, sbatch=options))
