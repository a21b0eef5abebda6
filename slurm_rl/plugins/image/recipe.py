"""Copy a recipe and its inputs into a small folder: the engine's build context and the input of the hash."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.config.preset_folders import shipped_dir
from slurm_rl.plan.accelerator import AcceleratorKind

RECIPES: dict[AcceleratorKind, str] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
OTHERS = ("verl", "openrlhf", "maxtext")
"""Tasks of other trainers that have their own image recipe."""
LABEL = "slurm_rl.recipe"
"""Image label with the hash of the recipe."""


@dataclass(frozen=True)
class Recipe:
    """Folder and build arguments of an image."""

    name: str
    """A folder of containers/."""
    args: Mapping[str, str] = field(default_factory=dict)
    """--build-arg of the engine; BASE is the image to start from."""

    @property
    def containerfile(self) -> str:
        return f"containers/{self.name}/Containerfile"


def write_context(recipe: Recipe, folder: Path) -> None:
    """Copy the recipe and the files that it reads into `folder`."""
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


def hash_recipe(recipe: Recipe, folder: Path) -> str:
    """Return the SHA-256 of the build context and arguments; a base given by tag may change without it."""
    digest = hashlib.sha256(json.dumps(sorted(recipe.args.items())).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
