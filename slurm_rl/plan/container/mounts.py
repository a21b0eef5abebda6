"""Mounts in each runtime's notation, or a clear error where it has none for a path."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from slurm_rl.errors import ConfigError
from slurm_rl.plan.container.spec import Mount


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
