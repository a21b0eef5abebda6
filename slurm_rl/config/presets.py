"""List the presets of each config group, shipped ones and a site's."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.config.overrides import GROUPS
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.yaml_text import read_text
from slurm_rl.errors import ConfigError

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"


def list_presets(folders: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Return group -> name -> file. Of two files with one name the first folder's is used, as in Hydra.

    Args:
        folders: `conf_dir()`, then a site's.
    """
    return {
        group: {path.stem: path for root in reversed(folders) for path in sorted((root / group).glob("*.yaml"))}
        for group in GROUPS
    }


def describe_preset(file: Path) -> str:
    """Return the first sentence of the leading comment, or an empty text."""
    lines = [line for line in read_text(file).splitlines() if not line.startswith("# @package")]
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    words = " ".join(line.lstrip("#") for line in comment).split()
    return re.split(r"(?<=\.)(?<!Dr\.) (?=[A-Z])", " ".join(words))[0]


def check_preset_name(group: str, name: str) -> None:
    """Raise ConfigError if a new preset cannot have this name."""
    action = "choose another --name"
    if not re.fullmatch(_NAME, name):
        rule = "the name of a preset must consist of letters, digits, _ and -"
        raise ConfigError(rule, seen=repr(name), action=action)
    if (conf_dir() / group / f"{name}.yaml").is_file():
        raise ConfigError("a preset must not have the name of a built-in one", seen=name, action=action)
