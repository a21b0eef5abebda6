"""What a data set's recipe is: which files of which repository, and how they become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.prepare.manifest import Output
from slurm_rl.prepare.write_rows import BadRows

BOXED = "\nThink step by step, and put the final answer in \\boxed{}."
"""Ends the prompt of the mathematics data sets: the `math` verifier reads LaTeX, boxed first."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where a recipe reads and writes."""

    folder: Path
    """Absolute; what a recipe makes goes here, each file or folder beside and renamed."""
    sources: Mapping[str, Path]
    """Name in the repository -> file on this machine."""
    bad_rows: BadRows
    say: Callable[[str], None]
    """Tells the user what goes on, in a line."""


@dataclass(frozen=True, kw_only=True)
class DatasetRecipe:
    """One data set."""

    name: str
    about: str
    repo: str
    """Data set on the hub."""
    files: tuple[str, ...]
    """Names or patterns of its files that are needed."""
    build: Callable[[Workspace], list[Output]]
    """Checks every row and writes the data files; raises DataError when something is wrong."""
