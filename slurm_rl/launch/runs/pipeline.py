"""Consecutive runs from one file: each stage starts when its predecessor has finished.

    sft: +exp=sft_tiny
    grpo: +exp=demo model=hf model.path={sft}/export

A line is the name of a stage and its words, as behind `python -m slurm_rl`; `{sft}` is the directory of that stage.
Each stage is a run of that name in the pipeline's folder, which also contains the file as pipeline.yaml.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.config.yaml_text import parse_yaml
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.run_dir import RunDir

PIPELINE_FILE = "pipeline.yaml"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}"
_EXAMPLE = "write one line a stage, as in `sft: +exp=sft_tiny`"


@dataclass(frozen=True)
class Stage:
    """One run of a pipeline."""

    name: str
    words: tuple[str, ...]
    """Overrides; `{name}` in them is the directory of an earlier stage."""


def parse_stages(text: str, where: str) -> list[Stage]:
    """Return the stages in order.

    Raises:
        ConfigError: with the stage and the error.

    >>> parse_stages("sft: +exp=sft_tiny seed=1", "a.yaml")
    [Stage(name='sft', words=('+exp=sft_tiny', 'seed=1'))]
    """
    tree = parse_yaml(text, where)
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(
            "a pipeline file must be a mapping of stages", seen=f"{where}: {type(tree).__name__}", action=_EXAMPLE
        )
    return [_parse_stage(name, words, where) for name, words in tree.items()]


def _parse_stage(name: object, words: object, where: str) -> Stage:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        rule = "a stage's name is of letters, digits, _ and -"
        raise ConfigError(rule, seen=f"{name!r} in {where}", action=_EXAMPLE)
    if not isinstance(words, str):
        rule = f"the words of stage {name} are one line of overrides"
        raise ConfigError(rule, seen=f"{words!r} in {where}", action=_EXAMPLE)
    split = tuple(shlex.split(words))
    for taken in ("run_dir", "job.depends_on"):
        if any(word.lstrip("+").startswith(f"{taken}=") for word in split):
            raise ConfigError(f"{taken} is set by the pipeline", seen=f"stage {name} in {where}", action="leave it out")
    return Stage(name, split)


def place_stages(stages: Sequence[Stage], folder: Path, more: Sequence[str] = ()) -> list[list[str]]:
    """Return the words of each stage's run.

    Args:
        more: for all stages; they come last, and win.

    Raises:
        ConfigError: a stage names one that does not come before it.
    """
    placed: list[list[str]] = []
    known: dict[str, Path] = {}
    for stage in stages:
        words = [_fill_in(word, known, stage) for word in (*stage.words, *more)]
        previous = [f"job.depends_on={known[stages[len(placed) - 1].name]}"] if placed else []
        known[stage.name] = folder / stage.name
        placed.append([*words, f"run_dir={known[stage.name]}", *previous])
    return placed


def _fill_in(word: str, known: Mapping[str, Path], stage: Stage) -> str:
    def find(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise ConfigError(
                f"stage {stage.name} may refer only to earlier stages: {', '.join(known) or 'there are none'}",
                seen=word,
                action="correct the name, or the order of the stages",
            )
        return str(known[match[1]])

    # `${...}` is Hydra's, and `{a: 1}` a dictionary.
    return re.sub(rf"(?<!\$)\{{({_NAME})\}}", find, word)


def find_stages(folder: Path) -> list[RunDir]:
    """Return the runs of a pipeline in order; empty if the folder is no pipeline."""
    file = folder / PIPELINE_FILE
    if not file.is_file():
        return []
    return [RunDir(folder / stage.name) for stage in parse_stages(file.read_text(encoding="utf-8"), str(file))]
