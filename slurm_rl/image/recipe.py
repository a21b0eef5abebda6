"""A recipe with all that it reads, as one small folder: what the engine gets, and what the hash is of."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.config.load import shipped_dir
from slurm_rl.errors import ConfigError
from slurm_rl.plan.accelerator import AcceleratorKind

RECIPES: dict[AcceleratorKind, str] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
LABEL = "slurm_rl.recipe"
"""Of an image in an engine's store: the hash it was built from."""


@dataclass(frozen=True)
class Recipe:
    """What is built, and with which arguments."""

    name: str
    """A folder of containers/."""
    args: Mapping[str, str] = field(default_factory=dict)
    """--build-arg of the engine; BASE is the image to start from."""

    @property
    def containerfile(self) -> str:
        return f"containers/{self.name}/Containerfile"


def write_context(recipe: Recipe, folder: Path) -> None:
    """Copy the recipe and the files it takes into `folder`: nothing else of the checkout reaches the engine.

    Raises:
        ConfigError: the recipe must be told its base and was not.
    """
    shipped = shipped_dir("containers", "requirements.py")
    # In a checkout the lists of packages lie next to the folder; a wheel has them inside.
    lists = shipped if (shipped / "pyproject.toml").is_file() else shipped.parent
    (folder / recipe.containerfile).parent.mkdir(parents=True)
    for source, name in (
        (lists / "pyproject.toml", "pyproject.toml"),
        (lists / "constraints.txt", "constraints.txt"),
        (shipped / "requirements.py", "containers/requirements.py"),
    ):
        shutil.copyfile(source, folder / name)
    for source in (shipped / recipe.name).iterdir():
        shutil.copyfile(source, folder / "containers" / recipe.name / source.name)
    text = (folder / recipe.containerfile).read_text(encoding="utf-8")
    if re.search(r"^ARG BASE$", text, re.MULTILINE) and "BASE" not in recipe.args:
        raise ConfigError(
            f"the recipe {recipe.name} must be told its base image",
            action="--base=<reference>; containers/README.md says which",
        )


def hash_recipe(recipe: Recipe, folder: Path) -> str:
    """SHA-256 of all that the build depends on, as far as we hold it in hand (a base by tag may move)."""
    digest = hashlib.sha256(json.dumps(sorted(recipe.args.items())).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
