"""Plans of runs."""

import functools
from dataclasses import replace
from pathlib import Path

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir


def plan_of(*words: str, run_dir: Path | str = "/runs/a", python: str = "/python", num_cpus: int = 4) -> JobPlan:
    """Return the plan of the demo with these overrides, or of the experiment that they name."""
    is_named = any(word.partition("=")[0].lstrip("+") == "exp" for word in words)
    config = load_config([*words] if is_named else ["+exp=demo", *words])
    return build_plan(config, str(run_dir), SubmitFacts(python, num_cpus, "test"))


@functools.cache
def demo_config() -> RunConfig:
    return load_config(["+exp=demo", "logging.wandb.mode=disabled"])


@functools.cache
def _any_plan() -> JobPlan:
    return build_plan(demo_config(), "/runs/a", SubmitFacts("/python", 4, "1"))


def demo_plan(run: RunDir) -> JobPlan:
    return replace(_any_plan(), run_dir=str(run.path))
