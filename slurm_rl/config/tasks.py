"""The tasks: a row holds all that others must know of one. The standard library alone: the node agent asks it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class TaskRow:
    """What is trained, and by which program."""

    title: str
    """For people: in reports, and as its stage's name."""
    objective: str | None = None
    """Of those that torchrun starts, one program on every rank, no rollout engines, no Ray: `module:function`, which
    makes rows and loss; see supervised/run_supervised.py."""
    sweep_metric: str = "accuracy.after.sampled"
    """What a sweep ranks its runs by unless `--metric` names another one."""
    less_is_better: bool = False
    """Whether a smaller `sweep_metric` is better."""
    is_external: bool = False
    """A program that is not ours, on the head node of the Ray cluster."""

    @property
    def under_torchrun(self) -> bool:
        return self.objective is not None


TASKS: Final[dict[str, TaskRow]] = {
    "grpo": TaskRow("GRPO"),
    "sft": TaskRow("SFT", "slurm_rl.trainers.supervised.sft:build_sft", "eval/loss", less_is_better=True),
    "rm": TaskRow("reward model", "slurm_rl.trainers.supervised.rm:build_rm", "eval/loss", less_is_better=True),
    "dpo": TaskRow("DPO", "slurm_rl.trainers.supervised.dpo:build_dpo", "eval/loss", less_is_better=True),
    "openrlhf": TaskRow("OpenRLHF", is_external=True),
    "verl": TaskRow("verl", is_external=True),
    "maxtext": TaskRow("MaxText", is_external=True),
    "command": TaskRow("a command", is_external=True),
}

TORCHRUN_TASKS: Final = tuple(name for name, row in TASKS.items() if row.under_torchrun)
EXTERNAL_TASKS: Final = tuple(name for name, row in TASKS.items() if row.is_external)
OUR_TASKS: Final = tuple(name for name, row in TASKS.items() if not row.is_external)
