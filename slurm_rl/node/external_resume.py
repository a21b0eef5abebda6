"""Choose the checkpoint that an external trainer resumes from, and its command line. Standard library only.

Under torchrun the head's agent chooses for all ranks, since nodes may see a shared folder differently for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_rl.plan.checkpoint_layouts import LAYOUTS, Found, fill_checkpoint
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir

NAME_VARIABLE, STEP_VARIABLE = "SLURM_RL_CHECKPOINT", "SLURM_RL_CHECKPOINT_STEP"

Choice = tuple[str, int] | None
"""Name in the checkpoint folder, and step."""


def choose_checkpoint(plan: JobPlan, run: RunDir, attempt: int) -> Choice:
    """Return the newest complete checkpoint from the second attempt on, if the program's layout is known."""
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
    """Return the choice as environment variables; an empty name is no checkpoint."""
    name, step = choice or ("", "")
    return {NAME_VARIABLE: name, STEP_VARIABLE: str(step)}


def read_choice(env: Mapping[str, str]) -> Choice:
    """Return the choice from environment variables."""
    return (env[NAME_VARIABLE], int(env[STEP_VARIABLE])) if env.get(NAME_VARIABLE) else None


def build_argv(plan: JobPlan, attempt: int, choice: Choice) -> tuple[str, ...]:
    """Return the program's command line; the one of the first attempt if there is nothing to resume from."""
    external = plan.external
    assert external is not None
    if attempt == 1 or (external.layout is not None and choice is None):
        return external.first
    return external.later if choice is None else fill_checkpoint(external.later, Found(*choice))
