"""`status --json`: the state of a run, or of the runs in a folder, for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.cli.run_facts import describe_phase, find_cancel, read_ends, read_newest_row, read_num_steps
from slurm_rl.cli.table import RunLine
from slurm_rl.launch.controller.record import RunState, load_job
from slurm_rl.run_dir.eval_sets import read_results
from slurm_rl.run_dir.judge_total import read_judge_total
from slurm_rl.run_dir.run_dir import RunDir


def build_run(run: RunDir, state: RunState, now: float) -> dict[str, Any]:
    """Return the facts that `status` prints of a run; null where there is none yet.

    Args:
        now: seconds since the epoch.
    """
    job, last, attempts = load_job(run), read_newest_row(run), run.attempt_numbers()
    return {
        "run_dir": str(run.path),
        "state": state.word,
        "detail": state.detail,
        "is_alive": state.is_alive,
        "job_id": job.job_id if job else None,
        "launcher": job.launcher if job else None,
        "attempt": attempts[-1] if attempts else None,
        "phase": (describe_phase(run, now) or None) if state.word == "running" else None,
        "cancel_requested": find_cancel(run) if state.is_alive else None,
        "stage": last.get("stage"),
        "step": last.get("step"),
        "num_steps": read_num_steps(run) or None,
        "metrics": {key: value for key, value in last.items() if "/" in key},
        "sets": {name: results[-1] for name, results in read_results(read_ends(run)).items()},
        "judge": read_judge_total(run),
        "logs": str(run.attempts / "latest" / "logs"),
    }


def build_runs(folder: Path, lines: Sequence[RunLine]) -> list[dict[str, Any]]:
    """Return the rows of the table of a folder, with paths."""
    return [
        {"run_dir": str(folder / line.name), **asdict(line), "metric": dict([line.metric] if line.metric else [])}
        for line in lines
    ]
