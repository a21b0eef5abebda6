"""Programs that build images: podman and docker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.recipe import LABEL, Recipe
from slurm_rl.plugins.image.tools import open_output, run_tool, try_tool


@dataclass(frozen=True)
class ImageConfig:
    """Environment, command and labels of an image."""

    env: tuple[str, ...] = ()
    """NAME=value."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = "/"
    labels: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ImageConfig:
        env, entrypoint, cmd = (tuple(tree.get(key) or ()) for key in ("Env", "Entrypoint", "Cmd"))
        return ImageConfig(env, entrypoint, cmd, tree.get("WorkingDir") or "/", dict(tree.get("Labels") or {}))


@dataclass(frozen=True)
class Engine:
    """podman or docker, which have the same commands."""

    program: str

    def build(self, recipe: Recipe, context: Path, tag: str, label: str, extra: Sequence[str]) -> None:
        """Build the recipe in `context` and tag it."""
        args = [f"--build-arg={name}={value}" for name, value in recipe.args.items()]
        file = f"--file={context / recipe.containerfile}"
        labels = f"--label={LABEL}={label}"
        run_tool([self.program, "build", file, f"--tag={tag}", labels, *args, *extra, str(context)])

    def inspect(self, ref: str) -> ImageConfig | None:
        """Return the config of an image; None if it is not in the store."""
        done = try_tool([self.program, "image", "inspect", ref])
        return None if done.returncode else ImageConfig.from_json(json.loads(done.stdout)[0]["Config"] or {})

    def pull(self, ref: str) -> None:
        run_tool([self.program, "pull", ref])

    def save(self, ref: str, path: Path) -> None:
        """Write the image as an archive that apptainer reads."""
        run_tool([self.program, "save", f"--output={path}", ref], grows=path)

    @contextmanager
    def export(self, ref: str) -> Iterator[BinaryIO]:
        """Yield the root file system as a stream of tar."""
        with open_output([self.program, "create", ref, "/bin/true"]) as output:
            container = output.read().decode().split()[-1]
        try:
            with open_output([self.program, "export", container]) as stream:
                yield stream
        finally:
            try_tool([self.program, "rm", "--force", container])


ENGINES = ("podman", "docker")


APPTAINER = "apptainer"
"""Builds and imports .sif without an engine."""


def is_apptainer_only(runtime: str, wanted: str | None, ref: str = "") -> bool:
    """Return whether apptainer makes the image by itself: requested, or the only program here.

    Args:
        ref: image to import, which is not in an engine's store.
    """
    if runtime != APPTAINER or wanted in ENGINES or ref.startswith("localhost/"):
        return False
    return wanted == APPTAINER or bool(ref) or not any(map(shutil.which, ENGINES))


def choose_engine(wanted: str | None = None) -> Engine:
    """Return the requested engine, or the first one that answers.

    Raises:
        ConfigError: no engine answers; with the reason for each.
    """
    if wanted is not None and wanted not in ENGINES:
        action = f"one of {', '.join(ENGINES)}, or {APPTAINER} for container.runtime={APPTAINER}"
        raise ConfigError("--engine must be a supported one", seen=wanted, action=action)
    reasons = []
    for name in [wanted] if wanted else ENGINES:
        if shutil.which(name) is None:
            reasons.append(f"{name} is not on PATH")
            continue
        done = try_tool([name, "info"])
        if done.returncode == 0:
            return Engine(name)
        reasons.append(f"{name} does not answer ({(done.stderr.strip().splitlines() or ['no output'])[-1]})")
    raise ConfigError(
        "building an image needs podman or docker",
        seen="; ".join(reasons),
        action="install one (podman needs no root), or build on another machine and bring the file here, "
        "or import one: python -m slurm_rl image import --from=<reference or root.tar>",
    )
