"""Rows of a data source as plain dicts, each with its place: file and line, or row.

rows.jsonl       file:line, from 1       one JSON object per line
rows.json        file row N, from 0      one list of objects
rows.parquet     file row N              read in batches, only the requested columns
a folder         folder row N            saved by the `datasets` library, or a folder of files it reads
org/name         name row N              a data set of the Hugging Face hub, from the cache or the network
gs://.../rows.jsonl                      a file of the first three kinds on any fsspec URL
"""

import difflib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_rl.config.paths import expand_user, is_url
from slurm_rl.data.lines import build_object, parse_object, read_lines, shorten, unreadable
from slurm_rl.errors import DataError, MissingLibraryError

Record = tuple[str, dict[str, Any]]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class DataSource:
    name: str
    """File, folder, hub name or URL of a file."""
    columns: tuple[tuple[str, str], ...]
    """(column, config key that names it) of every required column."""
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    optional: tuple[str, ...] = ()
    all_columns: bool = False

    def present(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read, out of `names`."""
        if self.all_columns:
            return list(names)
        return [column for column, _ in self.columns] + [column for column in self.optional if column in names]

    @property
    def folder(self) -> Path | None:
        """Start of relative paths in the rows; None for a hub name and a URL."""
        if is_url(self.name):
            return None
        path = expand_user(self.name).absolute()
        return path if path.is_dir() else path.parent if path.exists() else None


def read_records(source: DataSource) -> Iterator[Record]:
    """Yield every row with all required columns.

    Raises:
        DataError: the source is missing, of another format, damaged, or lacks a column.
        MissingLibraryError: its format needs a library that is not installed here.
    """
    if is_url(source.name):
        return _read_url(source)
    path = expand_user(source.name)
    if path.is_dir():
        return _read_dataset(source, path)
    if not path.exists() and re.search(r"[*?,\[]", source.name):
        raise DataError(
            "data must be one file, folder or hub name",
            seen=f"{source.name}, a list or a pattern of files",
            action="put the files into one folder and name the folder, or name each in data.sources (task=grpo)",
        )
    if path.suffix == ".jsonl":
        return _read_jsonl(source, path)
    if path.suffix == ".json":
        return _read_json(source, path)
    if path.suffix == ".parquet":
        return _read_parquet(source, path)
    if not path.exists() and _HUB_NAME.fullmatch(source.name):
        return _read_dataset(source, None)
    if path.name.endswith((".gz", ".zst", ".bz2", ".xz")):
        raise DataError(
            "a data file must not be compressed",
            seen=source.name,
            action="decompress it, or put it into a folder of its own and name the folder",
        )
    raise DataError(
        "data must be a .jsonl, .json or .parquet file, a folder, or a hub name org/name",
        seen=f"{source.name} ({'a file of another kind' if path.exists() else 'which does not exist'})",
        action="set data.train or data.eval to one that exists on every node",
    )


_USUAL = {
    "data.input_key": ("question", "problem", "instruction", "query", "input", "messages"),
    "data.label_key": ("solution", "label", "target", "ground_truth", "response", "output"),
}
"""Names of these columns in other data sets, most likely first."""


def require_columns(source: DataSource, names: Sequence[str], where: str) -> None:
    """Raise DataError for the first required column that is not among `names`."""
    for column, option in source.columns:
        if column not in names:
            usual = [name for name in _USUAL.get(option, ()) if name in names]
            free = [name for name in names if name not in [taken for taken, _ in source.columns]]
            similar = difflib.get_close_matches(column, free, n=1)
            nearest = similar or usual or difflib.get_close_matches(column, free or names, n=1, cutoff=0.0)
            raise DataError(
                f"{where} must have the column {column!r} ({option})",
                seen=f"the columns {', '.join(map(repr, names)) or '(none)'}",
                action=f"set {option}={nearest[0]}, or another of them" if nearest else "correct the row",
            )


def _read_url(source: DataSource) -> Iterator[Record]:
    """Download the file into a temporary folder and read it there; rows and errors name the URL."""

    from slurm_rl.run_dir.filesystem import open_filesystem

    url = source.name
    name = url.rstrip("/").rpartition("/")[2]
    if not name.endswith((".jsonl", ".json", ".parquet")):
        raise DataError(
            "data at a URL must be one .jsonl, .json or .parquet file",
            seen=url,
            action="name the file; a folder must be on a local path",
        )
    filesystem, remote = open_filesystem(url)
    with tempfile.TemporaryDirectory(prefix="srl-data-") as folder:
        path = Path(folder) / name
        try:
            filesystem.get_file(remote, str(path))
        except Exception as error:  # every library behind fsspec has errors of its own
            raise DataError(
                "a data file must be readable",
                seen=f"{url} ({type(error).__name__}: {error})",
                action="check the URL and the credentials in the environment of this machine",
            ) from None

        def named(text: str) -> str:
            return text.replace(str(path), url)

        try:
            for where, row in read_records(replace(source, name=str(path))):
                yield named(where), row
        except DataError as error:
            raise type(error)(named(error.rule), seen=named(str(error.seen)), action=error.action) from None


def _read_jsonl(source: DataSource, path: Path) -> Iterator[Record]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        row = parse_object(line, where)
        require_columns(source, list(row), where)
        yield where, row


def _read_json(source: DataSource, path: Path) -> Iterator[Record]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text, object_pairs_hook=lambda pairs: build_object(pairs, str(path)))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise DataError(f"{path}: the file must be JSON in UTF-8", seen=str(error), action="correct it") from None
    if not isinstance(rows, list):
        raise DataError(
            f"{path}: a .json file must hold one list of objects",
            seen=type(rows).__name__,
            action="write [{...}, {...}], or one object per line in a .jsonl file",
        )
    for number, row in enumerate(rows):
        where = f"{path} row {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: a row must be an object", seen=f"{type(row).__name__} {shorten(repr(row))}")
        require_columns(source, list(row), where)
        yield where, row


def _read_parquet(source: DataSource, path: Path) -> Iterator[Record]:
    from slurm_rl.data.parquet import read_parquet_rows

    try:
        import pyarrow
    except ImportError:
        raise _missing_library("pyarrow", path.name) from None

    def choose(names: list[str]) -> list[str]:
        require_columns(source, names, str(path))
        return source.present(names)

    try:
        for number, row in enumerate(read_parquet_rows(path, choose)):
            yield f"{path} row {number}", _without_padding(source, row)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        raise DataError(
            f"{path}: the file must be parquet", seen=shorten(str(error)), action="write it again"
        ) from None


def _read_dataset(source: DataSource, folder: Path | None) -> Iterator[Record]:
    data = _open_dataset(source, folder)
    require_columns(source, data.column_names, f"{source.name} (split {source.split})")
    from datasets import Image

    data = data.select_columns(source.present(data.column_names))
    for name, feature in data.features.items():
        if isinstance(feature, Image):
            # Keep paths or bytes; images are decoded on use.
            data = data.cast_column(name, Image(decode=False))
    for number, row in enumerate(data):
        yield f"{source.name} row {number}", _without_padding(source, row)


def _without_padding(source: DataSource, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without the null keys that columnar formats add; columns for an environment stay unchanged."""
    columns = {column for column, option in source.columns if option != "data.info_keys"} | set(source.optional)
    return {column: _drop_missing(value) if column in columns else value for column, value in row.items()}


def _drop_missing(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_missing(one) for one in value]
    if isinstance(value, dict):
        return {key: _drop_missing(one) for key, one in value.items() if one is not None or key == "content"}
    return value


def _open_dataset(source: DataSource, folder: Path | None) -> Any:
    try:
        from datasets import DatasetDict, load_dataset, load_from_disk
    except ImportError:
        raise _missing_library("datasets", source.name) from None
    try:
        if folder and any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
            data = load_from_disk(str(folder))
            if not isinstance(data, DatasetDict):
                return data
            if source.split not in data:
                raise ValueError(f"the splits are {', '.join(data)}")
            return data[source.split]
        if folder is not None:
            return load_dataset(str(folder), source.subset, split=source.split)
        return load_dataset(source.name, source.subset, split=source.split, revision=source.revision)
    except Exception as error:  # readers of the library raise any error
        raise DataError(
            f"data set {source.name} (subset {source.subset}, split {source.split}) must be one that can be read",
            seen=f"{type(error).__name__}: {shorten(' '.join(str(error).split()) or 'no word', 300)}",
            action="check its name, data.subset, data.revision, data.train_split and data.eval_split; a private one "
            "needs HF_TOKEN",
        ) from None


def _missing_library(name: str, what: str) -> MissingLibraryError:
    return MissingLibraryError(
        f"{what} needs {name}", seen="not installed", action=f"pip install {name}, or convert the data to .jsonl"
    )
