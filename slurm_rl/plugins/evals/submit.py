"""Submit one evaluation job per saved checkpoint.

A child process of the controller does it: sbatch may take long, and a failure must not stop the training. A run
directory `evals/step-<k>` belongs to one checkpoint. It gets hard links to the policy's files, so that the trainer may
prune the checkpoint, and a job unless it has one: a child that was killed in between is continued by the next one.
"""

import os
import shutil
import time
from pathlib import Path

import yaml

from slurm_rl.errors import SlurmRLError, UnknownJobError
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.eval_sets import list_evals
from slurm_rl.run_dir.fs_probe import ForkedTask
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json

_PAUSE_S = 5.0
_TIMEOUT_S = 180.0
_MODEL, _BASE = "model.json", "base"


class EvalSubmitter:
    """Starts the child while the run trains, and once after its last checkpoint."""

    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self._child: ForkedTask | None = None
        self._next_at = 0.0

    def look(self) -> None:
        """Start the child if there are new checkpoints. Cheap."""
        now = time.monotonic()
        if now < self._next_at or (self._child is not None and self._child.poll() is None):
            return
        self._next_at = now + _PAUSE_S
        if find_missing(self.run_dir):
            self._child = ForkedTask(lambda: submit_missing(self.run_dir))

    def finish(self) -> None:
        """Submit the evaluation of the last checkpoint, within a deadline."""
        self._await()
        self._next_at = 0.0
        self.look()
        self._await()

    def _await(self) -> None:
        child = self._child
        if child is not None and not comes_true(lambda: child.poll() is not None, _TIMEOUT_S):
            child.leave()


def find_missing(run: RunDir) -> list[int]:
    """Return the steps of checkpoints without a job or a recorded failure, ascending."""
    steps = {int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*[0-9]")}
    evals = list_evals(run)
    done = {step for step, one in evals.items() if one.job.is_file() or one.end.is_file()}
    # A child that was killed may have linked a checkpoint that is pruned by now.
    return sorted((steps | evals.keys()) - done)


def submit_missing(run: RunDir) -> None:
    for step in find_missing(run):
        target = RunDir(run.evals / f"step-{step}")
        try:
            job_id = _submit(run, step, target)
        except UnknownJobError as error:  # the next look finds it by its script, or submits it
            append_event(run, "eval/not_submitted", step=step, cause=str(error))
        except (SlurmRLError, OSError) as error:
            append_event(run, "eval/not_submitted", step=step, cause=str(error))
            _record_failed(target, str(error))
        else:
            append_event(run, "eval/submitted", step=step, job_id=job_id)


def _submit(run: RunDir, step: int, target: RunDir) -> str:
    # Late: the controller forks without them.
    from slurm_rl.config.parse import parse_config
    from slurm_rl.launch.controller.create import create_run
    from slurm_rl.launch.controller.record import record_job
    from slurm_rl.launch.jobs import submit_run
    from slurm_rl.launch.runs.start import plan_in
    from slurm_rl.launch.slurm.commands import find_by_script
    from slurm_rl.plugins.evals.config import build_eval_config

    if target.plan.is_file():
        for job_id in find_by_script(str(target.submitit)):
            record_job(target, "slurm", job_id)
            return job_id
        return submit_run(target, JobPlan.from_json(read_json(target.plan))).job_id
    source = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
    link_files(run.checkpoints / f"step-{step}" / "policy", target.evaluated)
    model = source.model.model_dump(mode="json")
    if source.model.path is None:  # a container of the job does not see the run's folder
        link_files(run.model, target.evaluated / _BASE)
        model |= {"path": str(target.evaluated / _BASE), "from_config": None}
    write_json(target.evaluated / _MODEL, model)
    config = build_eval_config(source, run, step)
    plan = plan_in(config, target)
    converted = config.model.model_copy(update={"path": str(target.model)})
    create_run(target, config.model_copy(update={"model": converted}), plan, again=True)
    return submit_run(target, plan).job_id


def link_files(source: Path, target: Path) -> None:
    """Fill `target` with hard links to the files of `source`, or copies where the file system has no links."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def _record_failed(target: RunDir, cause: str) -> None:
    end = {"state": "failed", "exit_code": 1, "cause": f"not submitted: {cause}", "step": -1}
    write_json(target.end, end)
    shutil.rmtree(target.evaluated, ignore_errors=True)
