"""Find the run, sweep or pipeline of a command line, and the newest attempt of a running run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.parser import load_verbs
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.runs.find import DEFAULT_ROOT, RUN_FILES, is_ours, load_plan, open_run, read_recent, resolve
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json


def find_target(words: Sequence[str]) -> Path:
    """Return the directory of the run, sweep or pipeline that the words name, or of the user's newest one.

    Args:
        words: nothing, or one path, name or job id.

    Raises:
        ConfigError, RunDirError: there are several words, an override or a second verb, or nothing was submitted.
    """
    if not words:
        return _find_newest()
    path = resolve(words[0])
    if len(words) > 1 and "=" in words[1]:
        action = f"leave out {words[1]}: a run keeps its settings (`resume` changes only job.time_limit)"
        raise ConfigError("this verb takes no overrides", seen=" ".join(words), action=action)
    if len(words) > 1:
        raise ConfigError("name one run directory", seen=" ".join(words), action="leave out the others")
    if path.exists():
        return path
    if words[0] in load_verbs().by_name:
        raise ConfigError("only one verb per command", seen=f"{words[0]} after another verb", action="leave out either")
    if "=" in words[0]:
        action = "name the run; overrides are for a new one"
        raise ConfigError("this verb takes the directory of a run, and no overrides", seen=words[0], action=action)
    return path


def find_run(words: Sequence[str]) -> RunDir:
    """Return the run that the words name, or the user's newest one.

    Raises:
        ConfigError, RunDirError: the words name no run, or the newest is a sweep or a pipeline.
    """
    return open_target(find_target(words))


def open_target(path: Path) -> RunDir:
    """Return the run in this directory.

    Raises:
        ConfigError, RunDirError: there is none; the message suggests similar runs.
    """
    if not RunDir(path).plan.is_file() and (stages := find_stages(path)):
        names = ", ".join(shlex.quote(str(stage.path)) for stage in stages)
        raise RunDirError("name one stage of the pipeline", seen=str(path), action=f"choose one of {names}")
    return open_run(path)


def load_live(run: RunDir) -> tuple[JobPlan, AttemptDir]:
    """Return plan and newest attempt of a running run.

    Raises:
        RunDirError: the run is not running.
    """
    plan, [state] = load_plan(run), read_states([run])
    numbers = run.attempt_numbers()
    # `unknown` means that Slurm does not answer; the nodes may.
    if not numbers or not (state.is_alive or state.word == "unknown"):
        path = shlex.quote(str(run.path))
        raise RunDirError(
            "the run must be running",
            seen=f"{run.path} is {state}",
            action=f"python -m slurm_rl status {path}; python -m slurm_rl resume {path}",
        )
    return plan, run.attempt(numbers[-1])


def load_head(attempt: AttemptDir) -> HeadRecord:
    """Return the address of the attempt's Ray cluster.

    Raises:
        RunDirError: it is not up yet.
    """
    if not attempt.head.is_file():
        raise RunDirError(
            "the run's Ray must be running",
            seen=f"no {attempt.head.name} in {attempt.path}",
            action="wait a few seconds",
        )
    return HeadRecord(**read_json(attempt.head))


def _find_newest() -> Path:
    """Return the directory that was submitted last, by this user or below ./runs."""
    times = {plan.parent: plan.stat().st_mtime for file in RUN_FILES for plan in DEFAULT_ROOT.glob(f"*/{file}")}
    for known in read_recent():
        if is_ours(Path(known.path)):
            times[Path(known.path)] = known.time
            break
    if not times:
        raise RunDirError(
            f"no run was found: there is none below ./{DEFAULT_ROOT}, and none was submitted from this account",
            action="name its directory, or start one: python -m slurm_rl",
        )
    return max(times, key=times.__getitem__)
