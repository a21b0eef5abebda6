"""Which program the head node runs once the cluster stands."""

from __future__ import annotations


def build_driver_argv(python: str, run_dir: str) -> tuple[str, ...]:
    """argv of the GRPO driver; the agent adds `--attempt <n>`."""
    return (python, "-u", "-m", "slurm_rl.train.grpo.main", "--run-dir", run_dir)
