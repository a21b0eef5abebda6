"""List the presets of each config group, shipped ones and a site's."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.config.overrides import GROUPS
from slurm_rl.config.yaml_text import read_text


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
