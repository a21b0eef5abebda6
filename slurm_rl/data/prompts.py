"""Prompts with reference answers from the rows of a data source. Errors name file, row and column.

{"prompt": "3+4=", "answer": "7"}
{"prompt": [{"role": "user", "content": "3+4?"}], "answer": "7"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from slurm_rl.config.data import DataConfig
from slurm_rl.data.lines import shorten
from slurm_rl.data.records import DataSource, read_records
from slurm_rl.errors import DataError

if TYPE_CHECKING:
    from slurm_rl.data.image_parts import Folders

Message: TypeAlias = dict[str, Any]
"""A chat message: `role`, `content` and other keys of the chat template. A content is text, or a list of
parts: `{"type": "text", "text": ...}`, `{"type": "image", "image": <absolute path, or bytes>}`.
"""


Text: TypeAlias = str | list[Message]


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    index: int
    """Position among the rows of its source, from 0; stays when rows are held out."""
    where: str = field(default="", compare=False)
    """`file:line`, or the like; "" for a row that was made here."""

    prompt: Text

    @property
    def name(self) -> str:
        return self.where or f"row {self.index}"

    @property
    def texts(self) -> list[Text]:
        return [self.prompt]


Row = TypeVar("Row", bound=SourceRow)


@dataclass(frozen=True, kw_only=True)
class PromptRow(SourceRow):
    answer: str
    """"" when the data have no reference answers."""
    info: dict[str, Any] = field(default_factory=dict)
    """Further columns, for an environment."""


def load_rows(
    name: str | Path, config: DataConfig, split: str = "train", *, with_info: bool = False
) -> list[PromptRow]:
    """Read every prompt of a file, folder or hub name; `with_info` also reads data.info_keys, or all columns."""
    named = config.info_keys or []
    keys = {"input_key": config.input_key, "label_key": config.label_key, "image_key": config.image_key}
    columns = tuple((column, f"data.{key}") for key, column in keys.items() if column is not None)
    columns += tuple((column, "data.info_keys") for column in named)
    takes_all = with_info and config.info_keys is None
    source = DataSource(
        name=str(name),
        columns=columns,
        subset=config.subset,
        revision=config.revision,
        split=split,
        all_columns=takes_all,
        optional=() if config.tools_key is None else (config.tools_key,),
    )
    others = list(keys.values()) if takes_all else None

    def build(record: dict[str, Any], index: int, where: str) -> PromptRow:
        chosen = named if others is None else [column for column in record if column not in others]
        return _build_row(record, index, config, where, chosen)

    return build_rows(source, build)


def build_rows(source: DataSource, build: Callable[[dict[str, Any], int, str], Row]) -> list[Row]:
    """Read every row of a file, folder or hub name and `build(record, index, where)` a row of it.

    Raises:
        DataError: the source cannot be read or is empty, or a row is invalid.
    """

    from slurm_rl.data.image_parts import Folders

    folder, folders = source.folder, Folders()
    rows: list[Row] = []
    for where, record in read_records(source):
        rows.append(build(record, len(rows), where))
        for text in rows[-1].texts:
            find_images(text, folder, folders, where)
    if not rows:
        raise DataError(
            f"{source.name}: a data file needs at least one row", seen="none", action="write one, or name another"
        )
    return rows


def _build_row(
    row: dict[str, Any], index: int, config: DataConfig, where: str, info_columns: Sequence[str]
) -> PromptRow:
    from slurm_rl.data.image_parts import place_images

    answer = row[config.label_key] if config.label_key is not None else ""
    if not isinstance(answer, str):
        raise DataError(
            f"{where}: column {config.label_key!r} must be a string",
            seen=f"{type(answer).__name__} {shorten(repr(answer))}",
            action="write it in quotes, or set data.label_key to the column with the answer (null: there is none)",
        )
    prompt = parse_prompt(row[config.input_key])
    if prompt is None:
        raise DataError(
            f"{where}: column {config.input_key!r} must be text or a list of messages, each with role and content, "
            "and not empty",
            seen=f"{type(row[config.input_key]).__name__} {shorten(repr(row[config.input_key]))}",
            action="correct the row, or set data.input_key to the column with the prompt",
        )
    if config.image_key is not None:
        prompt = place_images(prompt, row[config.image_key], where)
    if config.tools_key not in info_columns and row.get(str(config.tools_key)):
        raise DataError(
            f"{where}: rows of task=grpo must not define tools",
            seen=f"the column {config.tools_key!r} (data.tools_key)",
            action="set the tools in env.tools, or set data.tools_key=null to train without them",
        )
    info = {column: row[column] for column in info_columns}
    try:
        json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: columns for an environment must be valid JSON values",
            seen=f"{error} in {shorten(repr(info))}",
            action="name those that it needs in data.info_keys; write text, numbers, lists or objects of these",
        ) from None
    return PromptRow(index=index, where=where, prompt=prompt, answer=answer, info=info)


def find_images(text: Text, folder: Path | None, folders: Folders, where: str) -> None:
    from slurm_rl.data.image_parts import resolve_images

    if isinstance(text, str):
        return
    missing = [path for path in resolve_images(text, folder, folders) if not folders.has(path)]
    if missing:
        raise DataError(
            f"{where}: an image file must exist",
            seen=missing[0],
            action="correct the path; relative ones start at the data file",
        )


def parse_prompt(value: Any) -> Text | None:
    """Text, or messages (also as JSON in a string); None for anything else."""
    if isinstance(value, str):
        return _parse_messages(value) or (value if value.strip() else None)
    if not isinstance(value, list) or not all(map(_is_message, value)) or all(map(_is_blank, value)):
        return None
    return [_clean(message) for message in value]


def _parse_messages(text: str) -> list[Message] | None:
    """The messages in a string of JSON, as LMM-R1 and OpenRLHF-M store them; None for other text."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return parse_prompt(value) if isinstance(value, list) else None  # type: ignore[return-value]


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    if "content" not in value and not value.get("tool_calls"):
        return False
    content = value.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) for part in content)
    return content is None or isinstance(content, str)


def _is_blank(message: Message) -> bool:
    """Return whether a message is empty; turns of the assistant are checked as answers."""
    content = message["content"]
    return message["role"] != "assistant" and not (content.strip() if isinstance(content, str) else content)


def _clean(message: Message) -> Message:
    """Without the keys that columnar formats add: there all parts have all keys, most of them None."""
    cleaned = {"content": None, **{key: value for key, value in message.items() if value is not None}}
    if isinstance(cleaned["content"], list):
        cleaned["content"] = [
            {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else part
            for part in cleaned["content"]
        ]
    return cleaned


_SHOWN = 10


def refuse_lost(name: str, text: str, lost: str) -> None:
    """Raise DataError where characters of a row's text are lost; `lost` shows them, "" when there are none."""
    if lost:
        raise DataError(
            f"{name}: the tokenizer must be able to encode every character",
            seen=f"{lost} in {shorten(text)!r}",
            action="remove the characters, or choose a model whose tokenizer has them",
        )


def too_long(name: str, text: str, num_tokens: int, longest: int) -> DataError:
    return DataError(
        f"{name}: a prompt must fit in data.max_prompt_tokens = {longest}",
        seen=f"{num_tokens} tokens, {shorten(text)!r}",
        action=f"raise data.max_prompt_tokens to {num_tokens}, or set data.overlong_prompts=leave_out",
    )


def show_characters(characters: Iterable[str]) -> str:
    """The first few different ones, for a message; "" when there are none."""
    return ", ".join(map(ascii, list(dict.fromkeys(characters))[:_SHOWN]))
