"""Rows of a data file on a URL: fetched whole into a temporary folder, read there, and named by its URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError
from slurm_rl.filesystem import open_filesystem

SUFFIXES = (".jsonl", ".json", ".parquet")


Records = Iterator[tuple[str, dict[str, Any]]]


def read_url_records(url: str, read: Callable[[Path], Records]) -> Records:
    """Yield what `read` makes of the file, with the URL where it says the path.

    Raises:
        ConfigError: nobody here can open the URL.
        DataError: it is of another kind, cannot be fetched, or is wrong.
    """
    name = url.rstrip("/").rpartition("/")[2]
    if not name.endswith(SUFFIXES):
        raise DataError(
            "data on a URL must be one .jsonl, .json or .parquet file",
            seen=url,
            action="name the file; of a folder, the `datasets` library reads what lies on a path",
        )
    filesystem, source = open_filesystem(url)
    with tempfile.TemporaryDirectory(prefix="srl-data-") as folder:
        path = Path(folder) / name
        try:
            filesystem.get_file(source, str(path))
        except Exception as error:  # every library behind fsspec has errors of its own
            raise DataError(
                "a data file must be readable",
                seen=f"{url} ({type(error).__name__}: {error})",
                action="look at the URL and at the credentials in the environment of this machine",
            ) from None

        def named(text: str) -> str:
            return text.replace(str(path), url)

        try:
            for where, row in read(path):
                yield named(where), row
        except DataError as error:
            raise type(error)(named(error.rule), seen=named(str(error.seen)), action=error.action) from None
