"""Registry of tasks. Standard library only: the node agent imports it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class TaskEntry:
    """Objective and program of a task."""

    title: str
    """Name in reports and of the pipeline stage."""
    objective: str | None = None
    """`module:function` that builds rows and loss, for tasks that torchrun starts (one program on every rank, no
    rollout engines, no Ray); see supervised/run_supervised.py."""
    sweep_metric: str = "accuracy.after.sampled"
    """Metric that a sweep ranks runs by unless `--metric` names another."""
    less_is_better: bool = False
    """Whether a smaller `sweep_metric` is better."""
    is_external: bool = False
    """Another trainer's program, started on the head node of the Ray cluster."""

    @property
    def under_torchrun(self) -> bool:
        return self.objective is not None


TASKS: Final[dict[str, TaskEntry]] = {
    "grpo": TaskEntry("GRPO"),
    "sft": TaskEntry("SFT", "slurm_rl.trainers.supervised.sft:build_sft", "eval/loss", less_is_better=True),
    "rm": TaskEntry("reward model", "slurm_rl.trainers.supervised.rm:build_rm", "eval/loss", less_is_better=True),
    "dpo": TaskEntry("DPO", "slurm_rl.trainers.supervised.dpo:build_dpo", "eval/loss", less_is_better=True),
    "openrlhf": TaskEntry("OpenRLHF", is_external=True),
    "verl": TaskEntry("verl", is_external=True),
    "maxtext": TaskEntry("MaxText", is_external=True),
    "command": TaskEntry("a command", is_external=True),
}

TORCHRUN_TASKS: Final = tuple(name for name, row in TASKS.items() if row.under_torchrun)
EXTERNAL_TASKS: Final = tuple(name for name, row in TASKS.items() if row.is_external)
OUR_TASKS: Final = tuple(name for name, row in TASKS.items() if not row.is_external)
STAGE_TITLES: Final = {name: TASKS[name].title for name in OUR_TASKS}
"""Stage of metrics.jsonl -> its name for people."""
