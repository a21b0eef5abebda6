"""`eval`: a model on sets of rows, as a job of its own; the model of the hub, a folder, or a run's."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.cli import convert
from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.submit import announce_and_follow
from slurm_rl.cli.told import tell
from slurm_rl.cli.words import read_words
from slurm_rl.config.load import load_config
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir
from slurm_rl.runs.start import start_run

_PATH = "model.path="


def run(words: list[str]) -> int:
    told = read_words("eval", words)
    overrides = [_resolve(word, told.flags.step) for word in check_overrides(told.rest)]
    if told.flags.step is not None and overrides == list(told.rest):
        raise ConfigError(
            "--step is of the run that model.path names", seen=str(told.flags.step), action="model.path=<run directory>"
        )
    config = load_config([*overrides, "eval.only=true"], config_dir=told.flags.config_dir)
    return announce_and_follow(start_run(config, tell))


def _resolve(word: str, step: int | None) -> str:
    """The override with the model of a run in place of its directory: what it exported, or a checkpoint, converted."""
    if not word.startswith(_PATH):
        return word
    folder = RunDir(expand_user(word.removeprefix(_PATH).strip("'\"")).absolute())
    if not folder.plan.is_file():
        return word
    if step is None and (folder.export / "config.json").is_file():
        return f"{_PATH}{folder.export}"
    found = convert.find_checkpoint(folder, step)
    out: Path = folder.path / f"export-step-{found.step}"
    if not out.is_dir():
        convert.run([str(folder.path), "--step", str(found.step)])
    return f"{_PATH}{out}"
