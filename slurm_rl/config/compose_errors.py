"""Translate config errors of Hydra, OmegaConf and pydantic, with the nearest valid name."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_rl.config.cluster import RESERVED_OPTIONS
from slurm_rl.config.external import ExternalConfig
from slurm_rl.config.keys import has_key, list_keys, nearest_keys
from slurm_rl.config.overrides import GROUPS
from slurm_rl.errors import ConfigError, find_near


@contextlib.contextmanager
def explain_hydra() -> Iterator[None]:
    """Raise ConfigError for errors of Hydra and OmegaConf."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        # Hydra raises the last two for a group set to a number or null.
        raise explain_compose_error(error) from None


def explain_compose_error(error: Exception) -> ConfigError:
    """Return Hydra's error with the nearest valid name, without its advice to append the typo."""
    text = str(error).strip()
    nested = re.search(r"In '([^']+)': Could not override '(\w+)'", text)
    if nested and nested.group(1) != "config":
        group = nested.group(2)
        return ConfigError(
            "a preset includes another by its path",
            seen=f"an override of {group} in {nested.group(1)}",
            action=f"write `- /{group}/<name>` in its defaults list",
        )
    if missing := re.search(r"Could not (?:find|load) '(\w+)/([^']+?)'", text):
        return _unknown_preset(missing[1], missing[2], text)
    match = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if match:
        return _unknown_key(match.group(1))
    if isinstance(error, TypeError) or text.startswith("Config group override must be"):
        action = "python -m slurm_rl --help lists the groups and their presets"
        return ConfigError("a config group takes the name of a preset, as in model=hf", seen=text, action=action)
    if type(error).__name__ == "OverrideParseException":
        # Shell and Hydra remove one layer of quotes each.
        hint = """quote values with spaces or special characters for both the shell and Hydra: 'key="a b"'"""
        return ConfigError(f"the overrides must parse: {text}", action=hint)
    return ConfigError(f"the overrides must compose: {text}")


def _unknown_preset(group: str, name: str, text: str) -> ConfigError:
    """Return the error for a preset that is in none of the folders of Hydra's message."""
    if group not in GROUPS:
        near = find_near(group, GROUPS)
        action = f"did you mean {near}?" if near else f"choose one of {', '.join(GROUPS)}"
        return ConfigError("there is no config group of this name", seen=group, action=action)
    folders = [Path(folder) for folder in re.findall(r"path=(?:file|preset)://(.+)", text)]
    options = sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})
    near = find_near(name, options)
    action = f"did you mean {near}?" if near else "choose one of them"
    place = re.search(r"In '(\w+/[^']+)'", text)
    seen = f"{name}{f' in the preset {place[1]}' if place else ''}; there are {', '.join(options)}"
    if near is None:  # a preset of a project, called in another folder
        action += "; own presets are found in conf of the current folder, or below --config-dir"
    return ConfigError(f"{group} has no preset of this name", seen=seen, action=action)


def _unknown_key(key: str) -> ConfigError:
    section, keys = key.rpartition(".")[0], list_keys()
    if any(name in keys and keys[name].is_table for name in (key, section)):
        # Hydra appends to a table such as cluster.env only with `+`.
        entry = f"{key}.<name>" if key in keys else key
        return ConfigError(
            "a new entry of a table needs a leading +", seen=key, action=f"add an entry: +{entry}=<value>"
        )
    if key not in keys and has_key(key):
        return ConfigError(
            "a key that the entry does not set yet needs a plus", seen=key, action=f"write +{key}=<value>"
        )
    if section == "cluster.slurm":
        # An option of sbatch has another key, or belongs in extra.
        option = key.rpartition(".")[2].replace("_", "-")
        action = RESERVED_OPTIONS.get(option) or f"write +cluster.slurm.extra.{option.replace('-', '_')}=<value>"
        known = nearest_keys(key) if option not in RESERVED_OPTIONS else []
        hint = f"did you mean {known[0]}? Any other option of sbatch: " if known else ""
        return ConfigError("the key must exist in the config", seen=key, action=hint + action)
    if section == "external" and key not in keys:
        return ConfigError(
            f"external has {', '.join(ExternalConfig.model_fields)}, and the program's arguments by their own names",
            seen=key,
            action="external.args.<name>=<value>; `python -m slurm_rl --cfg job` shows those of the preset",
        )
    if key in keys:
        seen = f"{key}, and {section} is null with these groups, or lacks the key"
        action = f"choose a group that has {section}; where it has, write +{key}=<value>"
        return ConfigError("a key can be set if its section is on", seen=seen, action=action)
    near = " or ".join(nearest_keys(key))
    hint = f"did you mean {near}?" if near else "see `python -m slurm_rl config` for every key"
    return ConfigError("the key must exist in the config", seen=key, action=hint)


def explain_field(item: Any) -> str:
    """Return one line for an item of `ValidationError.errors()`."""
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return str(_unknown_key(path))
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{path}: {message}" if path else message
    value = item["input"]
    if item["type"] == "tuple_type":
        key = path.partition(".tuple[")[0]  # the path into a union ends with the member's type
        if isinstance(value, str) and value:
            return f"{key}: must be a list; got {value!r}. Next: '{key}=[{value}]'"
        empty = f", or '{key}=[]' for none" if key == path else ""
        return f"{key}: must be a list; got {value!r}. Next: '{key}=[<value>,<value>]'{empty}"
    return f"{path}: {message}; got {value!r}"
