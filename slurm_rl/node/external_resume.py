"""Which checkpoint of an external trainer an attempt goes on from, and its command line with that.

Standard library alone. It is chosen once an attempt: under torchrun by the head's agent, for all ranks, since two
nodes may see a shared folder differently for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.external.layouts import LAYOUTS, Found, fill_checkpoint
from slurm_rl.run_dir.run_dir import RunDir

NAME_VARIABLE, STEP_VARIABLE = "SLURM_RL_CHECKPOINT", "SLURM_RL_CHECKPOINT_STEP"

Choice = tuple[str, int] | None
"""Name below the checkpoint folder, and step."""


def choose_checkpoint(plan: JobPlan, run: RunDir, attempt: int) -> Choice:
    """The newest whole one, when this is a later attempt and the program's layout is known.

    Raises:
        OSError: the checkpoint folder does not let itself be read.
    """
    if plan.external is None or plan.external.layout is None or attempt == 1:
        return None
    layout = LAYOUTS[plan.external.layout]
    found = layout.newest(run.checkpoints)
    if found is None:
        return None
    if layout.mend is not None:
        layout.mend(run.checkpoints / found.name)
    return found.name, found.step


def describe_checkpoint(choice: Choice) -> dict[str, str]:
    """The choice as variables of the trainer; an empty name is no checkpoint."""
    name, step = choice or ("", "")
    return {NAME_VARIABLE: name, STEP_VARIABLE: str(step)}


def read_choice(env: Mapping[str, str]) -> Choice:
    return (env[NAME_VARIABLE], int(env[STEP_VARIABLE])) if env.get(NAME_VARIABLE) else None


def build_argv(plan: JobPlan, attempt: int, choice: Choice) -> tuple[str, ...]:
    """The program's command line in this attempt: where there is nothing to go on from, that of the first."""
    external = plan.external
    assert external is not None
    if attempt == 1 or (external.layout is not None and choice is None):
        return external.first
    return external.later if choice is None else fill_checkpoint(external.later, Found(*choice))
