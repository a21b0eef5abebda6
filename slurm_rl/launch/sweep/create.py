"""Create the run directories of a sweep."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from slurm_rl.config.run import RunConfig
from slurm_rl.launch.controller.create import check_judge_keys, copy_functions, snapshot_code, write_run
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import expect_writable

# Hides the latency of a shared file system.
_NUM_WRITERS = 16

Item = TypeVar("Item")


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, checked and not yet written."""

    index: int
    overrides: tuple[str, ...]
    config: RunConfig
    plan: JobPlan

    @property
    def max_parallel(self) -> int | None:
        return self.config.cluster.max_parallel_runs


def create_runs(sweep: SweepDir, ledger: Ledger, runs: Sequence[PlannedRun]) -> Ledger:
    """Write the run directories, then the ledger with them."""
    for run in runs:
        check_judge_keys(run.config)
    then = "or choose another hydra.sweep.dir or cluster.run_root"
    with expect_writable(sweep.path, then, what="the sweep directory"):
        sweep.path.mkdir(parents=True, exist_ok=True)
        if not sweep.code.exists():
            snapshot_code(sweep.code)
        copy_functions(sweep.code, (run.config for run in runs))
        for_all(lambda run: _create_run(sweep, run), runs)
        ledger = replace(ledger, runs=(*ledger.runs, *(SweepRun(run.index, run.overrides) for run in runs)))
        save_ledger(sweep, ledger)
    return ledger


def _create_run(sweep: SweepDir, planned: PlannedRun) -> None:
    run = sweep.run(planned.index)
    run.path.mkdir(mode=0o755)  # write access would allow to replace the link to the code
    # Slurm opens each element's log in it and makes no folders.
    run.submitit.mkdir()
    run.code.symlink_to(os.path.relpath(sweep.code, run.path))
    write_run(run, planned.config, planned.plan)


def remove_sweep(sweep: SweepDir, made: Iterable[Path]) -> None:
    """Remove a refused sweep before anything has run, and the new folders `made` above it."""
    shutil.rmtree(sweep.path, ignore_errors=True)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def for_all(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Run `work` on all items in threads, since it mostly waits for files; raise the first error."""
    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        for _ in pool.map(work, items):
            pass
