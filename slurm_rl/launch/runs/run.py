"""Python API of a run: submit it, watch it, read its results."""

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
from slurm_rl.launch.runs.start import Started, choose_directory, plan_in, resume_run, start_run
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.eval_sets import read_metrics
from slurm_rl.run_dir.jsonl import Row

WAIT_S = 7 * 24 * 3600.0
"""Default timeout of `Run.wait` in seconds: a week."""


def plan_run(config: RunConfig) -> JobPlan:
    """Return the plan that `submit` would send, after the checks that need no cluster. Writes nothing.

    `slurm_rl.plan.render.render_plan` renders it as text, `plan.to_json()` as plain data.

    Raises:
        SlurmRLError: `submit` would refuse it; the message has every reason.
    """
    _require_config("plan_run", config)
    directory = choose_directory(config)
    plan = plan_in(config, directory)
    notes: list[str] = []
    check_submission(config, plan, directory, notes.append)
    _warn(notes)
    return plan


def submit(config: RunConfig) -> Run:
    """Start a run and return at once: a job on the cluster of `config.cluster`, or processes on this machine.

    A local run has its own processes and session: it continues when the script ends, the notebook's kernel restarts or
    the terminal closes, until it has ended or `Run.cancel` ends it.

    Args:
        config: from `load_config`. Relative paths start at the working directory.

    Returns:
        The run; any later process opens it by its directory: `Run(path)`.

    Raises:
        SlurmRLError: it is refused, by us or by the cluster (with its message); no files remain.
    """
    _require_config("submit", config)
    notes: list[str] = []
    run = Run._of(start_run(config, notes.append))
    _warn(notes)
    return run


class Run:
    """A submitted run; its state is in its directory and at its scheduler.

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
        """Id of the newest job: Slurm's number, or a process id; None before the first."""
        job = load_job(self._directory)
        return None if job is None else job.job_id

    @property
    def config(self) -> RunConfig:
        """Config of the run."""
        return parse_config(yaml.safe_load(self._directory.config.read_text(encoding="utf-8")))

    @property
    def plan(self) -> JobPlan:
        """Plan of the run."""
        return load_plan(self._directory)

    @property
    def state(self) -> RunState:
        """The state now, by one question to the scheduler: `.word` (pending, running, finished, failed, ...),
        `.detail` (nodes, reason or cause) and `.is_alive` (it runs, or will)."""
        self._reap()
        [state] = read_states([self._directory])
        return state

    def metrics(self) -> list[Row]:
        """Return the rows of metrics so far, oldest first, for example for `pandas.DataFrame(run.metrics())`.

        Every row has `step` and `stage` (warmup, grpo, sft, ..., and eval for evaluations), and the measured values:
        `area/name` to a number. Rows of different stages have different columns.

        Raises:
            SlurmRLError: the rows are on a cluster that does not answer.
        """
        far = read_far_log(self._directory)
        return read_metrics(self._directory) if far is None else read_rows_of_log(far)

    def summary(self) -> dict[str, Any]:
        """Return the results so far: state, steps, accuracy before and after, reward, tokens per second, time by phase.

        Unmeasured values are None.
        """
        return summarize(self._directory)

    def report(self) -> Path:
        """Write report.html, with curves and samples, and summary.json anew; the path of the first."""
        return write_report(self._directory)

    def wait(self, timeout_s: float = WAIT_S) -> RunState:
        """Wait for the end of the run; a job that waits to start again has not ended.

        Ctrl-C, or an interrupted cell, ends the wait and leaves the run running.

        Args:
            timeout_s: seconds to wait; 0 only checks.

        Returns:
            The outcome; `.word` of a successful run is finished. A failed run raises nothing here.

        Raises:
            WaitError: it has not ended; the message has the last state.
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
        """Resume a run that has ended, with its plan and code, from its newest checkpoint.

        Returns:
            This run, with a new job.

        Raises:
            SlurmRLError: it is still running, or the resume is refused.
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
