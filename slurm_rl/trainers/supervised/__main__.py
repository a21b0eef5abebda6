"""One rank of a supervised run, of a run directory or from overrides.

    python -m slurm_rl.trainers.supervised <run> [--attempt <n>]                 started by a node agent's torchrun
    python -m slurm_rl.trainers.supervised +exp=sft_tiny run_dir=runs/a          one rank, by hand
    torchrun --nproc-per-node 8 -m slurm_rl.trainers.supervised +exp=dpo_llama3_8b run_dir=/shared/runs/a ...

The same command resumes the run. Rank 0 writes the run directory, and always outcome.json (see node/stop.py).
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from slurm_rl import __version__
from slurm_rl.config.load import load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError, RunDirError, SlurmRLError
from slurm_rl.node.attempt import open_attempt
from slurm_rl.node.stop import run_to_outcome
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, hold, write_json, write_text
from slurm_rl.run_dir.run_lock import LockHolder
from slurm_rl.trainers.supervised.rank_info import RankInfo, read_rank_info

BY_HAND = "torchrun"
"""Launcher of a run that was started by hand."""


@dataclass(frozen=True)
class Start:
    """Run, attempt and config of this rank."""

    run: RunDir
    attempt: AttemptDir
    read: Callable[[], RunConfig]
    is_by_hand: bool
    """Whether rank 0 holds the run lock, because there is no controller."""


def main() -> int:
    words = sys.argv[1:]
    is_run = bool(words) and not words[0].startswith("+") and "=" not in words[0]
    try:
        rank_info = read_rank_info()
        start = open_run(words) if is_run else begin_run(words, rank_info)
        with hold_by_hand(start.run) if start.is_by_hand and rank_info.rank == 0 else contextlib.nullcontext():
            return _train(start, rank_info)
    except SlurmRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def _train(start: Start, rank_info: RankInfo) -> int:
    def train(*_: object) -> None:
        from slurm_rl.trainers.supervised.run_supervised import run_training

        run_training(start.run, start.read(), rank_info, start.attempt)

    return run_to_outcome(start.run, start.attempt, train, writes=rank_info.rank == 0)


@contextlib.contextmanager
def hold_by_hand(run: RunDir) -> Iterator[None]:
    """Hold the run lock. Raises LeaseError if a running process holds it, RunDirError if it cannot be written."""
    own = LockHolder.of_this_process(BY_HAND, os.environ.get("TORCHELASTIC_RUN_ID", str(os.getpid())))
    with hold(run, own, then="then the same command again") as lease:
        run.epoch = lease.epoch
        yield


def open_run(words: Sequence[str]) -> Start:
    """Open an existing run directory, with the given or the newest attempt."""
    parser = argparse.ArgumentParser(
        "python -m slurm_rl.trainers.supervised", description="One rank of the supervised trainer."
    )
    parser.add_argument("run_dir")
    parser.add_argument("--attempt", type=int, help="the newest by default")
    args = parser.parse_args(words)
    found = RunDir(args.run_dir).require()
    is_by_hand = args.attempt is None
    if is_by_hand:
        args.attempt = max(found.attempt_numbers(), default=1)
    run, attempt = open_attempt(args)
    return Start(run, attempt, lambda: read_config(run), is_by_hand=is_by_hand)


def begin_run(words: Sequence[str], rank_info: RankInfo) -> Start:
    """Start a new attempt in the run directory of the overrides; rank 0 creates it."""
    config = load_config(list(words))
    run = find_run(config)
    if rank_info.rank == 0:
        begin(run, config)
    attempt = run.attempt(max(run.attempt_numbers(), default=0) + 1)
    return Start(run, attempt, lambda: config, is_by_hand=True)


def read_config(run: RunDir) -> RunConfig:
    """Return the config of a run."""
    return parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))


def find_run(config: RunConfig) -> RunDir:
    """Return the run directory of the config.

    Raises:
        ConfigError: run_dir is missing, or the task is not one for torchrun.
    """
    if config.task not in TORCHRUN_TASKS:
        raise ConfigError(
            f"task must be one of {', '.join(TORCHRUN_TASKS)}",
            seen=config.task,
            action="start it as python -m slurm_rl",
        )
    if config.run_dir is None:
        raise ConfigError("run_dir must be set, so that all ranks share it", action="run_dir=/shared/runs/a")
    return RunDir(config.run_dir)


def begin(run: RunDir, config: RunConfig) -> None:
    """Write config and plan, or check that the run has the same config.

    Raises:
        ConfigError: the run has another config.
        RunDirError: the folder is not a run directory.
    """
    tree = config.model_dump(mode="json")
    if run.plan.is_file():
        old = read_config(run).model_dump(mode="json")
        changed = [key for key in tree if tree[key] != old[key]]
        if changed:
            raise ConfigError(
                "a run resumes with its original config",
                seen=f"other values under {', '.join(changed)} than in {run.config}",
                action="use the original arguments, or another run_dir",
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
