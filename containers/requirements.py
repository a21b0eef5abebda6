"""What an image must hold, read from pyproject.toml, so that recipes and extras cannot drift apart.

    python containers/requirements.py cuda > requirements.txt

Standard library alone: it runs in the bare base image.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def collect_requirements(extra: str, project: Path = PROJECT) -> list[str]:
    """Dependencies of slurm_rl[extra], extras of its own followed; KeyError for an extra that is not there."""
    tree = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found: list[str] = list(tree["dependencies"])
    wanted = [extra]
    while wanted:
        for requirement in tree["optional-dependencies"][wanted.pop()]:
            own = re.fullmatch(rf"{tree['name']}\[([a-z]+)\]", requirement)
            if own:
                wanted.append(own[1])
            else:
                found.append(requirement)
    return found


if __name__ == "__main__":
    print("\n".join(collect_requirements(sys.argv[1])))
