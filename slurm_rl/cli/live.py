"""The newest attempt of a run that is going: what `tunnel` and `attach` reach into."""

from __future__ import annotations

import shlex

from slurm_rl.cli.find import load_plan
from slurm_rl.errors import RunDirError
from slurm_rl.launchers.jobs import read_states
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, read_json


def load_live(run: RunDir) -> tuple[JobPlan, AttemptDir]:
    """Plan and newest attempt.

    Raises:
        RunDirError: the run does not run, with its state.
    """
    plan, [state] = load_plan(run), read_states([run])
    numbers = run.attempt_numbers()
    # `unknown` is a Slurm that does not answer; the nodes may.
    if not numbers or not (state.is_alive or state.word == "unknown"):
        path = shlex.quote(str(run.path))
        raise RunDirError(
            "the run must be running",
            seen=f"{run.path} is {state}",
            action=f"python -m slurm_rl status {path}; python -m slurm_rl resume {path}",
        )
    return plan, run.attempt(numbers[-1])


def load_head(attempt: AttemptDir) -> HeadRecord:
    """Where the attempt's Ray is.

    Raises:
        RunDirError: it is not up yet.
    """
    if not attempt.head.is_file():
        raise RunDirError(
            "the run's Ray must be up", seen=f"no {attempt.head.name} in {attempt.path}", action="wait some seconds"
        )
    return HeadRecord(**read_json(attempt.head))
