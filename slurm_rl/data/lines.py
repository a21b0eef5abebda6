"""Lines of a .jsonl file with their numbers; errors name `file:line`.

UTF-8 with or without a byte order mark and both line ends are read; any other encoding is an error.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError

_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16: its byte order mark is a prefix
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of the lines that are not blank; raise DataError if the file is not UTF-8."""
    try:
        # Split bytes at \n only: text lines also end at characters that JSON strings may contain.
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text = _decode(raw, path, number)
                if text.strip():
                    yield number, text
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        "a data file must be readable",
        seen=f"{path} ({error.strerror})",
        action="correct data.train, data.eval or data.root; `python -m slurm_rl prepare` downloads gsm8k and others",
    )


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Return one JSON object; raise DataError if it is not JSON, not an object, or has a repeated key."""
    try:
        value = json.loads(line, object_pairs_hook=lambda pairs: build_object(pairs, where))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{where}: a line must be JSON ({error})", seen=shorten(line.strip()), action="correct the line"
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: a line must be one JSON object",
            seen=f"{type(value).__name__} {shorten(line.strip())}",
            action="write one object per line (jq -c '.[]' turns an array into that)",
        )
    return value


def shorten(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def build_object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Parse a JSON object; raise DataError for a repeated key."""
    built = dict(pairs)
    if len(built) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(
            f"{where}: an object must not repeat a key",
            seen=f"{', '.join(map(repr, twice))} twice",
            action="correct the row",
        )
    return built


def _decode(raw: bytes, path: Path, number: int) -> str:
    if number == 1:
        wide = next((name for mark, name in _WIDE.items() if raw.startswith(mark)), None)
        if wide or b"\0" in raw:
            name = wide or "UTF-16"
            raise DataError(
                f"{path}: a data file must be UTF-8",
                seen=f"{name} (by its {'byte order mark' if wide else 'zero bytes'})",
                action=f"iconv -f {name} -t UTF-8 {path} > utf8.jsonl",
            )
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: a data file must be UTF-8",
            seen=f"byte 0x{raw[error.start]:02x} at column {error.start + 1}",
            action="convert the file with iconv -f <its encoding> -t UTF-8",
        ) from None
