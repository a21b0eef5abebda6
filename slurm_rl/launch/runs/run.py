"""A run as a script holds it: submit it, watch it, read what came out. The verbs call the same functions."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.record import RunState, load_job, read_rows_of_log
from slurm_rl.launch.hooks import summarize, write_report
from slurm_rl.launch.jobs import cancel_runs, read_far_log, read_states, wait_for_release, wait_for_runs
from slurm_rl.launch.runs.checks import check_submission
from slurm_rl.launch.runs.find import load_plan, open_run
from slurm_rl.launch.runs.planning import choose_directory, plan_in
from slurm_rl.launch.runs.start import Started, resume_run, start_run
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import Row, read_rows

WAIT_S = 7 * 24 * 3600.0
"""How long `Run.wait` waits when it is not told: a week."""


def plan_run(config: RunConfig) -> JobPlan:
    """What `submit` would send, and refuse, by what this machine sees; no cluster is asked and nothing is written.

    `slurm_rl.plan.render.render_plan` makes text of it, `plan.to_json()` plain data.

    Raises:
        SlurmRLError: `submit` would refuse it; every reason at once.
    """
    _require_config("plan_run", config)
    directory = choose_directory(config)
    plan = plan_in(config, directory)
    notes: list[str] = []
    check_submission(config, plan, directory, notes.append)
    _warn(notes)
    return plan


def submit(config: RunConfig) -> Run:
    """Start a run and return at once: a job of the cluster that `config.cluster` names, or processes of this machine.

    A local run has processes of their own, in a session of their own: it goes on when the script ends, the notebook's
    kernel restarts or the terminal closes, until it is done or `Run.cancel` ends it.

    Args:
        config: of `load_config`. Its relative paths are taken from this process's working directory.

    Returns:
        The run; `run.path` is its directory, from which any later process gets it back: `Run(path)`.

    Raises:
        SlurmRLError: it is refused, by us or in the cluster's own words; nothing is left of it.
    """
    _require_config("submit", config)
    notes: list[str] = []
    run = Run._of(start_run(config, notes.append))
    _warn(notes)
    return run


class Run:
    """A run that was submitted, by whatever process; all it knows is in its directory and at its scheduler.

    Args:
        path: the run directory.

    Raises:
        RunDirError: there is no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = open_run(path)
        self._process: Any = None
        """submitit's Job of a local run that this process started, so that its end is noticed by the kernel, too."""

    @classmethod
    def _of(cls, started: Started) -> Run:
        run = cls(started.directory.path)
        run._process = started.submitted.process
        return run

    def __repr__(self) -> str:
        return f"slurm_rl.Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run directory; slurm_rl/run_dir/run_dir.py lists its files."""
        return self._directory.path

    @property
    def job_id(self) -> str | None:
        """Of the newest job: Slurm's number, or that of a process; None of a run that has none yet."""
        job = load_job(self._directory)
        return None if job is None else job.job_id

    @property
    def config(self) -> RunConfig:
        """What the run was submitted with."""
        return parse_config(yaml.safe_load(self._directory.config.read_text(encoding="utf-8")))

    @property
    def plan(self) -> JobPlan:
        """What was derived from it."""
        return load_plan(self._directory)

    @property
    def state(self) -> RunState:
        """The state now, by one question to the scheduler: `.word` (pending, running, finished, failed, ...),
        `.detail` (nodes, reason or cause) and `.is_alive` (it runs, or will)."""
        self._reap()
        [state] = read_states([self._directory])
        return state

    def metrics(self) -> list[Row]:
        """The rows of metrics so far, oldest first; `pandas.DataFrame(run.metrics())` is a table of them.

        Every row has `step` and `stage` (warmup, grpo, sft, ..., and eval for evaluations), and what was measured:
        `area/name` to a number. Rows of different stages have different columns.

        Raises:
            SlurmRLError: the rows are on a cluster that does not answer.
        """
        far = read_far_log(self._directory)
        return read_rows(self._directory.metrics) if far is None else read_rows_of_log(far)

    def summary(self) -> dict[str, Any]:
        """What came out so far: state, steps, accuracy before and after, reward, tokens a second, time by phase.

        What was not measured is None.
        """
        return summarize(self._directory)

    def report(self) -> Path:
        """Write report.html, with curves and samples, and summary.json anew; the path of the first."""
        return write_report(self._directory)

    def wait(self, timeout_s: float = WAIT_S) -> RunState:
        """Wait for the end of the run, which a job that waits to start again has not reached.

        Ctrl-C, or an interrupted cell, ends the waiting and leaves the run alone.

        Args:
            timeout_s: seconds to wait; 0 only looks.

        Returns:
            How it ended; of a run that did what it should, `.word` is finished. A failed run is no exception here.

        Raises:
            WaitError: it has not ended; names the state that was seen last.
        """
        give_up = time.monotonic() + timeout_s
        [state] = wait_for_runs([self._directory], timeout_s=timeout_s)
        wait_for_release(self._directory, give_up - time.monotonic())
        self._reap()
        return state

    def cancel(self) -> bool:
        """Ask the run to save and end, and return at once; `wait` waits until it has.

        Returns:
            Whether there was something to end.

        Raises:
            RunDirError: it is, or was, a process of another machine.
            SlurmRLError: the scheduler does not answer.
        """
        return cancel_runs([self._directory]) > 0

    def resume(self) -> Run:
        """Start a run that has ended again, with its plan and its code: it goes on from its newest checkpoint.

        Returns:
            This run, with a new job.

        Raises:
            SlurmRLError: it is going, or is refused.
        """
        notes: list[str] = []
        self._process = resume_run(self._directory, notes.append).submitted.process
        _warn(notes)
        return self

    def _reap(self) -> None:
        """Have the kernel forget a child of ours that has ended."""
        if self._process is not None:
            self._process.done()


def _require_config(name: str, config: object) -> None:
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"{name} takes a config",
            seen=repr(config),
            action=f"slurm_rl.{name}(slurm_rl.load_config(['+exp=demo']))",
        )


def _warn(notes: Iterable[str]) -> None:
    """Warn at the line of the script that called into this module."""
    for note in notes:
        warnings.warn(f"slurm_rl: {note.removeprefix('warning: ')}", stacklevel=3)
