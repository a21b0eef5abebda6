"""`-m`: a sweep. Hydra's sweeper generates the overrides; every run is checked before the first is submitted.

On Slurm the runs are an array, on this machine they go one after the other.
"""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.foreground import announce_and_follow
from slurm_rl.cli.output import note
from slurm_rl.cli.status import LEADERBOARD
from slurm_rl.cli.sweep_checks import check_clusters, plan_runs
from slurm_rl.config.compose_errors import explain_hydra
from slurm_rl.config.load import open_hydra
from slurm_rl.config.overrides import normalise_words
from slurm_rl.config.tasks import TASKS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import RunDirError, SlurmRLError, TrainingError, UnknownJobError
from slurm_rl.launch.controller.attempts import EXIT_INTERRUPTED
from slurm_rl.launch.controller.record import RunState
from slurm_rl.launch.jobs import read_states, submit_run, wait_for_runs
from slurm_rl.launch.runs.find import remember
from slurm_rl.launch.runs.start import Started
from slurm_rl.launch.sweep.create import PlannedRun, create_runs, remove_sweep
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, load_ledger
from slurm_rl.launch.sweep.sweeper import Composer, Outcome, compose_sweep, run_sweeper
from slurm_rl.run_dir.run_dir import RunDir

READ_METRIC = "slurm_rl.plugins.report.leaderboard:read_metric"


class SweepRuns:
    """Starts batches of checked runs, and returns their metrics if the sweeper waits for them."""

    def __init__(self, directory: SweepDir, ledger: Ledger) -> None:
        self.directory = directory
        self.ledger = ledger
        self.is_started = False
        self._has_ended = False
        self._exit_code = 0

    def start(self, planned: Sequence[PlannedRun], *, wait: bool) -> list[Outcome]:
        """Write and start these runs. Return the outcome of each, or None if `wait` is False.

        Raises:
            SlurmRLError: Slurm refused them, or the directory cannot be written.
        """
        ledger = create_runs(self.directory, self.ledger, planned)
        submit_all = planned[0].plan.launcher_entry.sweep
        if submit_all is None:
            self.ledger, self.is_started = ledger, True
            remember(self.directory.path, [])
            self._run_here(planned)
        else:
            self._submit(ledger, planned, load_function(submit_all))
            if not wait:
                return [None] * len(planned)
            wait_for_runs([self.directory.run(run.index) for run in planned], note)
        self._has_ended = True
        runs = [self.directory.run(entry.index) for entry in planned]
        return [self._outcome(run, state) for run, state in zip(runs, read_states(runs), strict=True)]

    def _submit(self, ledger: Ledger, planned: Sequence[PlannedRun], submit_all: Callable[..., Ledger]) -> None:
        is_first = not self.is_started
        # A job may be queued from now on, unless Slurm refuses the first array.
        self.is_started = True
        try:
            self.ledger = submit_all(self.directory, ledger, planned)
        except UnknownJobError:
            raise
        except SlurmRLError:
            self.is_started = any(run.array_job for run in load_ledger(self.directory).runs)
            raise
        remember(self.directory.path, list(dict.fromkeys(str(run.array_job) for run in self.ledger.runs)))
        if is_first:
            note(self._describe())

    def _run_here(self, planned: Sequence[PlannedRun]) -> None:
        for place, entry in enumerate(planned, start=1):
            note(f"\nrun {place} of {len(planned)}: {' '.join(entry.overrides)}")
            run = self.directory.run(entry.index)
            code = announce_and_follow(Started(run, entry.plan, submit_run(run, entry.plan)))
            self._exit_code = max(self._exit_code, code)
            if code == EXIT_INTERRUPTED:
                left = len(planned) - place
                note(f"slurm_rl: {left} runs are not started; each can be: python -m slurm_rl resume <run>")
                raise KeyboardInterrupt

    def _outcome(self, run: RunDir, state: RunState) -> Outcome:
        name, value = run.path.name, load_function(READ_METRIC)(run, self.ledger.metric)
        if state.word == "finished" and value is not None:
            return value
        seen = f"run {name}: {state}" if value is not None else f"run {name} without a value: {state}"
        return TrainingError(f"every run must finish with a number for {self.ledger.metric}", seen=seen)

    def _describe(self) -> str:
        """Return paths and the next commands."""
        path = shlex.quote(str(self.directory.path))
        jobs = list(dict.fromkeys(str(run.array_job) for run in self.ledger.runs))
        arrays = "1 array" if len(jobs) == 1 else f"{len(jobs)} arrays"
        return "\n".join(
            [
                f"sweep   {self.directory.path}",
                f"jobs    {len(self.ledger.runs)} runs in {arrays}: {' '.join(jobs)}",
                f"status  python -m slurm_rl status {path}",
                f"cancel  python -m slurm_rl cancel {path}",
            ]
        )

    def finish(self) -> int:
        """Print the table of a sweep that has ended. Return the exit code."""
        if self._has_ended:
            load_function(LEADERBOARD)(self.directory)
        return self._exit_code


def choose_metric(config: DictConfig, named: str | None, *, smallest_first: bool) -> tuple[str, bool]:
    """Return the metric that a sweep ranks by, and whether less of it is better.

    Args:
        config: config of the sweep, with the defaults of swept keys.
        named: value of --metric.
    """
    if named is not None:
        return named, smallest_first
    if config.eval.only and config.eval.sets:
        name, one = next(iter(config.eval.sets.items()))
        return f"set/{name}/avg@{one.get('num_samples', 1)}", smallest_first
    row = TASKS.get(config.task, TASKS["grpo"])
    return row.sweep_metric, smallest_first or row.less_is_better


def run_sweep(args: argparse.Namespace) -> int:
    """Run `submit -m`."""
    overrides = check_overrides(args.rest)
    with open_hydra(args.config_dir, overrides) as extra:
        config = compose_sweep(normalise_words(overrides), extra)
        directory = choose_directory(config, is_named=any("hydra.sweep.dir=" in word for word in overrides))
        with explain_hydra():
            metric, smallest_first = choose_metric(config, args.metric, smallest_first=args.min)
            ledger = Ledger(str(config.name), metric, smallest_first)
        return sweep(config, SweepRuns(directory, ledger), Composer(extra))


def choose_directory(config: DictConfig, *, is_named: bool) -> SweepDir:
    """Return hydra.sweep.dir, with a number appended if the derived one exists.

    Raises:
        RunDirError: the user named a folder with something in it.
    """
    with explain_hydra():
        base = Path(str(config.hydra.sweep.dir)).absolute()
    path, number = base, 2
    while path.exists() and (not path.is_dir() or any(path.iterdir())):
        if is_named:
            raise RunDirError("hydra.sweep.dir must be a new or empty folder", seen=str(path), action="choose another")
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return SweepDir(path)


def sweep(config: DictConfig, runs: SweepRuns, composer: Composer) -> int:
    """Sweep to the end, or until all runs are submitted. Return the exit code."""
    made = [folder for folder in runs.directory.path.parents if not folder.exists()]

    def run_batch(batch: list[list[str]], wait: bool) -> Sequence[Outcome]:
        planned = plan_runs(composer, batch, runs.directory, first_index=len(runs.ledger.runs))
        return runs.start(check_clusters(planned), wait=wait)

    try:
        run_sweeper(config, runs.directory.path, run_batch)
    finally:
        if not runs.is_started:
            remove_sweep(runs.directory, made)
    return runs.finish()
