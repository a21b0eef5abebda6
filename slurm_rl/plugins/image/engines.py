"""The programs that build images: podman, docker, buildah. A further one is a class and a row in ENGINES."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.recipe import LABEL, Recipe
from slurm_rl.plugins.image.tools import ask_tool, open_output, run_tool, tell_tool


@dataclass(frozen=True)
class ImageConfig:
    """How an image wants its command started."""

    env: tuple[str, ...] = ()
    """NAME=value."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = "/"
    labels: Mapping[str, str] | None = None

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ImageConfig:
        return ImageConfig(
            env=tuple(tree.get("Env") or ()),
            entrypoint=tuple(tree.get("Entrypoint") or ()),
            cmd=tuple(tree.get("Cmd") or ()),
            workdir=tree.get("WorkingDir") or "/",
            labels=dict(tree.get("Labels") or {}),
        )


class Podman:
    """podman, and with the same words docker."""

    program = "podman"

    def build(self, recipe: Recipe, context: Path, tag: str, label: str, extra: Sequence[str]) -> None:
        """Build the recipe in `context` and tag it."""
        args = [f"--build-arg={name}={value}" for name, value in recipe.args.items()]
        file = f"--file={context / recipe.containerfile}"
        labels = f"--label={LABEL}={label}"
        run_tool([self.program, "build", file, f"--tag={tag}", labels, *args, *extra, str(context)])

    def inspect(self, ref: str) -> ImageConfig | None:
        """The image's own config; None when the store does not hold it."""
        done = ask_tool([self.program, "image", "inspect", ref])
        return None if done.returncode else ImageConfig.from_json(json.loads(done.stdout)[0]["Config"] or {})

    def pull(self, ref: str) -> None:
        run_tool([self.program, "pull", ref])

    def load_root(self, tar: Path, ref: str, label: str) -> None:
        """An image of one layer from the tar of a root file system."""
        run_tool([self.program, "import", f"--change=LABEL {LABEL}={label}", str(tar), ref])

    def save(self, ref: str, path: Path) -> None:
        """The image as an archive that apptainer reads."""
        run_tool([self.program, "save", "--format=docker-archive", f"--output={path}", ref], grows=path)

    @contextmanager
    def export(self, ref: str) -> Iterator[BinaryIO]:
        """The root file system as a stream of tar."""
        container = tell_tool([self.program, "create", ref, "/bin/true"]).split()[-1]
        try:
            with open_output([self.program, "export", container]) as stream:
                yield stream
        finally:
            ask_tool([self.program, "rm", "--force", container])

    def run_python(self, ref: str, script: Path) -> str:
        """Output of a script of the standard library alone, in the image."""
        mount = f"--volume={script}:/report.py:ro"
        return tell_tool(
            [self.program, "run", "--rm", "--network=none", "--entrypoint=", mount, ref, "python3", "/report.py"]
        )


class Docker(Podman):
    program = "docker"

    def save(self, ref: str, path: Path) -> None:
        run_tool([self.program, "save", f"--output={path}", ref], grows=path)


class Buildah(Podman):
    """buildah alone: it has no containers that run, but a file system to look into."""

    program = "buildah"

    def inspect(self, ref: str) -> ImageConfig | None:
        done = ask_tool([self.program, "inspect", "--type=image", ref])
        return None if done.returncode else ImageConfig.from_json(json.loads(done.stdout)["OCIv1"].get("config") or {})

    def load_root(self, tar: Path, ref: str, label: str) -> None:
        with self._container("scratch") as name:
            tell_tool([self.program, "add", name, str(tar), "/"])
            tell_tool([self.program, "config", f"--label={LABEL}={label}", name])
            run_tool([self.program, "commit", name, ref])

    def save(self, ref: str, path: Path) -> None:
        run_tool([self.program, "push", ref, f"docker-archive:{path}"])

    @contextmanager
    def export(self, ref: str) -> Iterator[BinaryIO]:
        # Without root, a file system can be mounted in a namespace of buildah's only.
        inside = [] if os.getuid() == 0 else [self.program, "unshare"]
        script = 'cd "$(buildah mount "$1")" && tar --create --file=- .'
        with (
            self._container("--pull-never", ref) as name,
            open_output([*inside, "/bin/sh", "-c", script, "sh", name]) as stream,
        ):
            yield stream

    def run_python(self, ref: str, script: Path) -> str:
        mount = f"--volume={script}:/report.py:ro"
        with self._container("--pull-never", ref) as name:
            return tell_tool([self.program, "run", mount, name, "--", "python3", "/report.py"])

    @contextmanager
    def _container(self, *words: str) -> Iterator[str]:
        """The name of a working container, which is removed afterwards."""
        name = tell_tool([self.program, "from", *words]).split()[-1]
        try:
            yield name
        finally:
            ask_tool([self.program, "rm", name])


ENGINES: dict[str, type[Podman]] = {"podman": Podman, "docker": Docker, "buildah": Buildah}


def choose_engine(wanted: str | None = None) -> Podman:
    """The engine named, else the first that is there and answers.

    Raises:
        ConfigError: none does; says of each what is the matter with it.
    """
    if wanted is not None and wanted not in ENGINES:
        raise ConfigError("--engine must be one that is known", seen=wanted, action=f"one of {', '.join(ENGINES)}")
    troubles = []
    for name in [wanted] if wanted else ENGINES:
        if shutil.which(name) is None:
            troubles.append(f"{name} is not on PATH")
            continue
        done = ask_tool([name, "info"])
        if done.returncode == 0:
            return ENGINES[name]()
        troubles.append(f"{name} does not answer ({(done.stderr.strip().splitlines() or ['no word'])[-1]})")
    raise ConfigError(
        "an image is built by podman, docker or buildah",
        seen="; ".join(troubles),
        action="install one (podman needs no root), or build on another machine and bring the file here, "
        "or import one: python -m slurm_rl image import --from=<reference or root.tar>",
    )
