"""The nouns: what is to run in which container, with which mounts, and what comes out of wrapping it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plan.accelerator import AcceleratorKind


@dataclass(frozen=True)
class Mount:
    """A path of the host inside the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerPlan:
    """The container section of the config as plain data, as plan.json holds it."""

    runtime: str
    image: str | None
    mounts: tuple[Mount, ...]
    workdir: str | None
    shm_size_gb: int | None
    writable: bool
    extra_args: tuple[str, ...]
    setup: tuple[str, ...] = ()

    @property
    def starts_on_the_host(self) -> bool:
        """Whether a shell of the node's own can come before the container."""
        return RUNTIMES[self.runtime].on_the_host

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ContainerPlan:
        lists = {name: tuple(tree[name]) for name in ("extra_args", "setup") if name in tree}
        return ContainerPlan(**{**tree, **lists, "mounts": tuple(Mount(**mount) for mount in tree["mounts"])})


@dataclass(frozen=True)
class Request:
    """All that a runtime needs to know; the checks are done."""

    argv: tuple[str, ...]
    env: dict[str, str]
    inherited: tuple[str, ...]
    """Variables whose values only the environment of the wrapped command holds, secrets among them."""
    mounts: tuple[Mount, ...]
    container: ContainerPlan
    image: str
    accelerator: AcceleratorKind
    name: str
    user: str | None


@dataclass(frozen=True)
class Wrapped:
    """A command in its container."""

    srun_args: tuple[str, ...]
    """To insert after `srun`; pyxis alone has any."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """To add to the environment in which argv (or srun) starts; no value of it is in argv."""
    cleanup_argv: tuple[str, ...] = ()
    """Ends the container if it still runs, and only that one; empty where it ends with its processes."""


def merge_mounts(*groups: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """All mounts, each once; ConfigError when two want the same place."""
    by_target: dict[str, Mount] = {}
    for mount in (mount for group in groups for mount in group):
        other = by_target.setdefault(mount.target, mount)
        if other != mount:
            raise ConfigError(
                "a path in the container has one mount",
                seen=f"{other.source} and {mount.source} both on {mount.target}",
                action="change the target of yours in container.mounts",
            )
    return tuple(by_target.values())


def render_bind(mount: Mount, read_only_word: str) -> str:
    """`type=bind,source=...,target=...`: one line of CSV, so a comma or a quote in a path only needs quoting.

    >>> render_bind(Mount("/data/a,b", "/data", read_only=True), "readonly")
    'type=bind,"source=/data/a,b",target=/data,readonly'
    """
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if mount.read_only:
        fields.append(read_only_word)
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def render_pyxis(mounts: Sequence[Mount]) -> str:
    """`source:target:flags,...`, which pyxis hands to enroot as lines of an fstab.

    Neither of them knows an escape (NVIDIA/pyxis#133), so a path with one of their separators cannot be said.
    """
    for path in (path for mount in mounts for path in (mount.source, mount.target)):
        if any(character in ":,\\" or character.isspace() for character in path):
            raise ConfigError(
                "pyxis mounts only paths without space, comma, colon and backslash",
                seen=repr(path),
                action="mount a symbolic link to it or a folder above it, or use container.runtime=apptainer",
            )
    return ",".join(f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts)
