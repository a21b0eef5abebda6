"""`config`: list the sections, the keys of a section, or all facts of a key, in 80 columns."""

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.cli.parser import PROGRAM
from slurm_rl.config.keys import Key, list_keys, nearest_keys, show_value
from slurm_rl.config.load import compose
from slurm_rl.config.parse import parse_config
from slurm_rl.config.preset_folders import conf_dir, site_dirs
from slurm_rl.config.presets import describe_preset, list_presets
from slurm_rl.config.run import RunConfig
from slurm_rl.config.usage import find_changed, find_readers
from slurm_rl.errors import ConfigError, find_near

Presets = Mapping[str, Mapping[str, Path]]
WIDTH = 80


def run(args: argparse.Namespace) -> int:
    overrides = [word for word in args.rest if "=" in word or word.startswith("~")]
    names = [word for word in args.rest if word not in overrides]
    if len(names) > 1:
        action = f"one at a time: {PROGRAM} config {names[0]}"
        raise ConfigError("`config` takes the name of one section, key or group", seen=" ".join(names), action=action)
    folder = args.config_dir
    presets = list_presets([conf_dir(), *site_dirs(folder)])
    config = parse_config(compose(overrides, config_dir=folder)) if overrides else None
    answer = _answer(names[0], presets, config) if names else _overview(presets, config)
    print(json.dumps(_list_as_json(names, config), indent=2) if args.json else "\n".join(answer))
    return 0


def _list_as_json(names: Sequence[str], config: RunConfig | None) -> list[dict[str, Any]]:
    """Return the keys below `names[0]`, with their values if there are overrides."""
    values = None if config is None else config.model_dump(mode="json")
    keys = [key for key in list_keys().values() if not key.is_section]
    chosen = [key for key in keys if not names or f"{key.name}.".startswith(f"{names[0]}.")]
    rows = [{"key": key.name, "type": key.type, "default": key.default, "meaning": key.meaning} for key in chosen]
    return (
        rows
        if values is None
        else [{**row, "value": _find_raw(key, values)} for row, key in zip(rows, chosen, strict=True)]
    )


def _answer(name: str, presets: Presets, config: RunConfig | None) -> Iterator[str]:
    group, keys = name.removeprefix("+"), list_keys()
    table = keys.get(name.rpartition(".")[0])
    key = table if table is not None and table.is_table else keys.get(name)
    if key is not None:
        values = None if config is None else config.model_dump(mode="json")
        return _show_section(key, values, presets) if key.is_section else _show_key(key, values)
    if group in presets:
        return _show_group(group, presets[group])
    groups = [f"+{group}" for group in presets]
    near = " or ".join(nearest_keys(name)) if not name.startswith("+") else find_near(name, groups)
    raise ConfigError(
        "`config` takes a section, a key or +group",
        seen=name,
        action=f"did you mean {near}?" if near else f"{PROGRAM} config lists the sections, {PROGRAM} --help the groups",
    )


def _overview(presets: Presets, config: RunConfig | None) -> Iterator[str]:
    if config is not None:
        yield "set by these overrides and their presets; all other keys have their defaults:"
        yield from (f"  {name}={show_value(value)}" for name, value in find_changed(config))
        return
    yield f"sections, and keys outside of sections ({PROGRAM} config <name>):"
    for key in list_keys().values():
        if "." not in key.name:
            yield f"  {key.name:<12}" + textwrap.shorten(key.meaning, WIDTH - 14, placeholder=" ...")
    yield from _paragraph(f"groups of presets ({PROGRAM} config +<name>): {', '.join(presets)}", 0, hanging=2)


def _show_group(group: str, presets: Mapping[str, Path]) -> Iterator[str]:
    yield f"presets of {group} (+{group}=<name>):"
    for name, file in presets.items():
        yield from _paragraph(f"{name}: {describe_preset(file)}", 2, hanging=4)


def _show_section(section: Key, values: Mapping[str, Any] | None, presets: Presets) -> Iterator[str]:
    yield from _paragraph(f"{section.name}: {section.details or section.meaning}", 0)
    readers = name_readers(section.name)
    yield f"Read with {readers}."
    if section.name in presets:
        yield f"Presets: {PROGRAM} config +{section.name}"
    for key in list_keys().values():
        if not key.name.startswith(f"{section.name}."):
            continue
        yield ""
        if key.is_section:
            yield from _paragraph(f"{key.name}: {key.details}" + (" By default null." if "null" in key.type else ""), 0)
            continue
        value, default = find_value(key, values), show_value(key.default)
        text = f"{key.name}={value}" + ("" if value == default else f"  (default {default})")
        is_short = len(text) + len(key.type) + 2 <= WIDTH
        yield from [f"{text}{key.type:>{WIDTH - len(text)}}"] if is_short else _paragraph(text, 0, hanging=2)
        if not is_short:
            yield from _paragraph(f"({key.type})", 4)
        more = name_readers(key.name)
        yield from _paragraph(key.meaning + ("" if more == readers else f" Read with {more}."), 4)


def _show_key(key: Key, values: Mapping[str, Any] | None) -> Iterator[str]:
    yield key.name
    yield from _paragraph(key.meaning, 2)
    rows = {
        "value": find_value(key, values),
        "default": show_value(key.default),
        "type": key.type,
        "read with": name_readers(key.name),
        "set by": f"+{key.name}.<name>=<value>" if key.is_table else f"{key.name}=<value>",
    }
    yield ""
    for name, text in rows.items():
        yield from _paragraph(f"{name:<11}{text}", 2, hanging=13)


def find_value(key: Key, values: Mapping[str, Any] | None) -> str:
    """Return the value as on a command line; the default without values, or if the section of the key is null."""
    return show_value(_find_raw(key, values))


def _find_raw(key: Key, values: Mapping[str, Any] | None) -> Any:
    found: Any = values
    for part in key.name.split("."):
        found = found.get(part, key.default) if isinstance(found, Mapping) else key.default
    return found


def name_readers(key: str) -> str:
    """Return `task=sft, rm, dpo`, or `every task`."""
    readers = find_readers(key, "")
    return "every task" if readers == ("",) else f"task={', '.join(readers)}"


def _paragraph(text: str, indent: int, hanging: int | None = None) -> Sequence[str]:
    later = " " * (indent if hanging is None else hanging)
    # A URL or a path is not cut.
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
