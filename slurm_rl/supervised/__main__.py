"""One rank of a supervised run from overrides, on machines where torchrun is started by hand.

    torchrun --nproc-per-node 8 -m slurm_rl.supervised task=dpo run_dir=/shared/runs/a +exp=dpo_llama3_8b ...
    python -m slurm_rl.supervised +exp=sft_tiny run_dir=runs/a        one rank

The same command again goes on with the run. `python -m slurm_rl` does more: it submits, brings up, starts again.
"""

from __future__ import annotations

import os
import sys

import yaml

from slurm_rl import __version__
from slurm_rl.config.load import load_config, parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, RunDirError, SlurmRLError
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.plan.task import TORCHRUN_TASKS
from slurm_rl.run_dir import RunDir, write_json, write_text
from slurm_rl.supervised.place import find_place
from slurm_rl.train.ending import run_to_outcome


def main() -> int:
    try:
        place, config = find_place(), load_config(sys.argv[1:])
        run = find_run(config)
        if place.rank == 0:
            begin(run, config)
    except SlurmRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    attempt = run.attempt(max(run.attempt_numbers(), default=0) + 1)

    def train(*_: object) -> None:
        from slurm_rl.supervised.session import run_config

        run_config(run, config, place)

    return run_to_outcome(run, attempt, train, writes=place.rank == 0)


def find_run(config: RunConfig) -> RunDir:
    """The run directory, which every rank must know by itself.

    Raises:
        ConfigError: it is not named, or the task is not one for torchrun.
    """
    if config.task not in TORCHRUN_TASKS:
        raise ConfigError(
            f"task must be one of {', '.join(sorted(TORCHRUN_TASKS))}",
            seen=config.task,
            action="start it as python -m slurm_rl",
        )
    if config.run_dir is None:
        raise ConfigError("run_dir must be named, so that all ranks share it", action="run_dir=/shared/runs/a")
    return RunDir(config.run_dir)


def begin(run: RunDir, config: RunConfig) -> None:
    """Write down what is asked for, or find that the run began with it.

    Raises:
        ConfigError: the run began with another config.
        RunDirError: the folder holds something else.
    """
    tree = config.model_dump(mode="json")
    if run.plan.is_file():
        # Typed, so that what an earlier version did not know yet is at its default.
        old = parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8"))).model_dump(mode="json")
        changed = [key for key in tree if tree[key] != old[key]]
        if changed:
            raise ConfigError(
                "a run goes on with the config it began with",
                seen=f"other values under {', '.join(changed)} than in {run.config}",
                action="give the words it began with, or another run_dir",
            )
        return
    if run.path.is_dir() and any(run.path.iterdir()):
        raise RunDirError("run_dir must be a new or empty folder", seen=str(run.path), action="choose another run_dir")
    facts = SubmitFacts(python=sys.executable, num_cpus=len(os.sched_getaffinity(0)), version=__version__)
    plan = build_plan(config, str(run.path), facts)
    write_text(run.config, yaml.safe_dump(tree, sort_keys=False))
    write_json(run.plan, plan.to_json())


if __name__ == "__main__":
    sys.exit(main())
