"""Recipes of data sets: files of a repository and their conversion to rows. Bad rows are collected and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.config.user_files.load import require_library
from slurm_rl.data.parquet import read_parquet_rows
from slurm_rl.errors import DataError
from slurm_rl.plugins.prepare.manifest import Output, sha256_of
from slurm_rl.rewards.check_references import find_unscorable
from slurm_rl.run_dir.run_dir import write_text

_SHOWN = 10
_MAX_UNSCORABLE = 0.05


class BadRows:
    """Rows that break a rule, by number; all are collected before they are reported.

    Args:
        leave_out: continue without them; the manifest lists each.
    """

    def __init__(self, leave_out: bool) -> None:
        self.leave_out = leave_out
        self.found: list[str] = []
        self.unscorable: list[str] = []
        """Rows whose answer the verifier cannot read; always omitted."""

    def add(self, where: str, why: str) -> None:
        self.found.append(f"{where}: {why}")

    def check(self, source: str, num_good: int) -> None:
        """Raise if bad rows may not be omitted.

        Raises:
            DataError: there are bad rows, or no good row.
        """
        if self.found and not self.leave_out:
            more = len(self.found) - _SHOWN
            raise DataError(
                f"{source}: every row must be complete; {len(self.found)} of {len(self.found) + num_good} are not",
                seen="; ".join(self.found[:_SHOWN]) + (f"; and {more} more" if more > 0 else ""),
                action="continue without them with --leave-out-bad-rows, or choose another --revision",
            )
        if not num_good:
            raise DataError(f"{source}: at least one row must be usable", seen="none")


Row = dict[str, Any]
T = TypeVar("T")


def drop_unscorable(
    source: str, rows: list[tuple[str, Row]], bad_rows: BadRows, say: Callable[[str], None]
) -> list[Row]:
    """Return the rows whose `answer` the math verifier can read; record the others as omitted.

    Args:
        rows: (file and number, row).

    Raises:
        DataError: too many answers are unreadable.
    """
    say(f"checking the reference answers of {len(rows)} rows")
    unscorable = find_unscorable(row["answer"] for _, row in rows)
    left = [(where, row) for where, row in rows if row["answer"] in unscorable]
    if len(left) > _MAX_UNSCORABLE * len(rows):
        where, row = left[0]
        raise DataError(
            f"{source}: the math verifier must be able to score nearly all answers, all but {_MAX_UNSCORABLE:.0%}",
            seen=f"{len(left)} of {len(rows)} it cannot, first {where}: {row['answer']}",
            action="choose another --revision",
        )
    for where, row in left:
        bad_rows.unscorable.append(f"{where}: column 'answer' {row['answer']!r}: {unscorable[row['answer']]}")
    return [row for _, row in rows if row["answer"] not in unscorable]


def read_parquet(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row from 0, values of these columns).

    Raises:
        DataError: the file is not parquet, or lacks a column.
        ConfigError: pyarrow is not installed.
    """
    require_library("pyarrow", "parquet files need pyarrow")
    import pyarrow

    def choose(names: list[str]) -> tuple[str, ...]:
        missing = [column for column in columns if column not in names]
        if missing:
            raise DataError(f"{path} must have the column {missing[0]!r}", seen=f"the columns {', '.join(names)}")
        return columns

    try:
        yield from enumerate(read_parquet_rows(path, choose))
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} must be a parquet file", seen=str(error)) from None


def read_splits(
    work: Workspace, name: str, columns: tuple[str, ...], convert: Callable[[Row], T | str]
) -> Iterator[tuple[str, list[tuple[str, T]]]]:
    """Yield (split, its rows with file and number) of train and test, from the parquet files of each.

    Args:
        name: name of the data set.
        columns: columns to read.
        convert: returns the converted row, or the text of an error.
    """
    for split in ("train", "test"):
        rows: list[tuple[str, T]] = []
        for file, path in sorted(work.sources.items()):
            for number, row in read_parquet(path, columns) if f"/{split}-" in file else ():
                made, where = convert(row), f"{file} row {number}"
                if isinstance(made, str):
                    work.bad_rows.add(where, made)
                else:
                    rows.append((where, made))
        work.bad_rows.check(f"{name} {split}", len(rows))
        yield split, rows


def write_rows(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> Output:
    """Write one JSON object per line, atomically."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path = folder / name
    write_text(path, "".join(lines))
    return Output(file=name, size=path.stat().st_size, sha256=sha256_of(path), rows=len(lines))


BOXED = "\nThink step by step, and put the final answer in \\boxed{}."
"""Ends the prompt of the mathematics data sets: the `math` verifier reads LaTeX, boxed first."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Inputs and output folder of a recipe."""

    folder: Path
    """Absolute path of the output folder; files are written under a temporary name first."""
    sources: Mapping[str, Path]
    """Name in the repository -> local file."""
    bad_rows: BadRows
    say: Callable[[str], None]
    """Prints one line of progress."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A row for verl.

    >>> Question(text="How much is 1 + 1?", answer="2", solution="1 + 1 = 2")
    Question(text='How much is 1 + 1?', answer='2', solution='1 + 1 = 2')
    """

    text: str
    """Text of the data set."""
    answer: str
    """Reference of the scorer: reward_model.ground_truth."""
    solution: str
    """Full solution of the data set."""


@dataclass(frozen=True, kw_only=True)
class VerlForm:
    """Conversion of one data set for verl."""

    data_source: str
    """Key of verl's scorer."""
    instruction: str
    """End of each prompt, as in verl's own preprocessing; its scorer expects answers of this form."""
    columns: tuple[str, ...]
    """Columns to read."""
    convert: Callable[[Row], Question | str]
    """Returns the question of a row, or the text of an error."""


@dataclass(frozen=True, kw_only=True)
class DatasetRecipe:
    """One data set."""

    name: str
    about: str
    repo: str
    """Data set on the hub."""
    files: tuple[str, ...]
    """Names or patterns of the required files."""
    build: Callable[[Workspace], list[Output]]
    """Checks all rows and writes the data files; raises DataError."""
    verl: VerlForm | None = None
    """Conversion for verl; None if verl has no scorer."""
