"""Rows of `explain` about the files of a run and the ways in which it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.memory import GB, ModelShape
from slurm_rl.plan.rationale import count
from slurm_rl.plan.role_memory import bytes_per_value, checkpoint_bytes
from slurm_rl.plan.save_deadline import save_by

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def list_files(config: RunConfig, plan: JobPlan, shape: ModelShape | None) -> Iterator[tuple[str, str]]:
    """Yield the paths and sizes of the run's files."""
    yield "run", plan.run_dir
    if plan.external is not None:
        yield "checkpoints", "written by the program, as its arguments say"
        return
    chosen = config.checkpoint.interval
    every = f"every {chosen} steps" if chosen != "auto" else "every 10 steps, then by the duration of saves"
    checkpoint, best = config.checkpoint, config.checkpoint.keep_best and config.eval.interval > 0
    size = None if shape is None else checkpoint_bytes(config, shape) / GB
    kept = checkpoint.keep_last + best
    # One more exists while it is written.
    sizes = "" if size is None else f", {_gigabytes(size)} each, {_gigabytes(size * (kept + 1))} at most"
    yield (
        "checkpoints",
        f"{every}; the newest {checkpoint.keep_last}{' and the best' * best} stay{sizes}",
    )
    if checkpoint.upload_url is not None:
        yield "uploads", f"each checkpoint, to {checkpoint.upload_url}"
    is_whole = shape is not None and (config.model.lora is None or config.model.lora.export == "merged")
    model = f" ({_gigabytes(shape.num_parameters * bytes_per_value(config) / GB)})" if shape and is_whole else ""
    yield "at the end", f"export/ for Hugging Face{model}, report.html, summary.json"


def list_ends(config: RunConfig, plan: JobPlan) -> Iterator[tuple[str, str]]:
    """How an attempt ends with this launcher; see docs/reference/outcomes.md."""
    row, limits = plan.launcher_entry, plan.limits
    saves = "saves" if plan.external is None else "gets a stop signal"
    again = "is requeued or followed by a successor job" if row.is_queue else "ends with 130"
    if limits.time_limit_min or row.is_queue:
        time = f"{limits.time_limit_min} min" if limits.time_limit_min else "the partition's"
        least = ">= " if limits.learns_lead else ""  # more if its saves take longer
        lead_s, does = limits.checkpoint_lead_s, saves
        if plan.external is not None and plan.external.before_limit:
            lead_s, does = round(-save_by(0.0, lead_s)), "has saved"
        yield "time limit", f"{time}; {least}{lead_s} s before, it {does}, {again}"
    if row.is_queue:
        spare = "a spare replaces it, else " if plan.num_spare_nodes else ""
        yield "lost node", f"{spare}the run is requeued and resumes from the newest checkpoint"
    elif row.by_node:
        yield "lost node", "another machine may replace it until job.start_timeout_s"
    tries, resume = limits.max_failures, "`node --run`" if row.by_node else "`resume`"
    yield "failure", f"retried {count(tries, 'time')}, bad input never" if tries else f"ends it; {resume} continues"
    yield "by hand", f"{'Ctrl-C or ' * row.on_this_machine}`cancel`: it {saves}, ends with 130; {resume} continues"


def _gigabytes(size: float) -> str:
    """Return a rounded size.

    >>> _gigabytes(98.3), _gigabytes(0.007)
    ('98.3 GB', '7.0 MB')
    """
    return f"{size:.1f} GB" if size >= 1 else f"{size * 1000:.1f} MB"
